"""The verdicts of a run, by hand."""

from bench.funnel.verdicts import Line, verdict_table


def test_a_line_is_met_not_met_or_not_measured() -> None:
    lines = [
        Line("fast", 0.7, "", 0.6),
        Line("slow", 0.5, "M rows/s", 0.6),
        Line("soon", 2.0, "s", 2.0, most=True),
        Line("late", 2.1, "s", 2.0, most=True),
        Line("hoped for", 0.4, "", 0.5, wish=True),
        Line("left out", None, "", 4.0),
    ]
    table = verdict_table(lines)
    assert table.title == "Committed lines: 2 of 6 lines are not met"
    assert [(row[2], row[3]) for row in table.rows] == [
        ("≥ 0.6", "met"),
        ("≥ 0.6 M rows/s", "NOT met"),
        ("≤ 2 s", "met"),
        ("≤ 2 s", "NOT met"),
        ("≥ 0.5", "NOT met (moonshot)"),
        ("≥ 4", "not measured"),
    ]
    assert verdict_table(lines[:1]).title == "Committed lines: all that was measured is met"
