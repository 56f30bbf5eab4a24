"""The figures of a notebook are those of the report; one without data is a sentence."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from meshbus.errors import PipelineError
from meshbus.spark import Figures
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.replay import Change, Replay
from meshbus.spark.run.control import write_status
from meshbus.spark.run.figures import LAG, policy_changes
from tests.spark.figure import picture, title, values
from tests.spark.world import World

METHODS = (
    "events_over_time",
    "latency",
    "traffic_matrix",
    "denials",
    "gaps",
    "replication_lag",
    "moves",
    "consumer_lag",
)


@pytest.mark.parametrize("name", METHODS)
def test_every_figure_of_tables_can_be_drawn(world: World, name: str) -> None:
    chart = getattr(Figures(world.tables), name)()
    assert title(chart).endswith("?")
    assert picture(chart).startswith("<svg")


@pytest.mark.parametrize("name", METHODS)
def test_a_figure_without_data_is_a_sentence(tmp_path: Path, name: str) -> None:
    Store(tmp_path).create()
    (row,) = values(getattr(Figures(tmp_path), name)())
    assert row["text"].endswith(".")


def test_the_figure_of_a_table_without_one_says_so(world: World) -> None:
    (row,) = values(Figures(world.tables).of("gold.fan_out"))
    assert row["text"] == "gold.fan_out is shown as a table."


def test_the_gaps_of_the_world_are_placed_in_time(world: World) -> None:
    rows = values(Figures(world.tables).gaps())
    assert rows
    assert all(row["begin"] <= row["end"] for row in rows)
    assert all("missing from number" in row["detail"] for row in rows)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is not a table directory"):
        Figures(tmp_path / "none")
    with pytest.raises(PipelineError, match="unknown table"):
        Figures(tmp_path).of("gold.none")


def _status(folder: Path, *queries: dict[str, object]) -> None:
    known = {"rows": 5, "lag_bytes": 0, "lag_s": 0.0, "problem": ""}
    write_status(
        folder, {"state": "stopped", "at": "2026-11-18T07:00:00+00:00", "queries": [known | one for one in queries]}
    )


def test_a_reader_that_is_behind_has_a_bar(tmp_path: Path) -> None:
    _status(tmp_path, {"name": "events-1", "lag": 7}, {"name": "packets-1", "lag": 0})
    chart = Figures(tmp_path).consumer_lag()
    assert title(chart) == LAG
    assert {row["count"] for row in values(chart)} == {7}


def test_a_lag_that_is_not_known_is_said_to_be_unknown(tmp_path: Path) -> None:
    _status(tmp_path, {"name": "events-1", "lag": None})
    shown = Figures(tmp_path).lag()
    assert not shown.charts
    assert "Unknown: the lag of events-1." in shown.notes
    assert shown.rows[0]["rows_behind"] is None


def test_a_policy_that_changes_nothing_has_no_figure() -> None:
    same = Change("a", "1", "2", "forward", "forward", 9, 90)
    shown = policy_changes(Replay(9, 0, (same,), ()))
    assert (shown.charts, shown.notes) == ((), ("The policy changes the verdict of 0 of 9 packets.",))


def test_a_policy_is_shown_where_it_changes_something() -> None:
    more = Change("a", "1", "2", "not_ancestor", "forward", 4, 40)
    same = Change("a", "1", "2", "forward", "forward", 9, 90)
    elsewhere = msgspec.structs.replace(same, channel="b")
    shown = policy_changes(Replay(22, 4, (more, same, elsewhere), ()))
    found = {(row["case"], row["fate"]): row["count"] for row in values(shown.charts[0]) if "fate" in row}
    assert found == {("in force", "dropped"): 4, ("in force", "passed"): 9, ("proposed", "passed"): 13}
    assert [row["packets"] for row in shown.rows] == [4]


def test_a_time_with_a_zone_is_what_the_tables_have(world: World) -> None:
    rows = Figures(world.tables).rows("gold.channel_stats")
    assert all(isinstance(row["window_start"], datetime) and row["window_start"].tzinfo is not None for row in rows)
    assert min(row["window_start"] for row in rows) < datetime.now(UTC)
