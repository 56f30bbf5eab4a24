"""Peers are shown as a table to people, and as lines to programs."""

from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from meshbus.names.identity import Identity
from meshbus.testing.realpeer import RealPeer
from tests.cli.conftest import Meshbus
from tests.cli.running import running, until
from tests.interop.newest import PACKAGES


def test_a_node_with_and_without_peers(meshbus: Meshbus, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as first:
        alone = meshbus("peers", "--admin", first.admin)
        assert (alone.code, alone.out, alone.err) == (Exit.OK, "", "")
        peer = f'[[peers]]\naddress = "{first.address}"\npublic_key = "{first.public_key}"\n'
        with running(tmp_path / "b", f'name = "west-rover"\ntags = ["role:planner"]\n{peer}') as second:
            assert second.status["name"] == "west-rover"
            first.notice("announced")
            row = meshbus("peers", "--admin", first.admin).row
            assert (row["node_id"], row["name"]) == (second.status["node_id"], "west-rover")
            assert (row["health"], row["path"], row["nat"]) == ("alive", "direct", "unknown")
            assert "role:planner" in row["tags"]
            request.getfixturevalue("terminal")
            shown = meshbus("peers", "--admin", first.admin)
            assert "node id" in shown.out
            assert second.status["node_id"] in shown.out
            assert "{" not in shown.out
            assert "role:planner" in shown.out
            assert "subprotocol:" not in shown.out, "every node announces these"


def test_an_absent_configured_peer_is_shown_with_the_reason(
    meshbus: Meshbus, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    create_psk(tmp_path / "mesh.key")
    absent = Identity.generate(lambda size: bytes(range(size)))
    peer = f'[[peers]]\naddress = "127.0.0.1:9"\npublic_key = "{absent.entity_id.hex()}"\n'
    with running(tmp_path / "a", peer) as node:
        told = node.notice("peer_unreachable")
        row = meshbus("peers", "--admin", node.admin).row
        assert row["node_id"] == told["node_id"]
        assert row["health"] in {"connecting", "waiting"}
        assert row["last_error"]
        assert row["tries"] >= 1
        assert (row["secure"], row["dialect"], row["revoked"]) == (None, None, None), "unknown is null, not absent"
        request.getfixturevalue("terminal")
        assert "last error" in meshbus("peers", "--admin", node.admin).out


def test_the_name_of_a_peer_is_in_the_notices(tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as first:
        peer = f'[[peers]]\naddress = "{first.address}"\npublic_key = "{first.public_key}"\n'
        with running(tmp_path / "b", f'name = "west-rover"\n{peer}') as second:
            assert first.notice("announced")["name"] == "west-rover"
            second.notice("negotiated")  # before it a node does not say goodbye
            second.stop()
        assert first.notice("peer_gone")["name"] == "west-rover"


def test_the_dialect_of_a_net_mesh_peer_is_shown(
    meshbus: Meshbus, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    psk = create_psk(tmp_path / "mesh.key")
    with (
        RealPeer(psk=psk, packages=PACKAGES) as peer,
        running(tmp_path / "a", f'accept = ["{peer.node_id:016x}"]\n') as node,
    ):
        node_id = int(node.status["node_id"], 16)
        peer.connect(node.address, bytes.fromhex(node.status["noise_public_key"]), node_id)
        peer.start()
        # It grants what our node announces, as only its level does.
        until(lambda: meshbus("peers", "--admin", node.admin).row["dialect"], lambda dialect: dialect == "C")
        request.getfixturevalue("terminal")
        shown = meshbus("peers", "--admin", node.admin).out
        assert "dialect" in shown
        assert " C " in shown
