"""Columns of blocks as runs: they hold every cell that was appended, and compiled loops equal their references."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbus.log.embedded import blockruns
from meshbus.log.embedded.blockruns import RunFinder
from meshbus.log.rows import STORED
from tests.log.kernels import references
from tests.log.making import numbered
from tests.log.varied import Append, ranges, surveyed, table_rows, varied_appends
from tests.seeds import for_each_seed


def batch(count: int, **columns: Any) -> Append:
    """An append of so many events with these columns."""
    return Append(numbered(0, count), columns, {})


def cells(finder: RunFinder, low: int, high: int) -> dict[str, list[int | None]]:
    """The stored columns of a range, row by row."""
    found: dict[str, list[int | None]] = {}
    for name, runs in finder.runs(low, high).items():
        there = np.repeat(runs.valid, runs.lengths(high - low)).tolist()
        numbers = runs.cells(high - low).tolist()
        found[name] = [number if valid else None for number, valid in zip(numbers, there, strict=True)]
    return found


@for_each_seed(range(10))
def test_runs_hold_every_cell_of_a_range(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    appends = varied_appends(seed, 15)
    finder = RunFinder(surveyed(tmp_path_factory.mktemp("log"), appends))
    rows = table_rows(appends, b"")
    for low, high in ranges(len(rows)):
        expected = {column.name: [row[column.name] for row in rows[low:high]] for column in STORED}
        assert cells(finder, low, high) == expected


@for_each_seed(range(10))
def test_compiled_loops_find_the_runs_that_their_references_find(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    appends = varied_appends(seed, 12)
    parts = surveyed(tmp_path_factory.mktemp("log"), appends)
    finder, plain = RunFinder(parts), RunFinder(parts)
    for low, high in ranges(parts.rows):
        found = finder.runs(low, high)
        with references(blockruns._gather):
            expected = plain.runs(low, high)
        for name, runs in found.items():
            assert [part.tolist() for part in runs] == [part.tolist() for part in expected[name]], name


def test_a_column_may_have_a_run_per_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockruns, "_FEW", 8)
    times = np.random.default_rng(0).integers(0, 1 << 60, 50)
    parts = surveyed(tmp_path, [batch(25, ts_ns=times[:25]), batch(25, ts_ns=times[25:])])
    for form in (nullcontext(), references(blockruns._gather)):
        finder = RunFinder(parts)
        with form:
            for low, high in ((0, 5), (0, 50), (30, 41)):
                assert cells(finder, low, high)["ts_ns"] == times[low:high].tolist()


def test_values_that_stay_or_count_are_one_run_across_blocks(tmp_path: Path) -> None:
    appends = [
        batch(4, origin=7, packet_seq=np.arange(first, first + 4), ttl=np.full(4, 9)) for first in range(0, 40, 4)
    ]
    runs = RunFinder(surveyed(tmp_path, appends)).runs(3, 37)
    for name, value, step in (("origin", 7, 0), ("packet_seq", 3, 1), ("pub_seq", 3, 1), ("ttl", 9, 0), ("hops", 0, 0)):
        assert (runs[name].values.tolist(), runs[name].steps.tolist()) == ([value], [step]), name
    assert runs["decision"].valid.tolist() == [False]


def test_numbers_that_would_overflow_end_a_run(tmp_path: Path) -> None:
    last = (1 << 63) - 1
    finder = RunFinder(surveyed(tmp_path, [batch(2, packet_seq=np.array([last, last + 1], np.uint64))]))
    assert cells(finder, 0, 2)["packet_seq"] == [last, -last - 1]
    assert finder.runs(0, 2)["packet_seq"].steps.tolist() == [0, 0]
