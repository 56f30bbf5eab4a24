"""`meshbus revoke` as users run it, on nodes that are processes of their own: what is revoked is cut everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_identity, create_psk, format_tokens
from meshbus.names.identity import Identity
from meshbus.node.policies.revocationfile import save_revocations
from meshbus.wire.messages.revocation import Revocation, Revoked
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.cli.conftest import Meshbus
from tests.cli.running import Running, running, until

CHANNEL = "fleet/poses"
ROVER = Identity.from_seed(bytes(32))


class Fleet:
    """A node where orders are given, a hub, and a rover that obeys nothing; all are connected, and events flow."""

    def __init__(self, folder: Path, stack: ExitStack, meshbus: Meshbus) -> None:
        self.folder, self.meshbus = folder, meshbus
        create_psk(folder / "mesh.key")
        self.issuer = create_identity(folder / "issuer.toml")
        self.trust = (
            f'policy_file = "policy.toml"\npolicy_issuers = ["{self.issuer.entity_id.hex()}"]\n'
            "heartbeat_s = 0.2\nsession_timeout_s = 30\n"
        )
        self.boss = stack.enter_context(self.run("boss", f'name = "boss"\n{self.trust}'))
        self.hub = stack.enter_context(self.run("hub", self.hub_settings()))
        peers = _peers(self.boss, self.hub)
        self.rover = stack.enter_context(
            self.run(
                "rover",
                f'name = "rover"\nheartbeat_s = 0.2\nsession_timeout_s = 3\n[[subscriptions]]\nchannel = "{CHANNEL}"\nlog = false\n{peers}',
            )
        )
        self.meet()

    def run(self, name: str, settings: str) -> Any:
        (self.folder / name).mkdir(exist_ok=True)
        (self.folder / name / "policy.toml").write_text("# nothing is restricted\n", "utf-8")
        return running(self.folder / name, settings)

    def hub_settings(self) -> str:
        return f'name = "hub"\n{self.trust}[[subscriptions]]\nchannel = "{CHANNEL}"\nlog = false\n{_peers(self.boss)}'

    def meet(self) -> None:
        for node, names in ((self.boss, {"hub", "rover"}), (self.hub, {"boss", "rover"})):
            until(lambda node=node: self.names(node), lambda found, names=names: found >= names)  # type: ignore[misc]

    def names(self, node: Running) -> set[str]:
        return {row["name"] for row in self.meshbus("peers", "--admin", node.admin).rows if row["health"] == "alive"}

    def counter(self, node: Running, kind: str, why: str) -> int:
        rows = self.meshbus("counters", "--admin", node.admin).rows
        return sum(row["count"] for row in rows if row["counter"] == f"{kind}.{why}")

    def publish(self, node: Running) -> int:
        """Publish an event at a node, and return how many subscribers it was sent to."""
        done = self.meshbus("pub", CHANNEL, "x", "--admin", node.admin)
        return int(done.row["delivered"])

    def revoke(self, *arguments: str) -> dict[str, Any]:
        given = ("--identity", self.folder / "issuer.toml", "--admin", self.boss.admin)
        done = self.meshbus("revoke", *arguments, "--reason", "stolen", *given)
        assert done.code == Exit.OK, done.err
        return done.row

    def known(self, node: Running, count: int) -> None:
        """Wait until a node knows so many revocations."""
        until(lambda: self.meshbus("revoke", "ls", "--admin", node.admin).rows, lambda rows: len(rows) == count)


@pytest.fixture
def fleet(tmp_path: Path, meshbus: Meshbus) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack, meshbus)


def _peers(*nodes: Running) -> str:
    return "".join(f'[[peers]]\naddress = "{one.address}"\npublic_key = "{one.public_key}"\n' for one in nodes)


def test_a_publisher_a_subscriber_and_a_node_are_cut_everywhere_and_stay_so(fleet: Fleet) -> None:
    meshbus = fleet.meshbus
    # Events flow in both directions.
    until(lambda: fleet.publish(fleet.rover), lambda sent: sent == 1)
    until(lambda: fleet.publish(fleet.hub), lambda sent: sent == 1)

    row = fleet.revoke("rover", "--publish")
    assert (row["new"], row["revoked"], row["name"]) == (True, "publish", "rover")
    assert row["public_key"] == fleet.rover.public_key
    fleet.known(fleet.hub, 1)
    before = fleet.counter(fleet.hub, "drop", "revoked_publisher")
    until(lambda: fleet.publish(fleet.rover), lambda sent: sent == 1)  # it goes on, and nobody listens
    until(lambda: fleet.counter(fleet.hub, "drop", "revoked_publisher"), lambda count: count > before)
    (peer,) = [one for one in meshbus("peers", "--admin", fleet.hub.admin).rows if one["name"] == "rover"]
    assert (peer["health"], peer["revoked"]) == ("alive", ["publish"])

    fleet.revoke(fleet.rover.public_key, "--subscribe")
    fleet.known(fleet.hub, 2)
    assert fleet.publish(fleet.hub) == 0  # from the moment at which it knows
    assert fleet.counter(fleet.hub, "lapse", "revoked") == 1

    fleet.revoke(str(fleet.rover.status["node_id"]))
    for node in (fleet.boss, fleet.hub):
        fleet.known(node, 3)
        assert "rover" not in fleet.names(node)
        until(lambda node=node: fleet.counter(node, "refuse", "revoked"), bool)  # type: ignore[misc]  # it tries again
        assert "rover" not in fleet.names(node)
    status = meshbus("status", "--admin", fleet.hub.admin).row
    assert (status["revocations"], status["revoked"]) == (3, [])
    assert until(lambda: meshbus("status", "--admin", fleet.hub.admin).row, lambda row: row["revocations_saved"])

    log = ("audit", "--config", fleet.folder / "boss" / "node.toml", "--kind", "revocation")
    rows = until(lambda: meshbus(*log).rows, lambda found: len(found) == 3)
    assert [(row["via"], row["subject"]) for row in rows] == [("revoke", fleet.rover.public_key)] * 3
    again = fleet.revoke("rover", "--publish")
    assert not again["new"]

    fleet.hub.stop()
    assert [row["revoked"] for row in meshbus("revoke", "ls", "--config", fleet.folder / "hub" / "node.toml").rows] == [
        "publish",
        "subscribe",
        "node",
    ]
    with fleet.run("hub", fleet.hub_settings()) as hub:  # after a restart, before it has met anybody
        assert len(meshbus("revoke", "ls", "--admin", hub.admin).rows) == 3
        until(lambda: fleet.names(hub), lambda names: "boss" in names)
        assert "rover" not in fleet.names(hub)


def test_wrong_orders(home: Path, meshbus: Meshbus) -> None:
    create_psk(home / "mesh.key")
    create_identity(home / "me.toml")
    wish = ("--reason", "stolen", "--identity", home / "me.toml")
    with running(home / "node", 'name = "hub"\n') as node:
        given = (*wish, "--admin", node.admin)
        both = meshbus("revoke", ROVER.entity_id.hex(), "--publish", "--subscribe", *given)
        assert (both.code, "give one of --publish" in both.err) == (Exit.USAGE, True)
        unknown = meshbus("revoke", "nobody", *given)
        assert "announced the name 'nobody'" in unknown.err
        absent = meshbus("revoke", f"{ROVER.node_id:016x}", *given)
        assert (absent.code, "give the public key" in absent.err) == (Exit.USAGE, True)
        denied = meshbus("revoke", ROVER.entity_id.hex(), *given)
        assert (denied.code, "policy_issuers" in denied.err) == (Exit.USAGE, True)
        wordless = meshbus("revoke", ROVER.entity_id.hex(), *given[2:], "--reason", "")
        assert wordless.code != Exit.OK
        assert meshbus("revoke", "ls", "--admin", node.admin).rows == []


def test_a_token_is_revoked_by_its_file_and_by_an_issuer_only(home: Path, meshbus: Meshbus) -> None:
    create_psk(home / "mesh.key")
    issuer = create_identity(home / "issuer.toml")
    token = PermissionToken.issue(
        issuer, ROVER.entity_id, Scope.ALL, CHANNEL, ttl_s=3600, now=4_000_000_000, entropy=bytes
    )
    (home / "rover.token").write_text(format_tokens((token,)), "utf-8")
    (home / "node").mkdir()
    (home / "node" / "policy.toml").write_text("", "utf-8")
    trust = f'policy_file = "policy.toml"\npolicy_issuers = ["{issuer.entity_id.hex()}"]\n'
    create_identity(home / "other.toml")
    with running(home / "node", trust) as node:
        wish = ("revoke", home / "rover.token", "--token", "--reason", "leaked", "--admin", node.admin)
        denied = meshbus(*wish, "--identity", home / "other.toml")
        assert (denied.code, "is none of the policy_issuers" in denied.err) == (Exit.DENIED, True)
        done = meshbus(*wish, "--identity", home / "issuer.toml")
        assert done.code == Exit.OK, done.err
        assert (done.row["revoked"], done.row["until"]) == ("token", "2096-10-02T08:06:40+00:00")


def test_the_file_of_a_node_that_does_not_run_is_shown(home: Path, meshbus: Meshbus) -> None:
    config = home / "node.toml"
    config.write_text('identity = "id.toml"\nadmin_socket = ""\n', "utf-8")
    assert meshbus("revoke", "ls", "--config", config).rows == []
    record = Revocation.sign(ROVER, Revoked.NODE, ROVER.entity_id, at=1, reason="stolen")
    save_revocations(home / "id.revocations.toml", [record])
    (row,) = meshbus("revoke", "ls", "--config", config).rows
    assert (row["public_key"], row["reason"]) == (ROVER.entity_id.hex(), "stolen")
    config.write_text('ephemeral = true\nadmin_socket = ""\n', "utf-8")
    assert "ephemeral" in meshbus("revoke", "ls", "--config", config).err
