"""Tables of real logs, read by every engine that installs: the same rows for all, also in linked files and those of Spark."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.formats.parttable import PartTable
from tests.spark.lake.formats.made import EVENTS, FORMATS, open_table
from tests.spark.packets import read_record, recorded
from tests.spark.world import fill_log, rows_of_logs

PACKETS = "bronze.packets"
RAW, JSON = "raw/blob", "json/state"


class Sums(NamedTuple):
    """What is compared: enough that a row that is missing, repeated or misread shows."""

    rows: int
    seq: int
    payload: int
    nanoseconds: int
    """Of the last microsecond: a sum of whole times would not fit into 64 bits."""
    recv_ts: int
    hops: int
    log_ids: int
    json: int
    values: int


class Logs(NamedTuple):
    folder: Path
    sums: Sums
    packets: tuple[int, int, int]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """Logs of two channels, and a flight recorder's packets; and what they hold, as the log's own readers say."""
    folder = tmp_path_factory.mktemp("logs")
    for channel in (RAW, JSON):
        fill_log(folder, 7, channel, random.Random(channel), count=300)
    rows = [row for row in rows_of_logs(folder) if row["seq"] < 151]  # what is sealed
    recorded(folder / "packets", np.random.default_rng(3), 4_000)
    packets = read_record(folder / "packets").to_pylist()
    sums = Sums(
        rows=len(rows),
        seq=sum(row["seq"] for row in rows),
        payload=sum(len(row["payload"]) for row in rows),
        nanoseconds=sum(row["recv_ts_ns"] % 1000 for row in rows),
        recv_ts=sum(row["recv_ts_ns"] // 1000 for row in rows),
        hops=sum(row["hops"] for row in rows),
        log_ids=len({row["log_id"] for row in rows}),
        json=sum(row["channel"] == JSON for row in rows),
        values=sum(row["channel"] == JSON for row in rows),
    )
    assert sums.rows == 302
    known = [row for row in packets if row["channel"] is not None]
    return Logs(folder, sums, (len(packets), sum(row["payload_len"] for row in packets), len(known)))


def segments(folder: Path, channel: str) -> list[Path]:
    found = [path for path in sorted(folder.rglob("*.parquet")) if "packets" not in path.parts]
    return [path for path in found if pq.read_table(path, columns=["channel"]).column(0)[0].as_py() == channel]


def link_raw(table: PartTable, logs: Logs) -> None:
    """Link the segments of the raw channel, as they are."""
    staged = table.stage()
    for at, path in enumerate(segments(logs.folder, RAW)):
        os.link(path, staged / f"{at}.parquet")
    assert table.commit("events", 0, 0, staged)
    linked = {path.stat().st_ino for path in segments(logs.folder, RAW)}
    assert linked == {Path(file.path).stat().st_ino for file in table.files()}


def add_decoded(table: PartTable, logs: Logs) -> None:
    """Write the other channel with two columns more and the types that Spark has: no ids of fixed length."""
    staged = table.stage()
    for path in segments(logs.folder, JSON):
        rows = pq.ParquetFile(path).read()
        plain = {"log_id": pa.binary(), "channel": pa.string()}
        rows = rows.cast(pa.schema([field.with_type(plain.get(field.name, field.type)) for field in rows.schema]))
        for name, value in (("codec", "json"), ("value", "{}")):
            rows = rows.append_column(name, pa.array([value] * len(rows)))
        pq.write_table(rows, staged / path.name)
    assert table.commit("events", 1, 1, staged)


def add_decoded_by_spark(table: PartTable, logs: Logs, spark: SparkSession) -> None:
    """Do the same with Spark."""
    from pyspark.sql import functions as F

    staged = table.stage()
    rows = spark.read.parquet(*map(str, segments(logs.folder, JSON)))
    rows = rows.withColumn("codec", F.lit("json")).withColumn("value", F.lit("{}"))
    setting = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "TIMESTAMP_MICROS")  # the default is a type that other engines read as times without a zone
    rows.coalesce(2).write.mode("append").parquet(str(staged))
    spark.conf.set(setting, str(before))
    assert table.commit("events", 1, 1, staged)


def fill_packets(table: PartTable, logs: Logs) -> None:
    """Link what is sealed, and write the rest as an ingest does."""
    staged = table.stage()
    sealed = sorted((logs.folder / "packets").rglob("*.parquet"))
    for at, path in enumerate(sealed):
        os.link(path, staged / f"{at}.parquet")
    count = sum(pq.read_metadata(path).num_rows for path in sealed)
    pq.write_table(read_record(logs.folder / "packets").slice(count), staged / "tail.parquet")
    assert sealed
    assert table.commit("packets", 0, 0, staged)


# ── engines ─────────────────────────────────────────────────────────────────────────────────


def by_arrow(rows: pa.Table) -> Sums:
    def total(name: str) -> Any:
        return pc.sum(rows.column(name)).as_py()

    channels, times = rows.column("channel").cast(pa.string()), rows.column("recv_ts_ns")
    return Sums(
        rows=rows.num_rows,
        seq=total("seq"),
        payload=pc.sum(pc.binary_length(rows.column("payload"))).as_py(),
        nanoseconds=pc.sum(pc.subtract(times, pc.multiply(pc.divide(times, 1000), 1000))).as_py(),
        recv_ts=pc.sum(rows.column("recv_ts").cast(pa.int64())).as_py(),
        hops=total("hops"),
        log_ids=len({bytes(value) for value in rows.column("log_id").to_pylist()}),
        json=pc.sum(pc.equal(channels, JSON)).as_py(),
        values=pc.count(rows.column("value")).as_py(),
    )


def by_polars(rows: pl.LazyFrame) -> Sums:
    found = rows.select(
        pl.len(),
        pl.col("seq").sum(),
        pl.col("payload").bin.size().cast(pl.Int64).sum(),
        (pl.col("recv_ts_ns") % 1000).sum(),
        pl.col("recv_ts").cast(pl.Int64).sum(),
        pl.col("hops").cast(pl.Int64).sum(),
        pl.col("log_id").n_unique(),
        (pl.col("channel").cast(pl.String) == JSON).sum(),
        pl.col("value").count(),
    )
    return Sums(*found.collect().row(0))


def by_duckdb(relation: str, connection: duckdb.DuckDBPyConnection) -> Sums:
    found = connection.execute(
        "SELECT count(*), sum(seq), sum(octet_length(payload)), sum(recv_ts_ns % 1000), sum(epoch_us(recv_ts)), sum(hops),"
        f" count(DISTINCT log_id), count(*) FILTER (channel = '{JSON}'), count(value) FROM {relation}"
    ).fetchone()
    assert found is not None
    return Sums(*map(int, found))


def by_pandas(rows: pd.DataFrame) -> Sums:
    return by_arrow(pa.Table.from_pandas(rows, preserve_index=False))


def by_spark(spark: SparkSession, table: PartTable) -> Sums:
    from pyspark.sql import functions as F

    struct = [f"{column.name} {_spark_type(column.type.value)}" for column in table.spec]
    rows = spark.read.schema(", ".join(struct)).parquet(*(file.path for file in table.files()))
    found = rows.agg(
        F.count(F.lit(1)),
        F.sum("seq"),
        F.sum(F.octet_length("payload")),
        F.sum(F.col("recv_ts_ns") % 1000),
        F.sum(F.unix_micros("recv_ts")),
        F.sum("hops"),
        F.countDistinct("log_id"),
        F.count_if(F.col("channel") == JSON),
        F.count("value"),
    ).first()
    assert found is not None
    return Sums(*found)


def _spark_type(name: str) -> str:
    return "binary" if name == "binary(16)" else name


def files_by_duckdb(table: PartTable) -> Sums:
    with duckdb.connect() as connection:
        paths = [file.path for file in table.files()]
        return by_duckdb(f"read_parquet({paths}, union_by_name = true, hive_partitioning = false)", connection)


def files_by_pandas(table: PartTable) -> Sums:
    return by_pandas(pd.concat([pd.read_parquet(file.path) for file in table.files()]))


def read_by_polars(table: PartTable) -> pl.LazyFrame:
    return pl.concat([pl.scan_parquet(file.path) for file in table.files()], how="diagonal_relaxed")


def delta_by_duckdb(table: PartTable) -> Sums:
    with duckdb.connect() as connection:
        connection.register("events", deltalake.DeltaTable(str(table.folder)).to_pyarrow_dataset())
        return by_duckdb("events", connection)


def iceberg_by_duckdb(table: PartTable) -> Sums:
    with static(table).scan().to_duckdb("events") as connection:
        return by_duckdb("events", connection)


def static(table: PartTable) -> StaticTable:
    return StaticTable.from_metadata(str(table.folder))


ENGINES: dict[str, dict[str, Callable[[PartTable], Sums]]] = {
    "parquet": {},
    "delta": {
        "delta-rs": lambda table: by_arrow(deltalake.DeltaTable(str(table.folder)).to_pyarrow_table()),
        "delta-rs to pandas": lambda table: by_pandas(deltalake.DeltaTable(str(table.folder)).to_pandas()),
        "polars": lambda table: by_polars(pl.scan_delta(str(table.folder))),
        "duckdb": delta_by_duckdb,
    },
    "iceberg": {
        "pyiceberg": lambda table: by_arrow(static(table).scan().to_arrow()),
        "pyiceberg to pandas": lambda table: by_pandas(static(table).scan().to_pandas()),
        "polars": lambda table: by_polars(pl.scan_iceberg(static(table))),
        "polars through pyiceberg": lambda table: by_polars(
            pl.scan_iceberg(static(table), reader_override="pyiceberg")
        ),
        "duckdb": iceberg_by_duckdb,
    },
}


@pytest.fixture
def planned_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars has a planner of its own in another package, and warns where that is missing."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def all_sums(table: PartTable) -> dict[str, Sums]:
    """What each engine finds that needs no Java."""
    found = {name: engine(table) for name, engine in ENGINES[table.format].items()}
    found |= {"files by duckdb": files_by_duckdb(table), "files by pandas": files_by_pandas(table)}
    return found | {"files by polars": by_polars(read_by_polars(table))}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.usefixtures("planned_by_pyiceberg")
def test_all_engines_find_the_same_events(kind: str, logs: Logs, tmp_path: Path) -> None:
    table = open_table(EVENTS, tmp_path, kind)
    link_raw(table, logs)
    add_decoded(table, logs)
    for compacted in (False, True):
        if compacted:
            assert table.compact("events", fewest=2, keep=0) == 2
        found = all_sums(table)
        assert found == dict.fromkeys(found, logs.sums)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.usefixtures("planned_by_pyiceberg")
def test_spark_reads_and_writes_files_that_all_engines_read(
    kind: str, logs: Logs, spark: SparkSession, tmp_path: Path
) -> None:
    table = open_table(EVENTS, tmp_path, kind)
    link_raw(table, logs)
    add_decoded_by_spark(table, logs, spark)
    found = all_sums(table) | {"files by spark": by_spark(spark, table)}
    assert found == dict.fromkeys(found, logs.sums)


PACKET_ENGINES: dict[str, Callable[[PartTable], list[pa.Table]]] = {
    "parquet": lambda table: [read_by_polars(table).collect().to_arrow()],
    "delta": lambda table: [
        deltalake.DeltaTable(str(table.folder)).to_pyarrow_table(),
        pl.scan_delta(str(table.folder)).collect().to_arrow(),
    ],
    "iceberg": lambda table: [static(table).scan().to_arrow(), pl.scan_iceberg(static(table)).collect().to_arrow()],
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.usefixtures("planned_by_pyiceberg")
def test_all_engines_find_the_same_packets(kind: str, logs: Logs, tmp_path: Path) -> None:
    table = open_table(PACKETS, tmp_path, kind)
    fill_packets(table, logs)
    for rows in PACKET_ENGINES[kind](table):
        total, known = pc.sum(rows.column("payload_len")).as_py(), pc.count(rows.column("channel")).as_py()
        assert (rows.num_rows, total, known) == logs.packets


GOLD: dict[str, Callable[[PartTable], list[list[dict[str, Any]]]]] = {
    "parquet": lambda table: [[row for file in table.files() for row in pq.ParquetFile(file.path).read().to_pylist()]],
    "delta": lambda table: [
        deltalake.DeltaTable(str(table.folder)).to_pyarrow_table().to_pylist(),
        pl.scan_delta(str(table.folder)).collect().to_dicts(),
    ],
    "iceberg": lambda table: [
        static(table).scan().to_arrow().to_pylist(),
        pl.scan_iceberg(static(table)).collect().to_dicts(),
    ],
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.usefixtures("planned_by_pyiceberg")
def test_all_engines_find_the_same_hours_of_every_gold_table(kind: str, tmp_path: Path) -> None:
    for name, spec in CATALOG.items():
        if spec.layer != "gold":
            continue
        table = open_table(name, tmp_path, kind)
        values = {"string": "x", "double": 0.5, "boolean": True, "binary": b"b", "binary(16)": b"y" * 16}
        row = {column.name: values.get(column.type.value, 7) for column in spec}
        rows = pa.Table.from_pylist([row, row])
        hours = ["2026-11-15T08", "2026-11-15T09"] if spec.hourly else [None]
        for hour in (*hours, *hours):
            table.put_hour(hour, rows, "sources")
        for found in GOLD[kind](table):
            assert len(found) == 2 * len(hours), name
            assert {line.get("hour") for line in found} == set(hours), name
