"""The streams with all peers: one traffic object per peer, timers of those in use, and removal with the peer."""

from __future__ import annotations

import pytest

from meshbus.engine.base.notices import DownReason, PeerFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.session.link import Link
from meshbus.engine.settings import PROFILE_WINDOW
from meshbus.engine.streams.traffic import MAX_MESSAGES
from meshbus.errors import Backpressure
from meshbus.policy.registry import NegotiatedSet
from meshbus.testing.rig import rig
from meshbus.wire.constants import PACKET_COST, STREAM_WINDOW, Subprotocol
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.window import Grant, encode_grant
from tests.engine.ends import SERVED, STREAM, Ends


def test_each_peer_has_one_traffic() -> None:
    engine = rig()
    peers = [
        engine.peers.establish(
            node_id, Link(derive_keys(bytes([node_id]) * 32, Role.INITIATOR), Role.INITIATOR, node_id, 0.0), 0.0
        )
        for node_id in (1, 2)
    ]
    one, other = (engine.streams.traffic_of(peer) for peer in peers)
    assert one is not other
    assert engine.streams.traffic_of(peers[0]) is one


def test_the_window_follows_what_was_agreed() -> None:
    ends, out = Ends(window=PROFILE_WINDOW), Output()
    left = ends.left
    assert left.peer.window == PROFILE_WINDOW
    left.peer.negotiated = NegotiatedSet(frozenset({SERVED}))
    left.streams.agreed(left.peer, 0.0, out)
    assert left.peer.window == STREAM_WINDOW
    left.peer.negotiated = NegotiatedSet(frozenset({Subprotocol.RELIABLE}))
    left.streams.agreed(left.peer, 0.0, out)
    assert left.peer.window == PROFILE_WINDOW


def test_a_grant_gives_credit_back() -> None:
    ends = Ends(profile=False)
    left = ends.left
    left.send([bytes(100)])
    stream = left.peer.tx_stream(STREAM)
    spent = stream.window - stream.credit
    assert spent > 0
    grant = Grant(stream_id=STREAM, total_consumed=spent)
    left.streams.receive(left.peer, memoryview(encode_grant(grant)), 0.1, Output())
    assert stream.credit == stream.window


def test_streams_continue_in_a_new_session() -> None:
    ends = Ends()
    left = ends.left
    before = left.traffic
    sent = left.send([b"lost"], reliable=True)
    assert sent.trains
    ends.new_session(1.0)
    outs = ends.agree(1.0)
    assert left.traffic is before
    answers = ends.settle(outs[0], ends.right, 1.0)
    now = 1.0
    while b"lost" not in answers:
        timer = left.streams.next_timer()
        assert timer is not None
        now = max(now, timer)
        answers += ends.settle(left.tick(now), ends.right, now)
    assert answers == [b"lost"]


def test_a_peer_that_failed_keeps_its_streams_and_one_that_is_gone_does_not() -> None:
    ends = Ends(profile=False, window=PACKET_COST + 5)
    left = ends.left
    left.send([b"a", b"b"], name="waiting")
    traffic = left.traffic
    left.streams.peer_down(PeerFailed(left.peer.node_id, DownReason.SILENT), 0.0, Output())
    assert left.traffic is traffic
    assert left.ended == []
    left.drop()
    assert left.ended == [("waiting", False)]
    assert left.streams.next_timer() is None
    left.drop()  # twice is fine
    assert left.traffic is not traffic


def test_only_touched_traffic_is_asked_what_is_due() -> None:
    ends = Ends()
    right = ends.right
    assert right.streams.next_timer() is None
    ends.carry(ends.left.send([b"x"]), right, now=2.0)
    assert right.streams.next_timer() == pytest.approx(2.005)
    assert right.tick(2.004).trains == []
    assert len(right.tick(2.005).trains) == 1
    assert right.streams.next_timer() is None
    ends.carry(ends.left.send([b"y"]), right, now=3.0)
    right.drop()
    right.drop()  # twice is fine
    assert right.streams.next_timer() is None


def test_a_held_stream_is_not_confirmed_until_it_is_released() -> None:
    ends = Ends(profile=False)
    right = ends.right
    right.streams.hold(99, STREAM, 0.0, held=True)  # a peer without traffic
    right.streams.hold(1, STREAM, 0.0, held=True)
    ends.carry(ends.left.send([b"x"]), right, now=1.0)
    assert right.streams.next_timer() is None
    right.streams.hold(1, STREAM, 2.0, held=False)
    timer = right.streams.next_timer()
    assert timer is not None
    assert len(right.tick(timer).trains) == 1


def test_a_batch_is_confirmed_once_for_all_peers_that_sent() -> None:
    ends = Ends()
    out = ends.left.send([bytes([n]) for n in range(20)], reliable=True)
    answer, headers = ends.carry(out, ends.right)
    assert len(headers) > 20  # twenty packets, and what says where the stream begins
    assert len(answer.trains) == 1, "one acknowledgement"
    again = Output()
    ends.right.streams.received(0.0, again)
    assert again.trains == []


def test_messages_on_reliable_streams_arrive_in_order_and_are_bounded() -> None:
    ends, out = Ends(), Output()
    for number in range(3):
        ends.left.streams.send_reliable(ends.left.peer, SERVED, bytes([number]), 0.0, out)
    ends.settle(out, ends.right)
    assert ends.right.probe.served == [(SERVED, bytes([number])) for number in range(3)]
    while ends.left.traffic.outbox.waiting(SERVED) < MAX_MESSAGES:
        ends.left.streams.send_reliable(ends.left.peer, SERVED, bytes(100), 0.0, out)
    with pytest.raises(Backpressure):
        ends.left.streams.send_reliable(ends.left.peer, SERVED, bytes(100), 0.0, out)
