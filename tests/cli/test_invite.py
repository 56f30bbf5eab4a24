"""`meshbus invite` and `meshbus join` as operators run them: real nodes in processes of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.cli.invite import _reachable
from meshbus.keyfile import create_identity, create_psk
from tests.cli.conftest import Meshbus
from tests.cli.running import SCRIPT, Running, running, started, until

CHANNEL = "sensors/lidar"


@contextmanager
def hub(folder: Path) -> Iterator[Running]:
    if not (folder / "mesh.key").exists():
        create_psk(folder / "mesh.key")
        create_identity(folder / "issuer.toml")
    settings = 'name = "hub"\nissuer_key = "../issuer.toml"\njoin_bind = "127.0.0.1:0"\n'
    settings += f'[[subscriptions]]\nchannel = "{CHANNEL}"\nlog = false\n'
    with running(folder / "hub", settings) as node:
        yield node


def test_a_robot_joins_and_gets_events_and_the_token_is_worth_nothing_afterwards(
    meshbus: Meshbus, tmp_path: Path, home: Path
) -> None:
    with hub(tmp_path) as node:
        made = meshbus(
            "invite", "--name", "rover-7", "--tag", "lidar", "--subnet", "3.7", "--ttl", "5m", "--admin", node.admin
        )
        assert made.code == Exit.OK, made.err
        assert f"meshbus join TOKEN {made.row['address']}" in made.err
        token, address = made.row["token"], made.row["address"]
        joined = meshbus("join", "-", address, "rover/node.toml", stdin=f"{token}\n")
        assert joined.code == Exit.OK, joined.err
        assert "start the node with `meshbus up rover/node.toml`" in joined.err
        facts = joined.row
        assert (facts["name"], facts["subnet"], facts["tags"]) == ("rover-7", "3.7", ["lidar"])
        assert node.notice("node_joined")["public_key"] == facts["public_key"]
        # The new node runs with what it was given, nothing else.
        with running_as_joined(home / "rover" / "node.toml") as rover:
            peers = until(
                lambda: meshbus("peers", "--admin", rover.admin).rows,
                lambda rows: rows and rows[0]["health"] == "alive" and rows[0]["secure"],
            )
            assert peers[0]["name"] == "hub"
            sent = until(
                lambda: meshbus("pub", CHANNEL, "scan", "--admin", rover.admin).rows,
                lambda rows: rows and rows[0]["delivered"] == 1,
            )
            assert sent[0]["errors"] == []
            until(
                lambda: meshbus("counters", "--admin", node.admin).rows,
                lambda rows: any(row["counter"] == "received.events" for row in rows),
            )
            status = meshbus("status", "--admin", rover.admin).rows[0]
            assert status["certified_until"] == facts["certified_until"]
        rows = until(
            lambda: meshbus("invite", "ls", "--admin", node.admin).rows, lambda rows: rows[0]["state"] == "used"
        )
        assert rows[0]["public_key"] == facts["public_key"]
        # The listener is gone with the last open invite; with another one, the used token gets its reason.
        meshbus("invite", "--name", "rover-8", "--admin", node.admin)
        address = meshbus("status", "--admin", node.admin).rows[0]["join_address"]
        again = meshbus("join", token, address, "thief/node.toml")
        assert (again.code, "Another node has used this invite first" in again.err) == (Exit.DENIED, True)
        assert not (home / "thief" / "node.toml").exists()
        audit = meshbus("audit", "--config", tmp_path / "hub" / "node.toml", "--kind", "join").rows
        assert [(row["via"], row["result"]) for row in audit] == [
            ("invite", "applied"), ("join", "applied"), ("invite", "applied"), ("join", "refused"),
        ]  # fmt: skip
        assert audit[1]["subject"] == facts["public_key"]


@contextmanager
def running_as_joined(config: Path) -> Iterator[Running]:
    """Run a node with the configuration that `meshbus join` wrote; only its admin socket is our own."""
    with started([SCRIPT, "up", config, "--admin", config.parent / "run" / "admin.sock"]) as node:
        yield node


def test_approving_withdrawing_and_a_restart(meshbus: Meshbus, tmp_path: Path) -> None:
    with hub(tmp_path) as node:
        made = [meshbus("invite", "--name", name, "--approval", "--admin", node.admin).row for name in ("a", "b")]
        ids = [row["invite"] for row in made]
        gone = meshbus("invite", "withdraw", ids[1], "--admin", node.admin)
        assert (gone.code, gone.row["state"]) == (Exit.OK, "withdrawn")
        early = meshbus("invite", "approve", ids[0], "--admin", node.admin)
        assert (early.code, "only a newcomer that waits is approved" in early.err) == (Exit.USAGE, True)
        assert meshbus("invite", "approve", "zz", "--admin", node.admin).code == Exit.USAGE
    with hub(tmp_path) as node:
        rows = meshbus("invite", "ls", "--admin", node.admin).rows
        assert [(row["invite"], row["state"], row["approval"]) for row in rows] == [
            (ids[0], "open", True), (ids[1], "withdrawn", True),
        ]  # fmt: skip
        address = meshbus("status", "--admin", node.admin).rows[0]["join_address"]
        waiting = meshbus("join", made[0]["token"], address, "--wait", "1s")
        assert (waiting.code, f"meshbus invite approve {ids[0]}" in waiting.err) == (Exit.UNREACHABLE, True)
        approved = meshbus("invite", "approve", ids[0], "--admin", node.admin)
        assert (approved.code, approved.row["state"]) == (Exit.OK, "approved")
        # The same command, with the identity that it made, is admitted now.
        joined = meshbus("join", made[0]["token"], address)
        assert (joined.code, joined.row["public_key"]) == (Exit.OK, approved.row["public_key"])


def test_what_is_wrong_is_said(meshbus: Meshbus, tmp_path: Path) -> None:
    result = meshbus("invite", "--name", "x", "--ttl", "soon")
    assert (result.code, "--ttl: expected a number and s, m, h or d" in result.err) == (Exit.USAGE, True)
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as node:
        result = meshbus("invite", "--name", "x", "--admin", node.admin)
        assert (result.code, "issuer_key: is not set" in result.err) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("address", "shown"),
    [("10.0.0.7:9000", "10.0.0.7:9000"), ("0.0.0.0:9000", "HOST:9000"), ("[::]:9000", "HOST:9000")],
)
def test_an_address_that_means_every_host_is_not_repeated(address: str, shown: str) -> None:
    assert _reachable(address) == shown
