"""Copies on a real server, read by every engine that installs: the same counts and sums for all."""

from collections.abc import Callable
from typing import Any, NamedTuple

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyiceberg.table import StaticTable

from meshbus.log.objectstore import locate
from tests.objectserver import ObjectServer, object_server
from tests.spark.lake.formats.made import EVENTS, commit, event
from tests.spark.lake.mirror.copies import KINDS, access, below, with_copy

__all__ = ["object_server"]
pytestmark = pytest.mark.slow

NUMBERS = [*range(60), *range(100, 130)]


class Sums(NamedTuple):
    """What is compared: enough that a row that is missing, repeated or misread shows."""

    rows: int
    seq: int
    payload: int
    log_ids: int
    third: int
    """Rows of one channel."""


TRUTH = Sums(
    rows=len(NUMBERS),
    seq=sum(NUMBERS),
    payload=sum(len(event(number)["payload"]) for number in NUMBERS),
    log_ids=len(NUMBERS),
    third=sum(number % 3 == 0 for number in NUMBERS),
)


@pytest.fixture(scope="module")
def copies(object_server: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The copy of a table in each format: batches, compacted batches, and files that are no longer part of it."""
    made = {}
    for kind in KINDS:
        uri = object_server.uri(f"engines/{kind}")
        both = with_copy(tmp_path_factory.mktemp(kind) / "tables", uri, kind)
        for batch in range(6):
            commit(both.table, batch, range(batch * 10, batch * 10 + 10))
        both.sync()
        both.table.compact("events", fewest=4, keep=0)
        commit(both.table, 6, range(100, 130))
        both.sync()
        made[kind] = below(uri, EVENTS)
    return made


def by_arrow(rows: pa.Table) -> Sums:
    return Sums(
        rows.num_rows,
        pc.sum(rows.column("seq")).as_py(),
        pc.sum(pc.binary_length(rows.column("payload"))).as_py(),
        len({bytes(value) for value in rows.column("log_id").to_pylist()}),
        pc.sum(pc.equal(rows.column("channel").cast(pa.string()), "load/0")).as_py(),
    )


def by_polars(rows: pl.LazyFrame) -> Sums:
    found = rows.select(
        pl.len(),
        pl.col("seq").sum(),
        pl.col("payload").bin.size().cast(pl.Int64).sum(),
        pl.col("log_id").n_unique(),
        (pl.col("channel").cast(pl.String) == "load/0").sum(),
    )
    return Sums(*found.collect().row(0))


def by_duckdb(connection: duckdb.DuckDBPyConnection, relation: str) -> Sums:
    found = connection.execute(
        "SELECT count(*), sum(seq), sum(octet_length(payload)), count(DISTINCT log_id),"
        f" count(*) FILTER (channel = 'load/0') FROM {relation}"
    ).fetchone()
    assert found is not None
    return Sums(*map(int, found))


def delta_table(uri: str) -> deltalake.DeltaTable:
    found = access(uri)
    return deltalake.DeltaTable(found.location, storage_options=found.delta)


def delta_in_duckdb(uri: str) -> Sums:
    with duckdb.connect() as connection:
        connection.register("events", delta_table(uri).to_pyarrow_dataset())
        return by_duckdb(connection, "events")


def delta_files_in_duckdb(uri: str) -> Sums:
    """The list of files is that of the library, and the files are read by pyarrow alone."""
    system, place = locate(uri)
    paths = [f"{place}/{path}" for path in delta_table(uri).get_add_actions().column("path").to_pylist()]
    schema = pa.schema(delta_table(uri).schema())
    with duckdb.connect() as connection:
        connection.register("events", ds.dataset(paths, schema=schema, filesystem=system, format="parquet"))
        return by_duckdb(connection, "events")


def iceberg_table(uri: str) -> StaticTable:
    found = access(uri)
    return StaticTable.from_metadata(found.location, found.iceberg)


def iceberg_in_duckdb(uri: str) -> Sums:
    with iceberg_table(uri).scan().to_duckdb("events") as connection:
        return by_duckdb(connection, "events")


ENGINES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "delta-rs": ("delta", lambda uri: by_arrow(pa.table(delta_table(uri).to_pyarrow_table()))),
    "delta in polars": (
        "delta",
        lambda uri: by_polars(pl.scan_delta(access(uri).location, storage_options=access(uri).delta)),
    ),
    "delta in pandas": (
        "delta",
        lambda uri: by_arrow(pa.Table.from_pandas(delta_table(uri).to_pandas(), preserve_index=False)),
    ),
    "delta in DuckDB": ("delta", delta_in_duckdb),
    "files of delta in DuckDB": ("delta", delta_files_in_duckdb),
    "PyIceberg": ("iceberg", lambda uri: by_arrow(iceberg_table(uri).scan().to_arrow())),
    "iceberg in polars": (
        "iceberg",
        lambda uri: by_polars(pl.scan_iceberg(iceberg_table(uri), storage_options=access(uri).iceberg)),
    ),
    "iceberg in pandas": (
        "iceberg",
        lambda uri: by_arrow(pa.Table.from_pandas(iceberg_table(uri).scan().to_pandas(), preserve_index=False)),
    ),
    "iceberg in DuckDB": ("iceberg", iceberg_in_duckdb),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_finds_the_same_rows_in_a_copy(
    engine: str, copies: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Polars has a planner of its own in another package, and warns where that is missing.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    kind, read = ENGINES[engine]
    assert read(copies[kind]) == TRUTH
