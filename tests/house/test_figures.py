"""Every figure in the README is on the page of benchmarks, and every row there names its run."""

import json
import re
from pathlib import Path

from bench.__main__ import bench_names
from tests.house.tree import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
ROW = re.compile(r"^\| (?!operation |---)(.+) \|$", re.MULTILINE)
RUN = re.compile(r"(?:\[`(?P<saved>\w+)`\]\((?P<file>[^)]+)\)|`(?P<bench>\w+)`), (?P<day>\d{4}-\d\d-\d\d)")


def rows(page: Path, after: str) -> list[list[str]]:
    text = page.read_text("utf-8").partition(after)[2].partition("\n## ")[0]
    return [row.split(" | ") for row in ROW.findall(text)]


def test_the_readme_has_no_figure_of_its_own() -> None:
    known = [row[:3] for row in rows(PAGE, "# Benchmarks")]
    shown = [[cell.replace("](docs/", "](") for cell in row] for row in rows(ROOT / "README.md", "## Benchmarks")]
    assert shown
    other = [row[0] for row in shown if row not in known]
    assert not other, f"not as in docs/benchmarks.md: {other}"


def test_every_row_names_its_bench_and_the_day_of_its_run() -> None:
    faults = []
    for row in rows(PAGE, "# Benchmarks"):
        run = RUN.fullmatch(row[-1])
        if run is None or (run["saved"] or run["bench"]) not in bench_names():
            faults.append(f"{row[0]}: no bench and day in {row[-1]!r}")
        elif run["file"] and run["day"] not in _days(PAGE.parent / run["file"]):
            faults.append(f"{row[0]}: {run['file']} has no run of {run['day']}")
    assert not faults, faults


def _days(results: Path) -> set[str]:
    """Return the days of the full runs in a file of results."""
    records = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    return {record["at"][:10] for record in records if not record["quick"]}
