"""Turns of receive buffers: who waits, for how long, and how far a drain may go."""

from __future__ import annotations

import pytest

from meshbus.node.driving.turns import (
    ACTIVE_S,
    GUEST_DATAGRAMS,
    GUEST_S,
    GUEST_SHARE,
    MAX_WAIT_S,
    REFUSED_SHARE,
    Turns,
)


def test_nobody_waits_while_no_events_come_in() -> None:
    turns = Turns()
    turns.note("flood", 0.0, 0.01, 64, events=False, refused=True)
    assert turns.wait_s("flood", 0.01) == 0
    assert turns.room("flood", 0.01) is None


@pytest.mark.parametrize("refused", [False, True])
def test_beside_a_stream_a_guest_gets_its_share_in_short_drains(refused: bool) -> None:
    turns, share, packet_s = Turns(), REFUSED_SHARE if refused else GUEST_SHARE, 0.00005
    now = spent = longest = 0.0
    while now < 10.0:
        turns.note("stream", now, now, 10, events=True, refused=False)
        assert turns.wait_s("stream", now) == 0
        assert turns.room("stream", now) is None
        wait_s = turns.wait_s("guest", now)
        if wait_s:
            now += wait_s
            continue
        taken = turns.room("guest", now) or GUEST_DATAGRAMS
        turns.note("guest", now, now + taken * packet_s, taken, events=False, refused=refused)
        spent += taken * packet_s
        longest = max(longest, taken * packet_s) if now > 1 else 0
        now += taken * packet_s
    assert spent / now == pytest.approx(share, rel=0.1)
    assert longest <= GUEST_S


def test_a_kind_that_costs_far_more_is_met_with_few_datagrams() -> None:
    turns = Turns()
    turns.note("stream", 0.0, 0.0, 1, events=True, refused=False)
    turns.note("guest", 0.0, 0.010, 1, events=False, refused=False)
    assert turns.room("guest", 0.010) == 1
    turns.note("guest", 0.010, 0.010, 1, events=False, refused=False)
    assert turns.room("guest", 0.010) == 2


def test_waits_are_bounded_and_end_with_the_stream() -> None:
    turns = Turns()
    turns.note("stream", 0.0, 0.0, 1, events=True, refused=False)
    turns.note("guest", 0.0, 0.1, 1, events=False, refused=True)
    assert turns.wait_s("guest", 0.1) == pytest.approx(MAX_WAIT_S)
    assert turns.wait_s("guest", ACTIVE_S + 0.01) == 0, "no events for a while"


def test_who_brings_events_or_was_closed_is_no_guest() -> None:
    turns = Turns()
    turns.note("stream", 0.0, 0.0, 1, events=True, refused=False)
    for _ in range(2):
        turns.note("guest", 0.0, 0.001, 1, events=False, refused=False)
        assert turns.room("guest", 0.001) is not None
        turns.note("guest", 0.001, 0.002, 1, events=True, refused=False)
        assert turns.room("guest", 0.002) is None
        turns.note("guest", 0.0, 0.001, 1, events=False, refused=False)
        turns.forget("guest")
        assert turns.room("guest", 0.002) is None


def test_events_among_refused_packets_are_no_stream() -> None:
    turns = Turns()
    turns.note("mixed", 0.0, 0.001, 10, events=True, refused=True)
    turns.note("guest", 0.0, 0.001, 10, events=False, refused=True)
    assert turns.wait_s("guest", 0.001) == 0


def test_acknowledgements_and_messages_within_the_share_never_wait() -> None:
    turns, now = Turns(), 0.0
    while now < 1.0:
        turns.note("stream", now, now, 10, events=True, refused=False)
        assert turns.wait_s("guest", now) == 0, "a tenth of the time is less than its share"
        turns.note("guest", now, now + 0.0001, 1, events=False, refused=False)
        now += 0.001


def test_what_was_taken_while_no_events_came_is_forgiven() -> None:
    turns = Turns()
    for tick in range(100):
        turns.note("guest", tick / 100, (tick + 1) / 100, 64, events=False, refused=False)
    turns.note("stream", 1.0, 1.0, 1, events=True, refused=False)
    last_alone = 0.01 * (1 / GUEST_SHARE - 1)
    assert turns.wait_s("guest", 1.0) == pytest.approx(last_alone)
