"""Token bucket and failure throttle, with a simulated clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.policy.limits import MAX_FAILURES, NEVER, THROTTLE_S, WINDOW_S, FailureThrottle, TokenBucket
from tests.vectors import load

OBSERVED = load("policy")["auth_throttle"]


# ── token bucket ────────────────────────────────────────────────────────────────────────────


def test_a_bucket_starts_full_and_refills_at_its_rate() -> None:
    bucket = TokenBucket(10)
    assert bucket.take(10, now=100.0)
    assert not bucket.take(1, now=100.0)
    assert bucket.take(5, now=100.5)
    assert not bucket.take(1, now=100.5)
    assert bucket.take(10, now=1000.0)
    assert not bucket.take(1, now=1000.0), "what was not used in a second is not saved up"


def test_taking_is_all_or_nothing_and_admitting_is_as_many_as_fit() -> None:
    bucket = TokenBucket(10)
    assert not bucket.take(11, now=0.0)
    assert bucket.admit(4, now=0.0) == 4
    assert bucket.admit(20, now=0.0) == 6
    assert bucket.admit(20, now=0.0) == 0
    assert bucket.admit(20, now=0.25) == 2
    assert bucket.admit(20, now=0.3) == 1, "the half left over counts"


def test_the_capacity_may_differ_from_the_rate() -> None:
    bucket = TokenBucket(10, capacity=100)
    assert bucket.admit(1000, now=0.0) == 100
    assert bucket.admit(1000, now=1.0) == 10


def test_a_clock_that_steps_back_adds_no_tokens() -> None:
    bucket = TokenBucket(10)
    assert bucket.take(10, now=100.0)
    assert not bucket.take(1, now=0.0)
    assert not bucket.take(1, now=100.0)
    assert bucket.take(1, now=100.1)


@pytest.mark.parametrize(("rate", "capacity"), [(0, None), (0, 5), (-1, 5), (5, 0)])
def test_a_limit_that_lets_nothing_pass_is_refused(rate: float, capacity: float | None) -> None:
    with pytest.raises(ConfigError, match="rate and capacity must be positive"):
        TokenBucket(rate, capacity)


@given(
    st.integers(1, 50), st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 60), st.booleans()), max_size=30),
)  # fmt: skip
def test_no_interval_passes_more_than_capacity_and_refill(
    rate: int, capacity: int, asks: list[tuple[float, int, bool]]
) -> None:
    bucket, now = TokenBucket(rate, capacity), 0.0
    passed: list[tuple[float, int]] = []
    for wait, count, whole in asks:
        now += wait
        passed.append((now, count * bucket.take(count, now) if whole else bucket.admit(count, now)))
    for start in range(len(passed)):
        for end in range(start, len(passed)):
            total = sum(count for _, count in passed[start : end + 1])
            assert total <= capacity + rate * (passed[end][0] - passed[start][0]) + 1e-6


# ── throttle ────────────────────────────────────────────────────────────────────────────────


def test_the_17th_attempt_is_refused_as_observed() -> None:
    throttle = FailureThrottle[int]()
    reasons = []
    for attempt in range(18):
        if throttle.throttled(1, now=attempt / 10):
            reasons.append("rate_limited")
        else:
            reasons.append("unknown_channel")
            throttle.fail(1, now=attempt / 10)
    assert reasons == OBSERVED["reasons_for_18_unknown_channel_subscribes"]
    assert OBSERVED["then_open_channel"] == {"accepted": False, "reason": "rate_limited"}
    assert throttle.throttled(1, now=2.0), "whatever is asked for next"
    assert not throttle.throttled(2, now=2.0), "others are not concerned"


def test_the_throttle_ends_and_one_more_failure_in_the_window_renews_it() -> None:
    throttle = FailureThrottle[str]()
    for _ in range(MAX_FAILURES):
        throttle.fail("peer", now=0.0)
    assert throttle.throttled("peer", now=THROTTLE_S - 0.1)
    assert not throttle.throttled("peer", now=THROTTLE_S)
    throttle.fail("peer", now=THROTTLE_S)
    assert throttle.throttled("peer", now=THROTTLE_S + 1)
    assert not throttle.throttled("peer", now=2 * THROTTLE_S)


def test_failures_count_within_one_window() -> None:
    throttle = FailureThrottle[str]()
    for number in range(MAX_FAILURES - 1):
        throttle.fail("peer", now=float(number))
    throttle.fail("peer", now=WINDOW_S)
    assert not throttle.throttled("peer", now=WINDOW_S)
    for _ in range(MAX_FAILURES - 1):
        throttle.fail("peer", now=WINDOW_S + 1)
    assert throttle.throttled("peer", now=WINDOW_S + 1)


def test_a_success_forgets_the_failures() -> None:
    throttle = FailureThrottle[str]()
    for _ in range(MAX_FAILURES - 1):
        throttle.fail("peer", now=0.0)
    throttle.succeed("peer")
    throttle.succeed("nobody")
    throttle.fail("peer", now=0.0)
    assert not throttle.throttled("peer", now=0.0)


def test_the_limits_are_settings_and_one_value_means_never() -> None:
    strict = FailureThrottle[str](1, window_s=1, throttle_s=2)
    strict.fail("peer", now=0.0)
    assert strict.throttled("peer", now=1.9)
    assert not strict.throttled("peer", now=2.0)
    never = FailureThrottle[str](NEVER)
    for _ in range(NEVER + 1):
        never.fail("peer", now=0.0)
    assert not never.throttled("peer", now=0.0)
    assert len(never) == 0


def test_of_too_many_peers_the_oldest_window_is_forgotten() -> None:
    throttle = FailureThrottle[int](1, max_peers=2)
    throttle.fail(1, now=0.0)
    throttle.fail(2, now=1.0)
    throttle.fail(1, now=WINDOW_S)  # a new window, so now 2 is the oldest
    throttle.fail(3, now=WINDOW_S)
    assert len(throttle) == 2
    assert [throttle.throttled(peer, now=WINDOW_S) for peer in (1, 2, 3)] == [True, False, True]
