"""Delta tables: one commit per change, application transactions, bounds for readers, new columns, and vacuum."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest

from meshbus.errors import PipelineError
from meshbus.log.schema import Table
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.formats import delta
from meshbus.spark.lake.formats.delta import DeltaTable
from meshbus.spark.lake.readers import reading
from meshbus.spark.lake.tableschema import Layer, TableSpec
from tests.spark.lake.formats.made import EVENTS, START, commit, event, numbers, write_events


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "silver" / "events", CATALOG[EVENTS])


def log(table: DeltaTable) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(str(table.folder))


def commits(table: DeltaTable) -> list[list[dict[str, Any]]]:
    """The actions of each commit, as they are in the files of the log."""
    paths = sorted((table.folder / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def test_a_batch_is_one_commit_that_names_it(table: DeltaTable) -> None:
    commit(table, 7, [1, 2], query="events")
    (actions,) = commits(table)[1:]
    (transaction,) = [action["txn"] for action in actions if "txn" in action]
    assert (transaction["appId"], transaction["version"]) == ("events", 7)
    (added,) = [action["add"] for action in actions if "add" in action]
    assert added["path"] == "batch=events-000000000007/part.parquet"
    assert log(table).transaction_version("events") == 7


def test_the_log_has_bounds_of_times_and_keys(table: DeltaTable) -> None:
    commit(table, 0, [3, 1, 2])
    (stats,) = [json.loads(action["add"]["stats"]) for action in commits(table)[-1] if "add" in action]
    assert stats["numRecords"] == 3
    assert stats["minValues"]["recv_ts"] == "2026-11-15T10:00:01.000000Z"
    assert stats["maxValues"] | {"recv_ts": ""} == {
        "channel": "load/2", "origin": 7, "recorder": 8, "recv_ts": "", "seq": 3,
    }  # fmt: skip
    assert stats["nullCount"] == {"channel": 0, "origin": 0, "recorder": 0, "recv_ts": 0, "seq": 0, "ts": 3}


def test_readers_skip_files_by_their_bounds_without_losing_rows(table: DeltaTable) -> None:
    for batch in range(3):
        commit(table, batch, range(batch * 10, batch * 10 + 10))
    found = log(table).to_pyarrow_table(filters=[("recv_ts", ">=", START + timedelta(seconds=9))])
    assert sorted(found.column("seq").to_pylist()) == list(range(9, 30))


def test_two_writers_of_one_batch_leave_one(table: DeltaTable) -> None:
    commit(table, 0, [0])
    late = DeltaTable(table.folder, table.spec)
    stale = late._writable()
    commit(table, 1, [1])
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        late._commit(stale, [], {"events": 1})
    assert numbers(late) == [0, 1]


def test_a_compaction_tells_readers_of_changes_that_no_row_changed(table: DeltaTable) -> None:
    for batch in range(2):
        commit(table, batch, [batch])
    table.compact("events", fewest=2, keep=0)
    actions = commits(table)[-1]
    changes = [next(iter(action.values()))["dataChange"] for action in actions if {"add", "remove"} & set(action)]
    assert changes == [False, False, False]


def test_every_change_is_one_commit(table: DeltaTable) -> None:
    for batch in range(4):
        commit(table, batch, range(batch * 10, batch * 10 + 10))
    commit(table, 0, [15], query="repair")
    before = log(table).version()
    staged = table.stage()
    write_events(staged, [event(99, second=15)])
    table.replace(START + timedelta(seconds=15), START + timedelta(seconds=25), staged)
    assert log(table).version() == before + 1
    table.expire(START + timedelta(seconds=35))
    assert log(table).version() == before + 2


def test_a_table_of_an_older_version_gets_the_new_columns(table: DeltaTable) -> None:
    columns = tuple(column for column in table.spec if column.name not in {"value", "codec"})
    older = DeltaTable(table.folder, TableSpec(Layer.SILVER, Table("events", "", columns)))
    commit(older, 0, [1])
    assert "value" not in log(older).to_pyarrow_table().column_names
    commit(table, 1, [2])
    found = log(table).to_pyarrow_table()
    assert found.column("value").to_pylist() == [None, None]
    assert sorted(found.column("seq").to_pylist()) == [1, 2]
    # The older version still writes.
    commit(older, 2, [3])
    assert log(table).to_pyarrow_table().num_rows == 3


def test_replaced_files_stay_for_a_day_and_then_go(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(2):
        commit(table, batch, [batch])
    before = [Path(file.path) for file in table.files()]
    for path in before:
        os.utime(
            path, (1_000_000_000, 1_000_000_000)
        )  # segments of logs may be old; the day begins when they are replaced
    old = log(table)
    table.compact("events", fewest=2, keep=0)
    table.sweep()
    assert old.to_pyarrow_table().num_rows == 2  # a reader that began before
    monkeypatch.setattr(delta, "KEEP_HOURS", 0)
    with reading(table.folder.parents[1]):
        table.sweep()
        assert all(path.exists() for path in before)
    table.sweep()
    assert not any(path.parent.exists() for path in before)
    assert numbers(table) == [0, 1]


def test_files_that_were_never_committed_go(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(table, 0, [0])
    left = table._place(table.parts()[0]._replace(first=1, last=1), _staged(table, 1))
    assert numbers(table) == [0]
    assert commit(table, 1, [1])
    assert numbers(table) == [0, 1]
    assert left[0].exists()
    monkeypatch.setattr(delta, "KEEP_HOURS", 0)
    table.sweep()
    assert not left[0].parent.exists()
    assert numbers(table) == [0, 1]


def _staged(table: DeltaTable, number: int) -> Path:
    staged = table.stage()
    write_events(staged, [event(number)])
    return staged


def test_files_that_another_program_wrote_are_part_of_the_table(table: DeltaTable) -> None:
    commit(table, 0, range(10))
    rows = log(table).to_pyarrow_table()
    deltalake.write_deltalake(str(table.folder), rows.slice(0, 5), mode="append")
    assert sorted({(file.query, file.first) for file in table.files()}) == [("events", 0), ("external", 0)]
    assert len(numbers(table)) == 15
    log(table).optimize.compact()
    assert {file.query for file in table.files()} == {"external"}
    assert (len(numbers(table)), table.last("events")) == (15, 0)
    staged = table.stage()
    write_events(staged, [event(99, second=0)])
    table.replace(START, START + timedelta(seconds=9), staged)
    assert numbers(table) == [9, 99]


def test_the_log_does_not_grow_without_bounds(table: DeltaTable) -> None:
    commit(table, 0, [0])
    configuration = log(table).metadata().configuration
    assert configuration["delta.logRetentionDuration"] == "interval 24 hours"


def test_a_reader_finds_commits_that_others_made_also_if_a_clean_up_removed_some(table: DeltaTable) -> None:
    commit(table, 0, [0])
    reader = DeltaTable(table.folder, table.spec)
    assert numbers(reader) == [0]
    commit(table, 1, [1])
    assert numbers(reader) == [0, 1]
    for batch in (2, 3):
        commit(table, batch, [batch])
    log(table).create_checkpoint()
    for version in range(log(table).version()):
        (table.folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert numbers(reader) == [0, 1, 2, 3]
    assert reader.last("events") == 3


def test_without_delta_rs_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(PipelineError, match="run: pip install 'meshbus\\[delta\\]'"):
        DeltaTable(tmp_path / "silver" / "events", CATALOG[EVENTS])


def test_data_files_are_not_changed_by_their_table(table: DeltaTable) -> None:
    """They may be links to segments of a log."""
    staged = table.stage()
    path = write_events(staged, map(event, range(10)))
    before, inode = pq.read_table(path), path.stat().st_ino
    table.commit("events", 0, 0, staged)
    (file,) = table.files()
    assert Path(file.path).stat().st_ino == inode
    assert pq.ParquetFile(file.path).read() == before
