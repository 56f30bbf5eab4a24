"""Test the share of this node's time that the messages of one peer may take."""

from __future__ import annotations

import pytest

from meshbus.engine.base.counters import Counters
from meshbus.engine.services import SERVICES
from meshbus.engine.session.work import (
    BURST_S,
    DEFAULT_US,
    EXCESS_SHARE,
    LARGEST_US,
    PACKET_US,
    WORK_SHARE,
    MessageWork,
    PeerWork,
)
from meshbus.policy.reason import Reason
from meshbus.wire.constants import MAX_EVENTS, MAX_PAYLOAD


def admitted(cost_us: float, offered_per_s: int, seconds: int = 2) -> float:
    """Return the work per second that a peer gets which offers packets of one cost, after its burst."""
    work, now = PeerWork(), 0.0
    while work.afford(cost_us, now):
        pass
    done = 0.0
    for number in range(offered_per_s * seconds):
        now = (number + 1) / offered_per_s
        done += cost_us * work.afford(cost_us, now)
    return done / seconds / 1e6


@pytest.mark.parametrize("cost_us", [40.0, PACKET_US])
def test_packets_that_cost_little_get_the_share_of_all_work(cost_us: float) -> None:
    assert admitted(cost_us, round(2e6 / cost_us)) == pytest.approx(WORK_SHARE, rel=0.05)


@pytest.mark.parametrize("cost_us", [10 * PACKET_US, LARGEST_US])
def test_packets_that_cost_more_than_their_sender_pays_get_a_tenth_of_a_core(cost_us: float) -> None:
    assert admitted(cost_us, 1000) <= EXCESS_SHARE * 1.2


def test_a_burst_is_admitted_whole() -> None:
    work = PeerWork()
    assert all(work.afford(PACKET_US, 5.0) for _ in range(round(BURST_S * WORK_SHARE * 1e6 / PACKET_US)))
    assert not work.afford(PACKET_US, 5.0)


def test_a_packet_that_would_stop_the_node_for_long_is_refused_at_once() -> None:
    assert PeerWork().afford(LARGEST_US, 5.0)
    assert not PeerWork().afford(LARGEST_US + 1, 5.0)


def test_messages_beyond_the_share_are_counted_by_message() -> None:
    counters, work = Counters(), PeerWork()
    messages = MessageWork({7: 50.0}, counters)
    assert messages.admits(work, 7, 2, 0.0)
    assert messages.admits(work, 8, 3, 0.0)  # of no stated cost
    while work.afford(PACKET_US, 0.0):
        pass
    assert not messages.admits(work, 7, 20, 0.0)
    assert not messages.admits(work, 8, round(PACKET_US / DEFAULT_US), 0.0)
    assert counters.snapshot() == {"drop": {Reason.PEER_SHARE.why: 20 + round(PACKET_US / DEFAULT_US)}}


def test_every_packet_fits_into_a_full_burst() -> None:
    """A packet that could never be handled would be repeated for ever on a reliable stream."""
    smallest = 5  # bytes of the shortest message with its frame
    for row in SERVICES:
        if row.id is not None and row.reliable:
            assert PeerWork().afford(row.cost_us * min(MAX_EVENTS, MAX_PAYLOAD // smallest), 0.0), row.name
