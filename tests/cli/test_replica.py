"""`meshbus replica` as users run it, against three members that run as users run them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from tests.cli.conftest import Meshbus, Result
from tests.cli.running import Running, program, running, until

NAMES = ("east", "north", "west")
CHANNEL = "alarms/fire"
SETTINGS = """
name = "{name}"
bind = "127.0.0.1:0"
log_dir = "logs"
{peers}
[[channels]]
name = "alarms/fire"
replicas = ["east", "north", "west"]
replica_heartbeat_s = 0.2
"""


class Trio:
    """Three members, by name."""

    def __init__(self, stack: ExitStack, folder: Path, meshbus: Meshbus) -> None:
        self.folder = folder
        self.meshbus = meshbus
        self.nodes: dict[str, Running] = {}
        create_psk(folder / "mesh.key")
        for name in NAMES:
            peers = "".join(
                f'[[peers]]\naddress = "{node.address}"\npublic_key = "{node.public_key}"\n'
                for node in self.nodes.values()
            )
            self.nodes[name] = stack.enter_context(running(folder / name, SETTINGS.format(name=name, peers=peers)))

    def ask(self, name: str, *arguments: object) -> Result:
        """Run a command of `meshbus replica` at a member."""
        return self.meshbus("replica", *arguments, "--admin", self.nodes[name].admin)

    def command(self, name: str, *arguments: object) -> Result:
        """The same in a process of its own, as users run it."""
        return program("replica", *arguments, "--admin", self.nodes[name].admin)

    def status(self, name: str) -> dict[str, Any]:
        return self.ask(name, "status").row

    def leader(self) -> str:
        """Wait until the members agree on a leader that takes appends, and return its name."""
        found = until(
            lambda: {
                (row["leader"] or {}).get("name") for name in NAMES if (row := self.status(name))["waiting"] is None
            },
            lambda leaders: len(leaders) == 1 and None not in leaders,
        )
        return str(found.pop())

    def publish(self, name: str, *events: str) -> None:
        for event in events:
            published = self.meshbus("pub", CHANNEL, event, "--admin", self.nodes[name].admin)
            assert published.code in {Exit.OK, Exit.LOGGED}, published

    def members(self, leader: str) -> set[str]:
        return {member["name"] for member in self.status(leader)["members"]}


@pytest.fixture
def trio(tmp_path: Path, meshbus: Meshbus) -> Iterator[Trio]:
    with ExitStack() as stack:
        yield Trio(stack, tmp_path, meshbus)


@pytest.mark.slow
def test_members_are_shown_changed_and_compared(trio: Trio, request: pytest.FixtureRequest) -> None:
    leader = trio.leader()
    trio.publish(leader, "smoke", "fire")
    shown = until(lambda: trio.status(leader), lambda row: {one["lag"] for one in row["members"]} == {0})
    assert (shown["channel"], shown["role"], shown["leader"]["name"]) == (CHANNEL, "leader", leader)
    assert (shown["committed"], shown["tail"], shown["acks"], shown["waiting"]) == (2, 2, "majority", None)

    other, third = (name for name in NAMES if name != leader)
    refused = trio.command(other, "transfer", CHANNEL, other)
    assert (refused.code, refused.out) == (Exit.FAILED, "")
    assert "does not lead" in refused.err
    assert trio.command(leader, "transfer", CHANNEL, other).code == Exit.OK
    assert trio.leader() == other
    trio.publish(third, "water")

    assert trio.command(other, "remove", CHANNEL, third).code == Exit.OK
    assert trio.members(other) == {leader, other}
    again = trio.ask(other, "remove", CHANNEL, third)
    assert (again.code, again.err.count("\n")) == (Exit.FAILED, 1)
    assert "is not a member" in again.err
    assert trio.command(other, "add", CHANNEL, third).code == Exit.OK
    assert trio.members(other) == set(NAMES)

    until(lambda: trio.ask(other, "verify", CHANNEL).rows, lambda rows: len(rows[0]["equal"]) == 3)
    row = trio.command(other, "verify", CHANNEL).row
    assert (row["first"], row["end"], row["wrong"], row["unread"]) == (0, 3, [], [])
    request.getfixturevalue("terminal")
    table = trio.ask(other, "status")
    assert table.code == Exit.OK
    assert "lag 0" in table.out
    assert "{" not in table.out


@pytest.mark.slow
def test_a_damaged_log_is_found_and_copied_again_from_the_others(trio: Trio) -> None:
    leader = trio.leader()
    trio.publish(leader, *(f"alarm {number}" for number in range(9)))
    broken = next(name for name in NAMES if name != leader)
    until(lambda: trio.status(broken)["committed"], lambda committed: committed == 9)
    [hot] = (file for file in (trio.folder / broken / "logs").rglob("*.hot") if b"alarm 7" in file.read_bytes())
    raw = bytearray(hot.read_bytes())
    raw[raw.index(b"alarm 7")] ^= 1
    with hot.open("r+b") as file:
        file.write(raw)

    found = trio.ask(broken, "verify", CHANNEL)
    assert found.code == Exit.FAILED
    assert [one["name"] for one in found.row["wrong"]] == [broken]
    assert len(found.row["equal"]) == 2
    assert "--repair" in found.err
    fixed = trio.ask(broken, "verify", CHANNEL, "--repair")
    assert (fixed.code, "moved aside" in fixed.err) == (Exit.OK, True)
    until(lambda: trio.status(broken)["committed"], lambda committed: committed == 9)
    [row] = until(lambda: trio.ask(leader, "verify", CHANNEL).rows, lambda rows: len(rows[0]["equal"]) == 3)
    assert row["wrong"] == []
    [kept] = (trio.folder / broken / "logs").rglob("_replaced-0-*")
    assert any(b"alarm 8" in file.read_bytes() for file in kept.rglob("*.hot"))


def test_a_node_that_does_not_run_is_unreachable(meshbus: Meshbus, tmp_path: Path) -> None:
    result = meshbus("replica", "status", "--admin", tmp_path / "nobody.sock")
    assert (result.code, result.out) == (Exit.UNREACHABLE, "")


def test_a_channel_that_is_not_replicated_is_a_usage_error(meshbus: Meshbus, tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as node:
        assert meshbus("replica", "status", "--admin", node.admin) == (Exit.OK, "", "")
        refused = meshbus("replica", "verify", CHANNEL, "--admin", node.admin)
        assert (refused.code, refused.out) == (Exit.USAGE, "")
        assert "is not replicated; set replicas" in refused.err
