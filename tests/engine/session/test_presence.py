"""Presence: clocks are compared within the round trip, and a goodbye ends a session at once."""

from __future__ import annotations

import pytest

from meshbus.engine.base.notices import DownReason, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.session.presence import PROBE_S, SAMPLES
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.presence import Echo, encode_presence
from tests.engine.fleet import Wiretap, meet, pair

HOUR_NS = 3_600_000_000_000


def clock_of(node: FakeNode, other: FakeNode) -> tuple[int, int]:
    clock = node.engine.peers.require(other.node_id).clock
    assert clock is not None
    return clock.offset_ns, clock.error_ns


@pytest.mark.parametrize("ahead_ns", [0, HOUR_NS, -30 * HOUR_NS])
def test_the_offset_is_within_half_a_round_trip(ahead_ns: int) -> None:
    net = FakeNet(1, path=FakePath(latency_s=0.02, jitter_s=0.03))
    left, right = net.create("left"), net.create("right", clock_ahead_ns=ahead_ns)
    meet(left, right)
    net.run(for_s=30)
    for node, other, truth in ((left, right, ahead_ns), (right, left, -ahead_ns)):
        offset, error = clock_of(node, other)
        assert abs(offset - truth) <= error
        assert error <= 50_000_000


def test_the_shortest_round_trip_of_the_last_samples_counts() -> None:
    net, left, right = pair(path=FakePath(latency_s=0.001))
    assert clock_of(left, right)[1] <= 2_000_000
    net.run(for_s=10)
    net.path = FakePath(latency_s=0.5)
    net.run(for_s=PROBE_S * (SAMPLES - 2))
    assert clock_of(left, right)[1] <= 2_000_000, "slow answers say less"
    net.run(for_s=PROBE_S * SAMPLES)
    assert clock_of(left, right)[1] > 100_000_000, "a sample does not count for ever"


def test_a_plain_peer_has_no_clock_and_receives_nothing() -> None:
    net = FakeNet(2)
    left, right = net.create("left"), net.create("right")
    tap = Wiretap(net)
    meet(left, right, profile=Profile.PLAIN)
    with left.turn() as (engine, now, out):
        engine.disconnect(right.node_id, now, out)
    net.run(for_s=1)
    assert Subprotocol.PRESENCE not in tap.ids()
    assert right.engine.peers.require(left.node_id).clock is None


def test_an_echo_that_was_not_asked_for_changes_nothing() -> None:
    _, left, right = pair()
    before = clock_of(left, right)
    peer = left.engine.peers.require(right.node_id)
    left.engine.reception.handlers[Subprotocol.PRESENCE](
        peer, memoryview(encode_presence(Echo(5, HOUR_NS))), left.net.clock.now, Output()
    )
    assert clock_of(left, right) == before
    assert left.engine.counters.get("drop", "presence_unexpected_echo") == 1


def test_a_malformed_message_is_counted() -> None:
    _, left, right = pair()
    peer = left.engine.peers.require(right.node_id)
    left.engine.reception.handlers[Subprotocol.PRESENCE](peer, memoryview(b"\xff"), left.net.clock.now, Output())
    assert left.engine.counters.get("drop", "presence_malformed") == 1


def test_a_goodbye_removes_the_peer_at_once() -> None:
    net, left, right = pair()
    with left.turn() as (engine, now, out):
        engine.disconnect(right.node_id, now, out)
    net.run(for_s=0.1)
    assert right.happened(PeerGone) == [PeerGone(left.node_id, DownReason.LEFT)]
    assert not right.has_session_with(left)


def test_a_closing_node_sends_goodbye_to_all_peers() -> None:
    net = FakeNet(3)
    nodes = [net.create(name) for name in ("a", "b", "c")]
    meet(*nodes)
    with nodes[0].turn() as (engine, now, out):
        engine.close(now, out)
    net.run(for_s=0.1)
    assert all(node.happened(PeerGone) == [PeerGone(nodes[0].node_id, DownReason.LEFT)] for node in nodes[1:])
