"""Sessions of a mesh key that was replaced end with its window, and new ones need the new key."""

from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.base.notices import DownReason, HandshakeFailed, PeerGone
from meshbus.engine.session import keywindow as subject
from meshbus.engine.settings import HandshakeConfig, PreviousKey
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.testing.rig import PSK
from tests.engine.fleet import CHANNEL, meet, numbered, subscribed

NEW = bytes([9]) * 32
WINDOW_S = 100.0
QUICK: dict[str, Any] = {"handshake": HandshakeConfig(tries=1, timeout_s=0.5)}


def previous(net: FakeNet, for_s: float = WINDOW_S) -> PreviousKey:
    return PreviousKey(PSK, net.clock.wall(net.clock.now) + int(for_s * 1e9))


def rotate(*nodes: FakeNode, for_s: float = WINDOW_S) -> None:
    for node in nodes:
        with node.turn() as (engine, now, out):
            engine.set_mesh_keys(NEW, previous(node.net, for_s), now, out)


def count(node: FakeNode, reason: Reason) -> int:
    return node.engine.counters.get(*reason.counter)


def mesh_key(node: FakeNode, other: FakeNode) -> bytes:
    return node.engine.peers.require(other.node_id).link.mesh_key


def test_a_session_stays_until_the_window_ends_and_then_ends_on_both_sides() -> None:
    net = FakeNet(1)
    one, other = net.create("one"), net.create("other")
    meet(one, other)
    rotate(one)
    net.run(for_s=WINDOW_S - 1)
    assert one.has_session_with(other)
    net.run(for_s=2)
    assert one.happened(PeerGone) == [PeerGone(other.node_id, DownReason.RETIRED)]
    assert other.happened(PeerGone) == [PeerGone(one.node_id, DownReason.LEFT)]
    assert count(one, Reason.REFUSE_RETIRED_KEY) == 1


@pytest.mark.parametrize("first", ["new", "old"])
def test_nodes_with_different_keys_meet_within_the_window_whoever_begins(first: str) -> None:
    net = FakeNet(2)
    both, old = net.create("both", psk=NEW, previous_psk=previous(net)), net.create("old")
    beginner, answerer = (both, old) if first == "new" else (old, both)
    beginner.connect(answerer)
    net.run_until(lambda: beginner.has_session_with(answerer))
    assert mesh_key(both, old) == mesh_key(old, both) == PSK
    new = net.create("new", psk=NEW)
    beginner, answerer = (both, new) if first == "new" else (new, both)
    began = net.clock.now
    beginner.connect(answerer)
    net.run_until(lambda: beginner.has_session_with(answerer))
    assert net.clock.now - began < 0.5, "the new key is tried first"
    assert mesh_key(both, new) == mesh_key(new, both) == NEW


@pytest.mark.parametrize("direct", [False, True])
def test_after_the_window_the_old_key_is_refused_with_a_reason_of_its_own(direct: bool) -> None:
    net = FakeNet(3)
    new, old = net.create("new", psk=NEW, previous_psk=previous(net)), net.create("old", **QUICK)
    stranger = net.create("stranger", psk=bytes([5]) * 32, **QUICK)
    for node in (old, stranger):
        new.engine.handshakes.accept(node.node_id, once=False)
    net.run(for_s=WINDOW_S)
    for node, reason in ((old, Reason.HANDSHAKE_RETIRED_KEY), (stranger, Reason.HANDSHAKE_UNVERIFIED)):
        node.connect(new, routed=not direct)
        net.run(for_s=2)
        assert [failed.node_id for failed in node.happened(HandshakeFailed)] == [new.node_id]
        assert count(new, reason) == 1
    assert len(new.engine.peers) == 0
    new.connect(old, handshake=HandshakeConfig(tries=1, timeout_s=0.5))
    net.run(for_s=2)
    assert new.happened(HandshakeFailed)
    assert count(old, Reason.HANDSHAKE_UNVERIFIED) == 1, "the old key is not tried any more"


@pytest.mark.parametrize("end", ["early", "set back"])
def test_a_window_that_ended_early_or_before_the_clock_was_set_back_stays_closed_with_its_reason(end: str) -> None:
    net = FakeNet(8)
    new, old = net.create("new", psk=NEW, previous_psk=previous(net)), net.create("old", **QUICK)
    if end == "early":
        with new.turn() as (engine, now, out):
            engine.set_mesh_keys(NEW, None, now, out)
    else:
        net.run(for_s=WINDOW_S)
        net.clock.unix_s -= 10 * int(WINDOW_S)
    old.connect(new)
    net.run(for_s=2)
    assert old.happened(HandshakeFailed)
    assert count(new, Reason.HANDSHAKE_RETIRED_KEY) == 1
    assert count(new, Reason.HANDSHAKE_UNVERIFIED) == 0


def test_a_session_that_began_with_the_new_key_stays() -> None:
    net = FakeNet(4)
    one, other = net.create("one"), net.create("other")
    rotate(one, other)
    meet(one, other)
    net.run(for_s=2 * WINDOW_S)
    assert one.has_session_with(other)
    assert not one.happened(PeerGone)


def test_a_node_that_accepts_direct_handshakes_uses_the_new_key_at_once() -> None:
    net = FakeNet(5)
    one, other = net.create("one"), net.create("other", psk=NEW)
    one.engine.handshakes.accept(other.node_id)
    rotate(one)
    other.connect(one, routed=False)
    net.run_until(lambda: one.has_session_with(other))


def test_reliable_streams_go_on_in_the_session_that_follows() -> None:
    net = FakeNet(6)
    one, other = net.create("one"), net.create("other")
    meet(one, other)
    subscribed(other, one)
    rotate(one, other)
    sent = []
    for number in range(150):
        event = numbered(1, first=number)
        one.publish(CHANNEL, event, reliable=True)
        sent += event
        net.run(for_s=1)
        if not one.engine.peers.get(other.node_id):
            one.connect(other)
            net.run_until(lambda: one.speaks_profile_with(other))
            subscribed(other, one)
    assert one.happened(PeerGone)
    net.run(for_s=20)
    received = other.payloads(CHANNEL)
    assert received == sorted(set(received)), "each once, in order"
    assert mesh_key(one, other) == NEW


def test_a_session_that_is_established_too_late_ends_at_once() -> None:
    net = FakeNet(7)
    new, old = net.create("new", psk=NEW, previous_psk=previous(net)), net.create("old")
    net.run(for_s=WINDOW_S - 0.01)
    old.connect(new)  # message 1 arrives in the window, the proof of the session after it
    net.run(for_s=10)
    assert new.engine.peers.get(old.node_id) is None


def test_the_time_is_looked_at_again_while_the_window_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is set forward ends the window earlier than its length says."""
    net = FakeNet(8)
    one, other = net.create("one"), net.create("other")
    meet(one, other)
    rotate(one, for_s=1000.0)
    real = net.clock.wall
    ahead = int(2000e9)
    monkeypatch.setattr(one.engine.mesh_keys, "_wall", lambda now: real(now) + ahead)
    net.run(for_s=subject.MAX_SLEEP_S + 1)
    assert one.happened(PeerGone) == [PeerGone(other.node_id, DownReason.RETIRED)]


def test_a_shorter_window_takes_effect_at_once() -> None:
    net = FakeNet(9)
    one, other = net.create("one"), net.create("other")
    meet(one, other)
    rotate(one)
    rotate(one, for_s=0.0)
    net.run(for_s=0.1)
    assert one.happened(PeerGone) == [PeerGone(other.node_id, DownReason.RETIRED)]
