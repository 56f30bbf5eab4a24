"""Columns as runs: what they stand for, row by row."""

import numpy as np

from meshbus.log.parquet.runs import Runs, one_run


def test_runs_repeat_their_values_and_add_their_steps() -> None:
    runs = Runs(np.array([0, 3, 4], np.int32), np.array([7, 0, -2]), np.array([True, False, True]), np.array([0, 0, 1]))
    assert runs.lengths(8).tolist() == [3, 1, 4]
    assert runs.cells(8).tolist() == [7, 7, 7, 0, -2, -1, 0, 1]


def test_one_run_is_the_same_for_all_rows_or_counts() -> None:
    assert one_run(5).cells(3).tolist() == [5, 5, 5]
    assert one_run(5, step=1).cells(3).tolist() == [5, 6, 7]
    assert one_run(0, valid=False).valid.tolist() == [False]
