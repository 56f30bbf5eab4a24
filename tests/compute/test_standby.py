"""Copies of a daemon that runs elsewhere: nothing is repeated and nothing skipped when one takes over."""

from __future__ import annotations

import pytest

from meshbus.compute import standby as module
from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.registry import Factory
from meshbus.compute.standby import StandbyCopy, accepts
from meshbus.engine.base.counters import Counters
from meshbus.names.identity import Identity
from tests.compute.counter import OneEach
from tests.vectors import load

IDENTITY = Identity.from_seed(bytes(32))
FACTORY = Factory(create=OneEach)


def event(number: int, origin: int = 5) -> DaemonEvent:
    return DaemonEvent(origin, number, b"x")


def test_a_promoted_copy_goes_on_as_the_reference_observed() -> None:
    vector = load("mesh")["groups"]["standby_promote"]
    active, copy = DaemonHost(IDENTITY, OneEach()), StandbyCopy(Counters())
    for number in range(1, vector["events"] + 1):
        active.deliver(event(number))
        copy.buffer(event(number))
    assert copy.sync(active.snapshot(0))
    assert len(copy) == 0
    for number in range(vector["events"] + 1, vector["events"] + vector["more_events"] + 1):
        copy.buffer(event(number))
    host, emitted = copy.promote(FACTORY, IDENTITY)
    assert [output.link.sequence for output in emitted] == [4, 5]
    assert host.next_link.sequence == vector["next_output"]
    assert len(copy) == 0


def test_it_emits_what_the_first_would_have_emitted() -> None:
    whole, copy = DaemonHost(IDENTITY, OneEach()), StandbyCopy(Counters())
    expected = []
    for number in range(1, 8):
        expected += whole.deliver(event(number))
        copy.buffer(event(number))
        if number == 4:
            copy.sync(whole.snapshot(0))
    assert (copy.through, copy.digest) == (4, expected[4].link.parent_hash)
    _, emitted = copy.promote(FACTORY, IDENTITY)
    assert emitted == expected[4:]


def test_only_a_newer_snapshot_is_taken() -> None:
    host, copy = DaemonHost(IDENTITY, OneEach()), StandbyCopy(Counters())
    assert (copy.through, copy.digest, copy.snapshot) == (0, 0, None)
    host.deliver(event(1))
    first = host.snapshot(0)
    host.deliver(event(2))
    assert copy.sync(host.snapshot(0))
    assert not copy.sync(first)
    assert not copy.sync(host.snapshot(1))
    copy.reset()
    assert copy.sync(first)
    assert not copy.promote(FACTORY, IDENTITY)[1]


def test_a_snapshot_of_a_0_23_node_has_no_horizon() -> None:
    host, copy = DaemonHost(IDENTITY, OneEach()), StandbyCopy(Counters())
    (output,) = host.deliver(event(1))
    assert copy.sync(host.snapshot(0, bare=True))
    assert copy.digest != output.link.parent_hash
    assert copy.promote(FACTORY, IDENTITY)[0].head == host.head


def test_an_event_counts_once() -> None:
    host = DaemonHost(IDENTITY, OneEach())
    assert accepts(host, event(1))
    host.deliver(event(1))
    assert not accepts(host, event(1))
    assert accepts(host, event(1, origin=6))
    copy = StandbyCopy(Counters())
    copy.sync(host.snapshot(0))
    copy.buffer(event(1))
    assert len(copy) == 0


def test_buffered_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BUFFERED_INPUTS", 3)
    counters = Counters()
    copy = StandbyCopy(counters)
    for number in range(1, 6):
        copy.buffer(event(number))
    assert len(copy) == 3
    assert counters.get("forget", "buffered_inputs") == 2
