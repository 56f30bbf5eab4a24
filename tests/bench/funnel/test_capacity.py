"""The page of capacities has the figures of saved runs, and says of which."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.funnel import capacity
from bench.funnel.capacity import BLOCKS, PAGE, RUNS, filled, read_runs
from bench.funnel.slope import IN_PROCESS, ON_CLUSTER, STAGES, Size, tables_of
from bench.funnel.verdicts import Line, verdict_table
from bench.harness import Table, begin, save


def sizes(cpu_s: float) -> list[Size]:
    """Rows that cost so many seconds per million in every stage, and 70 bytes on the disk."""
    return [
        Size(rows, dict.fromkeys(STAGES, rows / 2e6), dict.fromkeys(STAGES, rows / 1e6 * cpu_s), rows * 60, rows * 70)
        for rows in (1_000_000, 4_000_000)
    ]


def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *of: list[Table], **more: Any) -> list[capacity.Run]:
    monkeypatch.setattr("bench.harness.RESULTS", tmp_path)
    for tables in of:
        save(begin("funnel", quick=more.get("quick", False)), tables)
    return read_runs(tmp_path / "funnel.jsonl")


def block(name: str, text: str = "old") -> str:
    return f"before\n<!-- run: {name} -->\n{text}\n<!-- end -->\nafter\n"


def test_a_block_is_written_from_the_last_run_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = verdict_table([Line("sealing", 3.5, "M rows/s", 3.0)])
    other = tables_of(sizes(9.0), "raw", ON_CLUSTER)
    saved = runs(tmp_path, monkeypatch, tables_of(sizes(1.0), "raw"), tables_of(sizes(2.0), "raw"), other, [verdicts])
    page = filled(block("slope"), saved)
    assert page.startswith("before\n<!-- run: slope -->\nRun of 20")
    assert "| seal | 2 | 2 | 2 | 1 |" in page
    assert ON_CLUSTER not in page
    assert page.endswith("<!-- end -->\nafter\n")
    assert filled(page, saved) == page, "writing it again changes nothing"
    assert "| seal | 9 | 9 |" in filled(block("cluster"), saved)
    assert "| sealing | 3.5 | ≥ 3 M rows/s | met |" in filled(block("committed"), saved)


def test_the_day_follows_from_the_cost_of_the_next_million(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [run] = runs(tmp_path, monkeypatch, [*tables_of(sizes(43.2), "raw"), *tables_of(sizes(86.4), "JSON")])
    found = filled(block("days"), [run])
    # Sealing and the way to gold cost 86.4 s of a core per million: a core for 10^9 events a day.
    assert "| raw | 1e09 | 11 574 | 1 | 0.07 |" in found
    assert "| raw | 1e12 | 11 574 074 | 1 000 | 70 |" in found
    assert "| JSON | 1e09 | 11 574 | 2 | 0.07 |" in found


def test_rates_of_all_loads_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(
        "8,000,000 raw events of 64 bytes", ["stage", "M rows/s"], [["append", 38.123], ["seal", float("nan")]]
    )
    found = filled(block("stages"), runs(tmp_path, monkeypatch, [table]))
    assert "8,000,000 raw events of 64 bytes:\n\n| stage | M rows/s |\n| --- | --- |\n| append | 38.1 |" in found
    assert "| seal | – |" in found, "what could not be measured is not a number"


def test_a_block_without_a_run_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = runs(tmp_path, monkeypatch, tables_of(sizes(1.0), "raw", IN_PROCESS), quick=True)
    assert saved == [], "a quick run is no measurement"
    for name in BLOCKS:
        assert filled(block(name), saved) == block(name)
    assert read_runs(tmp_path / "none.jsonl") == []


def test_an_unknown_block_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown block 'day'; choose from stages, committed, slope, cluster, days"):
        filled(block("day"), [])


def test_the_page_has_the_figures_of_the_saved_runs() -> None:
    page = PAGE.read_text("utf-8")
    assert filled(page, read_runs(RUNS)) == page, "run python -m bench.funnel.capacity"
    assert {name for name in BLOCKS if f"<!-- run: {name} -->" in page} == set(BLOCKS)


def test_a_run_without_a_known_load_is_marked_so() -> None:
    run = msgspec.convert(
        {"at": "2026-11-18T04:00:00+00:00", "quick": False, "machine": {}, "tables": []}, capacity.Run
    )
    assert run.mark == "Run of 2026-11-18 04:00 UTC, unknown cores, load unknown at its start."
