"""The simulated fleet of `bench revoke`, smaller: revoked nodes are cut within a bound, also by those who were away."""

from bench.bench_revoke import simulate

REACHABLE_S = 2.0
"""Within which a record is in effect at every node that can be reached: a few hops, and repetitions of lost packets."""
HEALED_S = 20.0
"""Within which those who were away have it: heartbeats bring their sessions back, and the sets are compared."""


def test_a_node_a_publisher_and_a_subscriber_are_cut_within_the_bound() -> None:
    outcome = simulate(0, size=20, away=1)
    assert len(outcome.reachable) == 3 * 16
    assert len(outcome.healed) == 3
    assert max(outcome.reachable) < REACHABLE_S
    assert max(outcome.healed) < HEALED_S
    assert max(outcome.last_heard, outcome.last_sent) < REACHABLE_S


def test_the_same_seed_gives_the_same_times() -> None:
    assert simulate(7, size=8, away=1) == simulate(7, size=8, away=1)
