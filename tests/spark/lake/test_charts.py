"""Charts show what they are given, bound what they show, take any text, and can be drawn."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshbus.spark.lake import charts
from tests.spark.figure import picture, title, values

EVIL = "<script>alert(1)</script>\"'&"
START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)
START_S = START.timestamp()
WORDS: Any = {"title": "What?", "unit": "events", "what": "channel"}


def test_every_chart_can_be_drawn_and_takes_any_text() -> None:
    span = charts.Span(EVIL, START, START + timedelta(seconds=1), EVIL, EVIL)
    drawn = [
        charts.rates([charts.Count(EVIL, START_S, 1)], 1, title=EVIL, unit=EVIL, what=EVIL),
        charts.levels({EVIL: {START_S: 2.0}}, 60, title=EVIL, unit=EVIL, what=EVIL),
        charts.timeline([span], title=EVIL, what=EVIL),
        charts.stacked_bars({(EVIL, EVIL): 3}, title=EVIL, unit=EVIL, what=EVIL),
        charts.percentiles([charts.Percentiles(EVIL, 1.0, 2.0, 3.0)], title=EVIL, unit=EVIL),
        charts.matrix([charts.Cell(EVIL, EVIL, 1, 2)], title=EVIL, unit=EVIL),
        charts.before_after({(EVIL, "now", "passed"): 1}, title=EVIL, unit=EVIL, order=("now", "then")),
        charts.sentence(EVIL, title=EVIL),
    ]
    for chart in drawn:
        assert title(chart) == EVIL
        assert "<script" not in picture(chart)


@pytest.mark.parametrize(
    ("span_s", "finest_s", "step_s"),
    [(0, 1, 1), (6, 1, 1), (300, 1, 1), (301, 1, 5), (1800, 1, 10), (0, 60, 60), (86400, 60, 300), (86400 * 30, 60, 6 * 3600), (86400 * 365, 60, 7 * 86400), (86400 * 36500, 60, 7 * 86400)],
)  # fmt: skip
def test_the_resolution_goes_from_seconds_to_weeks(span_s: float, finest_s: int, step_s: int) -> None:
    assert charts.step_of(span_s, finest_s) == step_s


def test_a_line_has_a_rate_in_each_step_and_stops_where_there_was_nothing() -> None:
    counts = [charts.Count("a", START_S + second, 3) for second in (0, 0.4, 1, 5, 6)]
    rows = values(charts.rates(counts, 1, **WORDS))
    found = [(row["time"] / 1000 - START_S, row["value"]) for row in rows]
    assert found == [(0, 6.0), (1, 3.0), (2, None), (5, 3.0), (6, 3.0)]
    assert rows[0]["at"] == "2026-11-15 23:00:00 UTC"


def test_too_many_series_become_one() -> None:
    counts = [charts.Count(f"channel {number:02}", START_S, number) for number in range(1, 31)]
    rows = values(charts.rates(counts, 1, **WORDS))
    assert len(rows) == charts.SERIES
    assert {row["name"]: row["value"] for row in rows}["all others"] == sum(range(1, 24))


def test_a_matrix_has_numbers_in_each_cell_and_a_color_of_the_share_dropped() -> None:
    cells = [charts.Cell("1", "2", 12_345, 0), charts.Cell("1", "3", 10, 30), charts.Cell("2", "3", 0, 9)]
    rows = {(row["source"], row["dest"]): row for row in values(charts.matrix(cells, title="What?", unit="packets"))}
    assert rows["1", "2"]["text"] == "12.3k passed\n0 dropped"
    assert [row["share"] for row in rows.values()] == [0.0, 0.75, 1.0]
    assert rows["1", "3"]["said"] == "1 → 3: 10 packets passed, 30 dropped"
    known = values(charts.matrix([charts.Cell("1", "2", 7)], title="What?", unit="events"))
    assert (known[0]["text"], known[0]["said"]) == ("7", "1 → 2: 7 events passed")


def test_bars_are_ranked_and_say_their_sum() -> None:
    chart = charts.stacked_bars({("b", "x"): 1, ("a", "x"): 2, ("a", "y"): 3}, **WORDS)
    totals = [(row["name"], row["text"]) for row in values(chart) if "text" in row]
    assert totals == [("a", "5"), ("b", "1")]
    many = charts.stacked_bars({(f"{number}", "x"): number for number in range(1, 60)}, **WORDS)
    assert len([row for row in values(many) if "text" in row]) == charts.BARS


def test_unknown_percentiles_are_left_out_and_negative_ones_are_drawn() -> None:
    found = [
        charts.Percentiles("known", -0.2, 1.0, 30.0),
        charts.Percentiles("unknown", None, None, None),
        charts.Percentiles("partly", 1.0, None, None),
    ]
    chart = charts.percentiles(found, title="How long?")
    assert {row["name"] for row in values(chart)} == {"known", "partly"}
    assert "NaN" not in picture(chart)


def test_two_cases_are_beside_each_other() -> None:
    counts = {("a", "now", "passed"): 5, ("a", "then", "dropped"): 5}
    rows = values(charts.before_after(counts, title="What changes?", unit="packets", order=("now", "then")))
    bars = [(row["case"], row["fate"], row["count"]) for row in rows if "fate" in row]
    assert bars == [("now", "passed", 5), ("then", "dropped", 5)]
    assert [row["text"] for row in rows if "text" in row] == ["now: 5 passed", "then: 5 dropped"]


@pytest.mark.parametrize("color", [*charts.PALETTE, charts.GOOD, charts.BAD])
@pytest.mark.parametrize("paper", ["#ffffff", "#14181d"])
def test_every_color_can_be_seen_on_a_light_and_on_a_dark_page(color: str, paper: str) -> None:
    one, other = sorted((luminance(color), luminance(paper)))
    assert (other + 0.05) / (one + 0.05) >= 3, "the contrast that WCAG asks for of figures"


def luminance(color: str) -> float:
    """Return how bright a color is, as WCAG defines it."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_counts_are_short() -> None:
    assert [charts.short(count) for count in (7, 999, 12_345, 5_000_000, 2 * 10**9)] == [
        "7",
        "999",
        "12.3k",
        "5M",
        "2G",
    ]
