"""Withdrawals of routes: which way they remove, which numbers count, and who is told."""

from __future__ import annotations

from meshbus.engine.base.notices import DownReason, PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.routes.withdrawal import Withdrawals
from meshbus.engine.session.dialect import Level
from meshbus.testing.rig import rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.withdrawal import RouteWithdrawal, decode_withdrawal, encode_withdrawal
from tests.engine.wires import FarEnd

DEST = 99


class Scene:
    """A node with two neighbors, both of which lead to another one."""

    def __init__(self) -> None:
        self.engine = rig()
        self.service = self.engine.services[Withdrawals]
        self.table = self.engine.mesh.table
        self.near = FarEnd(self.engine.peers, 5, address=("192.0.2.5", 1))
        self.other = FarEnd(self.engine.peers, 6, session=2, address=("192.0.2.6", 1))
        for far in (self.near, self.other):
            assert far.peer.link.home is not None
            self.table.learn(DEST, far.peer.link.home, 3, 0.0)

    def hear(self, message: bytes | RouteWithdrawal) -> None:
        event = message if isinstance(message, bytes) else encode_withdrawal(message)
        self.service.receive(self.near.peer, memoryview(event), 0.0, Output())


def test_only_the_way_through_the_sender_goes() -> None:
    scene = Scene()
    scene.hear(RouteWithdrawal(dest=DEST, seq=0))
    assert scene.table.lookup(DEST, 0.0) == scene.other.peer.link.home
    assert scene.near.peer.dialect.reads_withdrawals
    assert scene.near.peer.dialect.level is Level.B


def test_numbers_of_one_sender_must_rise() -> None:
    scene = Scene()
    scene.hear(RouteWithdrawal(dest=DEST, seq=5))
    home = scene.near.peer.link.home
    assert home is not None
    scene.table.install(DEST, home, 0.0, metric=1)
    scene.hear(RouteWithdrawal(dest=DEST, seq=5))
    assert scene.table.lookup(DEST, 0.0) == home
    assert scene.engine.counters.get("drop", "withdrawal_old") == 1
    scene.hear(RouteWithdrawal(dest=DEST, seq=6))
    assert scene.table.lookup(DEST, 0.0) != home


def test_nobody_withdraws_itself_and_unreadable_ones_are_counted() -> None:
    scene = Scene()
    home = scene.near.peer.link.home
    assert home is not None
    scene.table.install(5, home, 0.0)
    scene.hear(RouteWithdrawal(dest=5, seq=0))
    assert scene.table.lookup(5, 0.0) == home
    scene.hear(b"short")
    assert scene.engine.counters.get("drop", "withdrawal_malformed") == 1


def test_only_peers_that_read_it_are_told_of_a_neighbor_that_failed() -> None:
    scene, out = Scene(), Output()
    scene.service.peer_down(PeerFailed(5, DownReason.SILENT), 0.0, out)
    assert out.trains == [], "an older peer would take it for an event"
    scene.other.peer.dialect.learn(Level.C)
    for seq in (1, 2):
        out = Output()
        scene.service.peer_down(PeerFailed(5, DownReason.SILENT), 0.0, out)
        [(subprotocol_id, event)] = scene.other.read(out)
        assert subprotocol_id == Subprotocol.ROUTE_WITHDRAWAL
        assert decode_withdrawal(event) == RouteWithdrawal(dest=5, seq=seq)
    scene.service.peer_down(PeerGone(5, DownReason.CLOSED), 0.0, out := Output())
    assert out.trains == []
