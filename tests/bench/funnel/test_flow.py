"""How the time of a run is divided between its queries."""

import pytest

from bench.funnel.flow import Mark, Spent, available_formats, divide, refuse_problems


def test_time_belongs_to_the_query_of_the_line_that_ends_it() -> None:
    began = Mark(10.0, 100.0, {})
    marks = [
        Mark(12.0, 103.0, {"query": "events", "rows": 5}),
        Mark(13.0, 104.0, {"query": "gold", "hours": {}}),
        Mark(16.0, 109.0, {"query": "events_1", "rows": 5}),
        Mark(20.0, 116.0, {"query": "gold", "hours": {}}),
    ]
    assert divide(began, marks, Mark(21.0, 118.0, {})) == Spent(2.0 + 3.0, 3.0 + 5.0, 11.0, 18.0)


def test_a_run_without_lines_is_no_part_of_silver() -> None:
    assert divide(Mark(1.0, 1.0, {}), [], Mark(2.0, 3.0, {})) == Spent(0.0, 0.0, 1.0, 2.0)


def test_a_run_that_had_a_problem_is_not_measured() -> None:
    refuse_problems([Mark(1.0, 1.0, {"query": "gold", "hours": {}})])
    with pytest.raises(RuntimeError, match="'disk full'; the measurement is void"):
        refuse_problems([Mark(1.0, 1.0, {"query": "gold", "problem": "disk full"})])


def test_a_refresh_of_other_tables_shows_no_event() -> None:
    lines = [{"query": "gold", "hours": {name: 1}} for name in ("gold.nodes", "gold.channel_stats")]
    assert [Mark(0.0, 0.0, line).is_gold for line in lines] == [False, True]
    assert not Mark(0.0, 0.0, {"query": "events", "rows": 1}).is_gold


def test_parquet_is_always_a_format() -> None:
    assert available_formats()[0] == "parquet"
