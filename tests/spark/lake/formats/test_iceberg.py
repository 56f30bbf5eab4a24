"""Iceberg tables: one commit per change, batches as properties, strict types, new columns, and what is removed when."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable
from pyiceberg.types import FixedType

from meshbus.errors import PipelineError
from meshbus.log.schema import Table
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.formats import iceberg, icebergcommit
from meshbus.spark.lake.formats.iceberg import IcebergTable
from meshbus.spark.lake.formats.icebergfolder import FolderCatalog
from meshbus.spark.lake.readers import reading
from meshbus.spark.lake.tableschema import Layer, TableSpec
from tests.spark.lake.formats.made import EVENTS, START, commit, event, numbers, write_events


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable(tmp_path / "silver" / "events", CATALOG[EVENTS])


def found(table: IcebergTable) -> StaticTable:
    """The table as a program finds it that knows only the path."""
    return StaticTable.from_metadata(str(table.folder))


def version(table: IcebergTable) -> int:
    return int((table.folder / "metadata" / "version-hint.text").read_text())


def age(path: Path, hours: float) -> None:
    then = time.time_ns() - int(hours * 3600e9)
    os.utime(path, ns=(then, then))


def test_a_batch_is_one_commit_that_names_it(table: IcebergTable) -> None:
    commit(table, 0, [1])
    before = version(table)
    commit(table, 7, [2, 3])
    assert version(table) == before + 1
    assert found(table).properties["meshbus.batch.events"] == "7"
    assert found(table).scan().to_arrow().column("seq").to_pylist() in ([1, 2, 3], [2, 3, 1])


def test_every_change_is_one_commit(table: IcebergTable) -> None:
    for batch in range(4):
        commit(table, batch, range(batch * 10, batch * 10 + 10))
    commit(table, 0, [15], query="repair")
    before = version(table)
    staged = table.stage()
    write_events(staged, [event(99, second=15)])
    table.replace(START + timedelta(seconds=15), START + timedelta(seconds=25), staged)
    assert version(table) == before + 1
    table.expire(START + timedelta(seconds=35))
    assert version(table) == before + 2
    table.compact("events", fewest=2, keep=0)
    assert version(table) <= before + 3


def test_readers_skip_files_by_their_bounds_without_losing_rows(table: IcebergTable) -> None:
    for batch in range(3):
        commit(table, batch, range(batch * 10, batch * 10 + 10))
    scan = found(table).scan(f"recv_ts >= '{(START + timedelta(seconds=19)).isoformat()}'")
    assert len(list(scan.plan_files())) == 2
    assert sorted(scan.to_arrow().column("seq").to_pylist()) == list(range(19, 30))


def test_files_of_logs_are_linked_and_files_of_spark_get_the_type_of_ids(table: IcebergTable) -> None:
    assert found_type(table) is None
    staged = table.stage()
    ours = write_events(staged, [event(1)], name="segment").stat().st_ino
    rows = pa.Table.from_pylist([event(2)]).select(["channel", "seq", "log_id", "payload"])
    pq.write_table(rows.append_column("codec", pa.array(["json"])), staged / "spark.parquet")
    table.commit("events", 0, 0, staged)
    assert ours in {Path(file.path).stat().st_ino for file in table.files()}
    rows = found(table).scan().to_arrow().sort_by("seq")
    assert rows.column("log_id").to_pylist() == [event(1)["log_id"], event(2)["log_id"]]
    assert rows.column("codec").to_pylist() == [None, "json"]
    assert found_type(table) == FixedType(16)


def found_type(table: IcebergTable) -> object:
    return found(table).schema().find_type("log_id") if table.folder.exists() else None


def test_a_table_of_an_older_version_gets_the_new_columns(table: IcebergTable) -> None:
    columns = tuple(column for column in table.spec if column.name not in {"value", "codec"})
    older = IcebergTable(table.folder, TableSpec(Layer.SILVER, Table("events", "", columns)))
    commit(older, 0, [1])
    assert "value" not in found(older).schema().column_names
    staged = table.stage()
    rows = pa.table({"channel": ["c"], "seq": [2], "value": ["x"]})
    pq.write_table(rows, staged / "part.parquet")
    table.commit("events", 1, 1, staged)
    read = found(table).scan().to_arrow().sort_by("seq")
    assert read.column("value").to_pylist() == [None, "x"]
    commit(older, 2, [3])  # the older version still writes
    assert found(table).scan().count() == 3


def test_replaced_files_stay_for_a_day_and_then_go(table: IcebergTable) -> None:
    for batch in range(2):
        commit(table, batch, [batch])
    before = [Path(file.path).parent for file in table.files()]
    for folder in before:
        age(folder, hours=100)  # the day begins when they are replaced
    old = found(table)
    table.compact("events", fewest=2, keep=0)
    table.sweep()
    assert old.scan().to_arrow().num_rows == 2  # a reader that began before
    for folder in before:
        age(folder, hours=25)
    with reading(table.folder.parents[1]):
        table.sweep()
        assert all(folder.exists() for folder in before)
    table.sweep()
    assert not any(folder.exists() for folder in before)
    assert numbers(table) == [0, 1]
    assert found(table).scan().count() == 2


def test_replaced_hours_of_gold_stay_for_a_day_and_then_go(tmp_path: Path) -> None:
    from tests.spark.lake.formats.test_contract import fan_out

    gold = IcebergTable(tmp_path / "gold" / "fan_out", CATALOG["gold.fan_out"])
    gold.put_hour("2026-11-15T08", fan_out("a"), "x")
    (before,) = [Path(file.path) for file in gold.files()]
    gold.put_hour("2026-11-15T08", fan_out("b"), "y")
    gold.sweep()
    assert before.exists()
    age(before, hours=25)
    gold.sweep()
    assert not before.exists()
    assert found(gold).scan().to_arrow().column("channel").to_pylist() == ["b"]


def test_files_that_were_never_committed_go(table: IcebergTable) -> None:
    commit(table, 0, [0])
    staged = table.stage()
    write_events(staged, [event(1)])
    (left,) = table._place(table.parts()[0]._replace(first=1, last=1), staged)
    assert numbers(table) == [0]
    assert commit(table, 1, [1])
    assert numbers(table) == [0, 1]
    age(left.parent, hours=25)
    table.sweep()
    assert not left.parent.exists()
    assert numbers(table) == [0, 1]


def test_snapshots_and_metadata_do_not_grow_without_bounds(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(icebergcommit, "_SNAPSHOTS", 3)
    for batch in range(20):
        commit(table, batch, [batch])
    assert len(found(table).snapshots()) == 3
    metadata = table.folder / "metadata"
    for path in metadata.glob("*.avro"):
        age(path, hours=2)
    (metadata / "left.tmp").write_bytes(b"")
    age(metadata / "left.tmp", hours=2)
    count = len(list(metadata.iterdir()))
    table.sweep()
    assert len(list(metadata.iterdir())) < count
    assert not (metadata / "left.tmp").exists()
    assert numbers(IcebergTable(table.folder, table.spec)) == list(range(20))
    assert sorted(found(table).scan().to_arrow().column("seq").to_pylist()) == list(range(20))
    assert commit(table, 20, [20])


def test_files_that_another_program_wrote_are_part_of_the_table(table: IcebergTable) -> None:
    commit(table, 0, range(10))
    rows = found(table).scan().to_arrow()
    channel = rows.schema.get_field_index("channel")
    rows = rows.set_column(channel, "channel", rows.column("channel").cast(pa.string()))
    FolderCatalog(table.folder).current(None).append(rows.slice(0, 5))
    assert sorted({(file.query, file.first) for file in table.files()}) == [("events", 0), ("external", 0)]
    assert (len(numbers(table)), table.last("events")) == (15, 0)
    staged = table.stage()
    write_events(staged, [event(99, second=0)])
    table.replace(START, START + timedelta(seconds=9), staged)
    assert numbers(table) == [9, 99]


def test_paths_are_found_however_a_writer_spells_them() -> None:
    assert {str(iceberg._path_of(text)) for text in ("/a/b=c", "file:/a/b=c", "file:///a/b=c")} == {"/a/b=c"}


def test_columns_have_their_meaning(table: IcebergTable) -> None:
    commit(table, 0, [1])
    docs = {field.name: field.doc for field in found(table).schema().fields}
    assert docs == {column.name: column.doc for column in table.spec}


def test_without_pyiceberg_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.noop", None)
    monkeypatch.delitem(sys.modules, "meshbus.spark.lake.formats.icebergfolder", raising=False)
    with pytest.raises(PipelineError, match="run: pip install 'meshbus\\[iceberg\\]'"):
        IcebergTable(tmp_path / "silver" / "events", CATALOG[EVENTS])
