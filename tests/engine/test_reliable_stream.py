"""Both halves of a reliable stream together, over a bad network."""

from __future__ import annotations

import random

import pytest

from meshbus.engine.base.counters import Counters
from meshbus.engine.streams.reorder import ReliableRx
from tests.engine.lossy import STREAM, Lossy
from tests.seeds import for_each_seed

PACKETS = 5000


def assert_complete(sim: Lossy) -> None:
    """Every packet once, in order, with its number; the stream closed, nothing left behind."""
    assert sim.tx.failed is None
    assert sim.tx.done
    assert sim.rx.finished
    assert [index for index, _ in sim.delivered] == list(range(sim.packets))
    assert [number for _, number in sim.delivered] == sim.numbers
    assert (sim.tx.outstanding, sim.tx.unacked_bytes, sim.rx.waiting) == (0, 0, 0)
    assert sim.budget.left == sim.budget.limit


def bad_network(seed: int) -> Lossy:
    window = 64 if seed % 2 else 10
    return Lossy(seed, PACKETS, loss=0.3, duplication=0.1, jitter_s=0.01, skips=0.05, window=window)


@for_each_seed(range(5))
def test_a_network_that_loses_repeats_and_reorders_delivers_everything_once(seed: int) -> None:
    sim = bad_network(seed)
    sim.run()
    assert_complete(sim)
    assert sim.counters.get("retransmit", "gap") > 100
    assert sim.counters.get("drop", "duplicate") > 100


@pytest.mark.soak
@for_each_seed(range(100, 150))
def test_many_bad_networks(seed: int) -> None:
    sim = bad_network(seed)
    sim.run()
    assert_complete(sim)


def test_a_good_network_costs_few_acknowledgements_and_no_resend() -> None:
    sim = Lossy(1, PACKETS, window=64)
    sim.run()
    assert_complete(sim)
    assert sim.counters.snapshot() == {}
    assert sim.acks < PACKETS / 50
    assert sim.now < 1.0


def test_light_loss_is_mended_without_waiting_for_timeouts() -> None:
    sim = Lossy(2, PACKETS, window=64, loss=0.01)
    sim.run()
    assert_complete(sim)
    assert sim.counters.get("retransmit", "gap") > sim.counters.get("retransmit", "timeout")


def test_reordering_alone_loses_nothing() -> None:
    sim = Lossy(3, PACKETS, jitter_s=0.02)
    sim.run()
    assert_complete(sim)


def test_a_small_receiver_is_never_overrun_for_long() -> None:
    sim = Lossy(4, 2000, loss=0.1, jitter_s=0.005, capacity=4, window=64)
    sim.run()
    assert_complete(sim)


def test_a_burst_of_loss_is_survived() -> None:
    sim = Lossy(5, PACKETS, window=64, loses_data=lambda now: int(now * 50) % 5 == 1)
    sim.run()
    assert_complete(sim)
    assert sim.counters.get("retransmit", "timeout") > 0


def test_a_long_silence_in_both_directions_is_survived() -> None:
    def cut(now: float) -> bool:
        return 0.01 < now < 3.0

    sim = Lossy(6, PACKETS, loses_data=cut, loses_answer=cut)
    sim.run()
    assert_complete(sim)


def test_lost_acknowledgements_cost_time_only() -> None:
    answers = random.Random(7)
    sim = Lossy(7, PACKETS, loses_answer=lambda _: answers.random() < 0.5)
    sim.run()
    assert_complete(sim)


def test_a_receiver_that_disappears_fails_the_stream() -> None:
    sim = Lossy(8, PACKETS, loses_data=lambda now: now > 0.02)
    sim.run()
    assert sim.tx.failed is not None
    assert "12 times" in sim.tx.failed
    delivered = [index for index, _ in sim.delivered]
    assert delivered == list(range(len(delivered)))
    assert len(delivered) < PACKETS
    assert sim.now < 30


@for_each_seed(range(5))
def test_a_receiver_that_is_replaced_continues_where_the_sender_is(seed: int) -> None:
    sim = Lossy(seed, 2000, loss=0.1, jitter_s=0.005)
    sim.run(until_delivered=700)
    before = len(sim.delivered)
    sim.rx.close()
    sim.rx = ReliableRx(STREAM, counters=Counters(), budget=sim.budget)
    sim.run()
    assert sim.tx.done
    after = [index for index, _ in sim.delivered[before:]]
    # The new one gets every packet once and in order, from the oldest that the old one had not acknowledged.
    assert after == list(range(after[0], 2000))
    assert after[0] <= before
    assert [number for _, number in sim.delivered[before:]] == sim.numbers[after[0] :]


@for_each_seed(range(5))
def test_a_sender_that_is_replaced_starts_a_new_stream(seed: int) -> None:
    sim = Lossy(seed, 2000, loss=0.1, jitter_s=0.005)
    sim.run(until_delivered=700)
    sim.replace_sender()
    before = len(sim.delivered)
    sim.run()
    assert sim.tx.done
    resumed = [index for index, _ in sim.delivered[before:] if index >= sim.restarted_at]
    assert resumed == list(range(sim.restarted_at, 2000))
    assert [number for index, number in sim.delivered[before:] if index >= sim.restarted_at] == sim.numbers[
        sim.restarted_at :
    ]


def test_a_new_session_in_a_silence_saves_the_stream() -> None:
    sim = Lossy(9, 500, loses_data=lambda now: 0.01 < now < 20.0)
    while sim.tx.failed is None and not sim.tx.done:
        sim.run(for_s=5.0)
        sim.tx.renew(sim.now)
    assert_complete(sim)


def test_a_receiver_that_is_held_stops_the_sender_until_it_is_released() -> None:
    sim = Lossy(10, 2000, loss=0.1, jitter_s=0.005)
    sim.run(until_delivered=500)
    sim.held = True
    sim.run(for_s=10.0)
    stopped = len(sim.delivered)
    sim.run(for_s=60.0)
    assert len(sim.delivered) == stopped < 1000
    assert sim.tx.failed is None
    sim.release()
    sim.run()
    assert_complete(sim)
