"""Who is in step, and for whom appends wait."""

from __future__ import annotations

from meshbus.engine.replicas.pacing import PACE_BYTES, STEP_BYTES, Pacing

NODE, PATIENCE_S = 3, 1.5
MUCH = PACE_BYTES + 1


def in_step() -> Pacing:
    pacing = Pacing(PATIENCE_S)
    pacing.stored(NODE, 0, 0, 0.0)
    return pacing


def test_nobody_waits_for_a_follower_that_never_was_in_step() -> None:
    pacing = Pacing(PATIENCE_S)
    assert not pacing.waits(NODE, MUCH, 0.0)
    pacing.stored(NODE, 1, PACE_BYTES, 0.0)
    pacing.stored(NODE, 1, None, 0.0)
    assert not pacing.waits(NODE, None, 0.0)
    pacing.stored(NODE, 1, PACE_BYTES // 2, 0.0)
    assert pacing.waits(NODE, MUCH, 0.0)


def test_appends_wait_while_it_lacks_too_much() -> None:
    pacing = in_step()
    assert not pacing.waits(NODE, PACE_BYTES, 0.0)
    assert pacing.waits(NODE, MUCH, 0.0)
    assert pacing.waits(NODE, None, 0.0), "more than is in memory"
    assert not pacing.waits(NODE, PACE_BYTES, 1.0)


def test_it_is_waited_for_as_long_as_it_is_fast_enough() -> None:
    pacing = in_step()
    for second in range(10):
        assert pacing.waits(NODE, MUCH, float(second))
        pacing.stored(NODE, STEP_BYTES // 2, MUCH, second + 0.3)
        pacing.stored(NODE, STEP_BYTES // 2, MUCH, second + 0.6)
    assert pacing.waits(NODE, MUCH, 9.5 + PATIENCE_S)
    assert not pacing.waits(NODE, MUCH, 9.6 + PATIENCE_S)
    assert pacing.overdue(NODE, 9.6 + PATIENCE_S)


def test_a_few_bytes_now_and_then_are_not_enough() -> None:
    pacing = in_step()
    now = 0.0
    while pacing.waits(NODE, MUCH, now):
        pacing.stored(NODE, 1000, MUCH, now)
        # Small appends: it lacks a little less than too much, and at once too much again.
        assert not pacing.waits(NODE, PACE_BYTES, now)
        now += 0.1
    assert PATIENCE_S <= now < PATIENCE_S + 0.2


def test_the_patience_begins_anew_after_it_was_well_in_step() -> None:
    pacing = in_step()
    assert not pacing.overdue(NODE, 99.0)
    assert pacing.waits(NODE, MUCH, 99.0)
    pacing.stored(NODE, 1, PACE_BYTES // 2, 100.0)
    assert pacing.waits(NODE, MUCH, 101.0)
    assert not pacing.overdue(NODE, 102.0)


def test_one_that_is_lost_has_to_catch_up_first() -> None:
    pacing = in_step()
    assert pacing.waits(NODE, MUCH, 0.0)
    pacing.lost(NODE)
    assert not pacing.waits(NODE, MUCH, 0.0)
    assert not pacing.overdue(NODE, 99.0)
