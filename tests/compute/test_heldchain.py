from __future__ import annotations

import pytest

from meshbus.compute import heldchain
from meshbus.compute.causal import ChainFault, EntityLog
from meshbus.compute.heldchain import HeldChain, branch_of
from meshbus.engine.base.counters import Counters
from meshbus.wire.messages.causal import CausalEvent, CausalLink, hash_event
from meshbus.wire.messages.continuity import ForkRecord
from meshbus.wire.messages.reconciliation import Point, Range
from tests.compute.test_causal import ORIGIN, chain, log_of


def held(*payloads: bytes, counters: Counters | None = None) -> HeldChain:
    one = HeldChain(EntityLog(ORIGIN), frozenset({2}), counters or Counters())
    for event in chain(*payloads):
        assert one.append(event) is None
    return one


def test_a_chain_tells_what_it_has() -> None:
    one, events = held(b"a", b"b"), chain(b"a", b"b")
    assert one.range() == Range(origin=ORIGIN, first=1, last=2, hash=hash_event(*events[1]))
    empty = held()
    assert empty.range() == Range(origin=ORIGIN, first=1, last=0, hash=empty.log.anchor_hash)
    assert empty.points() == (Point(0, empty.log.anchor_hash),)
    assert one.append(events[0]) == ChainFault.DUPLICATE
    assert one.size == 2


def test_points_reach_back_at_distances_that_double() -> None:
    one = held(*(b"%d" % number for number in range(100)))
    assert [point.sequence for point in one.points()] == [100, 99, 98, 96, 92, 84, 68, 36, 0]
    shorter = held(*(b"%d" % number for number in range(97)))
    assert shorter.shared(one.points()) == 96
    other = held(b"x")
    assert other.shared(one.points()) == 0
    other.restart(Point(0, 5))
    assert other.shared(one.points()) is None


def test_a_chain_can_begin_after_an_event_that_is_known_by_its_hash() -> None:
    events = chain(b"a", b"b")
    one = held()
    one.restart(Point(1, events[1].link.parent_hash))
    assert one.append(events[1]) is None
    assert one.range() == Range(origin=ORIGIN, first=2, last=2, hash=hash_event(*events[1]))


def test_the_oldest_events_go_and_their_last_hash_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldchain, "MAX_CHAIN_EVENTS", 3)
    counters = Counters()
    one, events = held(b"a", b"b", b"c", b"d", b"e", counters=counters), chain(b"a", b"b", b"c", b"d", b"e")
    assert one.log.events == events[2:]
    assert one.log.hash_at(2) == hash_event(*events[1])
    assert counters.get("forget", "chain_events") == 2
    assert one.size == 3


def test_the_bytes_of_a_chain_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldchain, "MAX_CHAIN_BYTES", 100)
    counters = Counters()
    one = held(*(bytes(10) for _ in range(40)), counters=counters)
    assert one.size == sum(len(event.payload) for event in one.log.events) == 100
    assert counters.get("forget", "chain_bytes") == 30


def test_other_events_can_take_the_place_of_some() -> None:
    one = held(b"a", b"b", b"c")
    other = log_of(b"a", b"x").events
    one.replace_after(1, other[1:])
    assert [event.payload for event in one.log.events] == [b"a", b"x"]
    assert one.size == 2


def test_the_same_branch_has_the_same_name_everywhere_and_another_one_not() -> None:
    events = chain(b"a", b"b", b"c")
    branch = branch_of(ORIGIN, events[1:])
    assert branch == branch_of(ORIGIN, events[1:])
    assert branch.record.fork_seq == 2
    others = [
        branch_of(ORIGIN, events),
        branch_of(ORIGIN, events[1:2]),
        branch_of(ORIGIN, [CausalEvent(events[1].link, b"x")]),
        branch_of(1, events[1:]),
    ]
    assert branch.record.forked_origin not in {other.record.forked_origin for other in others}
    one = held(b"a")
    assert one.keep(branch)
    assert not one.keep(branch)
    assert branch.record.forked_origin in one.forks


def test_forks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldchain, "MAX_FORKS", 2)
    counters = Counters()
    one = HeldChain(EntityLog(ORIGIN), frozenset(), counters)
    for number in range(1, 6):
        one.forks.put(number, ForkRecord(original_origin=ORIGIN, forked_origin=number, fork_seq=1))
    assert len(one.forks) == 2
    assert counters.get("forget", "forks") == 3
    assert one.log.anchor.link == CausalLink(ORIGIN)


def test_events_wait_for_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldchain, "MAX_WAITING", 5)
    counters = Counters()
    events = chain(*(b"%d" % number for number in range(12)))
    one = held(b"0", b"1", counters=counters)
    assert (one.take_run(), one.lacks(), one.is_full) == ([], False, False)
    assert one.has(events[1])
    assert not one.has(events[2])
    assert not one.has(CausalEvent(events[1].link, b"x"))
    one.wait(events[4:6])
    one.wait(events[4:6])
    one.wait(events[8:10])
    assert one.lacks()
    one.asked.add(2)
    assert (one.take_run(), one.waiting, one.asked) == (events[4:6], events[8:10], set())
    one.rivals.add(2)
    one.wait(events[6:])
    assert (one.waiting, one.is_full) == (events[8:], False)
    one.rivals.clear()
    one.restart(Point(8, events[8].link.parent_hash))
    assert (one.lacks(), one.size, counters.get("forget", "chain_events")) == (False, 0, 2)
    assert one.has(events[3])  # it was there before


def test_what_waits_is_bounded_while_histories_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldchain, "MAX_WAITING", 2)
    counters = Counters()
    one, events = held(counters=counters), chain(b"a", b"b", b"c")
    one.rivals.add(2)
    one.wait(events)
    assert (one.waiting, one.is_full, counters.get("forget", "chain_waiting")) == (events[1:], True, 1)
