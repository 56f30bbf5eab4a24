"""How the cost per row grows, computed by hand."""

import math
import os
from pathlib import Path

import pytest

from bench.funnel.slope import STAGES, Size, disk_bytes, exponent, marginal, tables_of


def test_the_exponent_tells_proportional_from_growing_costs() -> None:
    rows = [1.0, 4.0, 16.0]
    assert exponent(rows, [3.0, 12.0, 48.0]) == pytest.approx(1)
    assert exponent(rows, [1.0, 8.0, 64.0]) == pytest.approx(1.5)
    assert exponent(rows, [2.0, 2.0, 2.0]) == pytest.approx(0)
    assert math.isnan(exponent([5.0], [1.0]))


def test_the_next_million_costs_the_difference_of_the_largest_sizes() -> None:
    assert marginal([1_000_000, 4_000_000], [5.0, 11.0]) == pytest.approx(2.0)
    assert marginal([2_000_000], [5.0]) == pytest.approx(2.5)


def test_a_file_with_two_names_takes_its_space_once(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "tables").mkdir()
    (tmp_path / "log" / "a").write_bytes(bytes(1 << 20))
    os.link(tmp_path / "log" / "a", tmp_path / "tables" / "b")
    (tmp_path / "tables" / "c").write_bytes(bytes(1 << 20))
    both, alone = disk_bytes(tmp_path / "log", tmp_path / "tables"), disk_bytes(tmp_path / "log")
    assert alone >= 1 << 20
    assert (2 << 20) <= both < (3 << 20)


def test_the_table_has_the_cost_per_million_rows_of_every_stage() -> None:
    sizes = [
        Size(rows, dict.fromkeys(STAGES, rows / 2e6), dict.fromkeys(STAGES, rows / 1e6), rows * 70, rows * 80)
        for rows in (1_000_000, 4_000_000)
    ]
    costs, space = tables_of(sizes, "raw")
    assert [row[0] for row in costs.rows] == list(STAGES)
    for row in costs.rows:
        assert list(row[1:]) == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 1.0])
    assert [list(row) for row in space.rows] == [[1_000_000, 70, 80], [4_000_000, 70, 80]]
