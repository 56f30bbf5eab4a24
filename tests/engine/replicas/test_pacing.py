"""Who is in step, and for whom appends wait."""

from __future__ import annotations

from meshbus.engine.replicas.pacing import PACE_BYTES, Pacing

NODE, PATIENCE_S = 3, 1.5


def in_step() -> Pacing:
    pacing = Pacing(PATIENCE_S)
    pacing.stored(NODE, 0, 0.0)
    return pacing


def test_nobody_waits_for_a_follower_that_never_was_in_step() -> None:
    pacing = Pacing(PATIENCE_S)
    assert not pacing.waits(NODE, PACE_BYTES + 1, 0.0)
    pacing.stored(NODE, PACE_BYTES, 0.0)
    pacing.stored(NODE, None, 0.0)
    assert not pacing.waits(NODE, None, 0.0)
    pacing.stored(NODE, PACE_BYTES // 2, 0.0)
    assert pacing.waits(NODE, PACE_BYTES + 1, 0.0)


def test_appends_wait_while_it_lacks_too_much() -> None:
    pacing = in_step()
    assert not pacing.waits(NODE, PACE_BYTES, 0.0)
    assert pacing.waits(NODE, PACE_BYTES + 1, 0.0)
    assert pacing.waits(NODE, None, 0.0), "more than is in memory"
    assert not pacing.waits(NODE, PACE_BYTES, 1.0)


def test_it_is_waited_for_as_long_as_it_stores_something() -> None:
    pacing = in_step()
    for tenth in range(100):
        assert pacing.waits(NODE, PACE_BYTES + 1, tenth / 10)
        pacing.stored(NODE, PACE_BYTES + 1, tenth / 10)
    assert pacing.waits(NODE, PACE_BYTES + 1, 9.9 + PATIENCE_S - 0.1)
    assert not pacing.waits(NODE, PACE_BYTES + 1, 9.9 + PATIENCE_S)
    assert pacing.overdue(NODE, 9.9 + PATIENCE_S)


def test_the_patience_counts_from_when_appends_wait() -> None:
    pacing = in_step()
    assert not pacing.overdue(NODE, 99.0)
    assert pacing.waits(NODE, PACE_BYTES + 1, 99.0)
    assert not pacing.waits(NODE, 0, 100.0)
    assert pacing.waits(NODE, PACE_BYTES + 1, 101.0)


def test_one_that_is_lost_has_to_catch_up_first() -> None:
    pacing = in_step()
    assert pacing.waits(NODE, PACE_BYTES + 1, 0.0)
    pacing.lost(NODE)
    assert not pacing.waits(NODE, PACE_BYTES + 1, 0.0)
    assert not pacing.overdue(NODE, 99.0)
