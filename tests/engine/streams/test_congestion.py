from __future__ import annotations

import pytest

from meshbus.engine.streams.congestion import (
    FIRST_RTO_S,
    LOOPBACK_WINDOW,
    MAX_RTO_S,
    MAX_WINDOW,
    MIN_RTO_S,
    MIN_WINDOW,
    NETWORK_WINDOW,
    RoundTrip,
    Window,
)


def test_the_timeout_is_the_round_trip_plus_four_times_its_variation() -> None:
    trip = RoundTrip()
    assert trip.rto == FIRST_RTO_S
    trip.sample(0.1)
    assert trip.rto == pytest.approx(0.1 + 4 * 0.05)
    trip.sample(0.1)
    assert trip.rto == pytest.approx(0.1 + 4 * 0.0375)
    trip.sample(0.18)
    assert trip.smoothed == pytest.approx(0.11)
    assert trip.rto == pytest.approx(0.11 + 4 * (0.0375 + (0.08 - 0.0375) / 4))


def test_a_round_trip_seen_elsewhere_is_a_first_sample() -> None:
    assert RoundTrip(0.03).rto == pytest.approx(0.09)


def test_the_timeout_stays_within_its_bounds() -> None:
    assert RoundTrip(0.000_05).rto == MIN_RTO_S
    assert RoundTrip(30.0).rto == MAX_RTO_S


def test_each_timeout_doubles_the_next_until_a_sample_comes() -> None:
    trip = RoundTrip(0.001)
    seen = []
    for _ in range(10):
        seen.append(trip.rto)
        trip.timed_out()
    assert seen == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.0, 2.0])
    trip.sample(0.001)
    assert trip.rto == MIN_RTO_S


def test_a_renewed_round_trip_keeps_its_measurements() -> None:
    trip = RoundTrip(0.03)
    trip.timed_out()
    trip.renew()
    assert trip.rto == pytest.approx(0.09)


def test_the_window_doubles_per_round_trip_until_a_loss() -> None:
    window = Window(NETWORK_WINDOW)
    sizes = []
    for _ in range(4):
        sizes.append(window.packets)
        window.grow(window.packets, window.packets)
    assert sizes == [10, 20, 40, 80]


def test_a_loss_halves_the_window_and_slows_its_growth() -> None:
    window = Window(LOOPBACK_WINDOW)
    window.shrink()
    assert window.packets == 32
    for _ in range(32):
        window.grow(1, 32)
    assert window.packets in {32, 33}
    window.grow(33, 33)
    assert window.packets == 33


def test_the_window_keeps_its_floor_and_its_ceiling() -> None:
    window = Window(3)
    for _ in range(5):
        window.shrink()
    assert window.packets == MIN_WINDOW
    window = Window(MAX_WINDOW * 2)
    window.grow(MAX_WINDOW, MAX_WINDOW)
    assert window.packets == MAX_WINDOW
    assert Window(0).packets == MIN_WINDOW


def test_a_window_that_is_not_used_does_not_grow() -> None:
    window = Window(10)
    window.grow(4, 4)
    assert window.packets == 10
    window.grow(4, 5)
    assert window.packets == 14
