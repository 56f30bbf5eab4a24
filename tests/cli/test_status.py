"""The state of a node in a few lines."""

import pytest

from meshbus.cli.exit import Exit
from tests.cli.conftest import Meshbus
from tests.cli.meshes import AWAY, PEER, PreparedMesh


def test_a_node_that_is_well(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh().use(monkeypatch)
    result = meshbus("status")
    assert result.code == Exit.OK
    wanted = {"name": "leaf", "peers": 1, "peers_away": 0, "channels": 1, "dropped": 3, "refused": 0, "sent_events": 7}
    assert {key: result.row[key] for key in wanted} == wanted


@pytest.mark.usefixtures("terminal")
def test_a_peer_that_is_away_is_named_with_the_reason(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh(peers=[[PEER, AWAY]]).use(monkeypatch)
    result = meshbus("status")
    assert (result.code, result.err) == (Exit.PARTIAL, "meshbus: 00000000000000ff is waiting: no answer\n")
    assert "peers away" in result.out
