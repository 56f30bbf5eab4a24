from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.replicas.runs import EpochRuns

RUNS = [(1, 0), (3, 5), (4, 9)]


def test_every_event_has_the_epoch_of_its_run() -> None:
    runs = EpochRuns(RUNS)
    assert [runs.epoch_at(seq) for seq in (-1, 0, 4, 5, 8, 9, 100)] == [0, 1, 1, 3, 3, 4, 4]
    assert [runs.start_of(seq) for seq in (0, 4, 8, 9)] == [0, 0, 5, 9]
    assert [runs.end_of(seq, 12) for seq in (0, 5, 9)] == [5, 9, 12]
    assert (runs.last_epoch, len(runs), list(runs)) == (4, 3, RUNS)
    assert EpochRuns().last_epoch == 0


def test_an_epoch_that_appended_nothing_is_replaced() -> None:
    runs = EpochRuns(RUNS)
    runs.append(5, 12)
    runs.append(5, 12)
    assert runs.last_epoch == 5
    runs.append(7, 12)
    assert list(runs) == [*RUNS, (7, 12)]


def test_setting_events_aside_keeps_the_epoch_that_started_there() -> None:
    runs = EpochRuns(RUNS)
    runs.truncate(9)
    assert list(runs) == RUNS, "that epoch may have counted for a majority"
    runs.truncate(8)
    assert list(runs) == [(1, 0), (3, 5)]
    runs.truncate(0)
    assert list(runs) == [(1, 0)]


def test_retention_keeps_the_epoch_of_the_event_before_the_first() -> None:
    runs = EpochRuns(RUNS)
    runs.trim(5)
    assert list(runs) == RUNS
    runs.trim(6)
    assert list(runs) == RUNS[1:]
    runs.trim(100)
    assert runs.epoch_at(99) == 4


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40))
def test_runs_are_the_column_of_epochs(steps: list[tuple[bool, int]]) -> None:
    runs, column, epoch = EpochRuns(), list[int](), 1
    for adds, number in steps:
        if adds:
            epoch += number % 2
            runs.append(epoch, len(column))
            column += [epoch] * number
        else:
            del column[max(0, len(column) - number) :]
            runs.truncate(len(column))
            epoch += 1
    assert [runs.epoch_at(seq) for seq in range(len(column))] == column
