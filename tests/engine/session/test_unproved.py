from __future__ import annotations

from hashlib import blake2s

import pytest

from meshbus.engine.base.packets import Address
from meshbus.engine.session import unproved
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import PeerTable
from meshbus.engine.session.unproved import UnprovedPeers
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.route import RouteHeader
from meshbus.wire.seal import Sealer

RELAYS: list[Address] = [("10.0.0.1", 1), ("10.0.0.2", 1)]


class Scene:
    """A peer table, and peers behind relays."""

    def __init__(self) -> None:
        self.peers = PeerTable()
        self.unproved = UnprovedPeers(self.peers)

    def add(self, node_id: int, relay: Address = RELAYS[0]) -> int | None:
        secret = blake2s(bytes([node_id])).digest()
        link = Link(
            derive_keys(secret, Role.RESPONDER), Role.RESPONDER, relay, 0.0, route=RouteHeader(src_id=9, dest_id=1)
        )
        self.peers.establish(node_id, link, 0.0)
        return self.unproved.add(node_id, link)

    def prove(self, node_id: int) -> None:
        far = Sealer(derive_keys(blake2s(bytes([node_id])).digest(), Role.INITIATOR))
        self.peers.require(node_id).link.opener.open(far.heartbeat())


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(unproved, "MAX_PER_RELAY", 2)
    monkeypatch.setattr(unproved, "MAX_UNPROVED", 3)
    return Scene()


def test_the_oldest_behind_the_same_relay_goes(scene: Scene) -> None:
    assert [scene.add(1, RELAYS[1]), scene.add(2), scene.add(3)] == [None] * 3
    assert scene.add(4) == 2
    assert len(scene.unproved) == 3


def test_the_oldest_of_all_goes_when_all_have_too_many(scene: Scene) -> None:
    for node_id in (1, 2):
        scene.add(node_id)
    scene.add(3, RELAYS[1])
    assert scene.add(4, RELAYS[1]) == 1


def test_whoever_proved_itself_or_left_is_not_sent_away(scene: Scene) -> None:
    scene.add(1)
    scene.add(2)
    scene.prove(1)
    assert scene.add(3) is None
    scene.peers.remove(2)
    assert scene.add(4) is None
    assert len(scene.unproved) == 2


def test_a_new_session_of_the_same_node_takes_no_room(scene: Scene) -> None:
    for _ in range(5):
        assert scene.add(1) is None
    assert len(scene.unproved) == 1
    assert scene.add(1, RELAYS[1]) is None
    assert scene.add(2) is None
    assert scene.add(3) is None
