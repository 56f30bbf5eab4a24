"""Tables by name: what Spark reads of them, hour by hour, and what their directory says about them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from meshbus.errors import PipelineError
from meshbus.log.schema import EVENTS, arrow_schema
from meshbus.spark.lake.tablestore import Store, open_store

NAME = "bronze.events"
START = datetime(2026, 11, 15, 1, 30, tzinfo=UTC)


def put(store: Store, batch: int, *times: datetime, query: str = "events", **more: Any) -> Path:
    """Commit a batch of events with the given times of receipt."""
    schema = arrow_schema(EVENTS, dictionaries=False)
    blank = {field.name: None for field in schema} | {"channel": "a", "payload": b"payload", **more}
    rows = [{**blank, "seq": number, "recv_ts": time} for number, time in enumerate(times)]
    table = store.table(NAME)
    staged = table.stage()
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    pq.write_table(
        pa.Table.from_pylist(rows, nullable), staged / "rows.parquet", write_page_checksum=True, compression="none"
    )
    table.commit(query, batch, batch, staged)
    return Path(store.paths(NAME)[-1])


def test_rows_have_the_hour_of_their_time_and_hours_can_be_chosen(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, 0, START, START + timedelta(hours=1), START + timedelta(hours=3))
    hours = ["2026-11-15T01", "2026-11-15T02", "2026-11-15T04"]
    assert sorted(row["hour"] for row in store.read(spark, NAME).collect()) == hours
    assert sorted(row["hour"] for row in store.read(spark, NAME, hours[:2]).collect()) == hours[:2]
    assert store.read(spark, NAME, ["2026-11-15T03"]).count() == 0
    assert store.read(spark, NAME, []).count() == 0


def test_files_of_earlier_versions_are_read_beside_new_ones(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = put(store, 0, START)
    (old.parent / "hour=2026-11-15T01").mkdir()
    old.rename(old.parent / "hour=2026-11-15T01" / "part.parquet")
    put(store, 1, START + timedelta(hours=1))
    rows = store.read(spark, NAME).collect()
    assert sorted(row["hour"] for row in rows) == ["2026-11-15T01", "2026-11-15T02"]


def test_some_batches_of_a_query_can_be_chosen(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [put(store, batch, START) for batch in range(3)]
    other = put(store, 0, START, query="events_1")
    assert store.paths(NAME) == [str(path) for path in (*made, other)]
    assert store.paths(NAME, query="events", after=0) == [str(path) for path in made[1:]]
    assert [row["seq"] for row in store.rows(NAME)] == [0] * 4


def test_a_changed_bit_is_an_error_and_not_a_changed_event(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = put(store, 0, START, payload=b"0123456789")
    path.write_bytes(path.read_bytes().replace(b"0123456789", b"0123456780"))
    with pytest.raises(Exception, match=r"(?i)could not verify|checksum|crc"):
        store.read(spark, NAME).select("payload").collect()


def test_a_table_without_files_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.read(spark, "silver.events").count() == 0
    assert store.read(spark, "gold.fan_out", ["2026-11-15T01"]).count() == 0
    with pytest.raises(PipelineError, match="unknown table"):
        store.table("silver.nothing")


def test_the_directory_says_which_format_its_tables_have(tmp_path: Path) -> None:
    Store(tmp_path / "tables", table_format="parquet").create()
    assert open_store(tmp_path / "tables").format == "parquet"
    with pytest.raises(PipelineError, match="have the format parquet, not other; choose another directory"):
        Store(tmp_path / "tables", table_format="other")
    with pytest.raises(PipelineError, match="unknown format 'other'; choose from parquet"):
        Store(tmp_path / "new", table_format="other")
    (tmp_path / "tables" / "_tables.json").write_text('{"format": "parquet", "version": 2}')
    with pytest.raises(PipelineError, match="tables of a pipeline, version 2, was written by a newer meshbus"):
        Store(tmp_path / "tables")
    (tmp_path / "tables" / "_tables.json").write_text("junk")
    with pytest.raises(PipelineError, match=r"_tables\.json cannot be read"):
        open_store(tmp_path / "tables")


def test_only_a_directory_is_opened(tmp_path: Path) -> None:
    assert open_store(tmp_path).root == tmp_path
    with pytest.raises(PipelineError, match="none is not a table directory; run 'meshbus pipeline run' first"):
        open_store(tmp_path / "none")
