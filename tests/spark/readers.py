"""How other engines read the tables of a pipeline: each returns the number of rows and the sum of the payload bytes."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

Totals = tuple[int, int]


def by_duckdb(files: list[str]) -> Totals:
    query = "SELECT count(*), sum(octet_length(payload)) FROM read_parquet(?, union_by_name = true)"
    found = duckdb.execute(query, [files]).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


def by_polars_files(files: list[str]) -> Totals:
    frames = [pl.scan_parquet(file).select(pl.col("payload").bin.size()) for file in files]
    sizes = pl.concat(frames).collect()["payload"]
    return len(sizes), int(sizes.sum())


def _delta(folder: Path) -> dict[str, Callable[[], Totals]]:
    from deltalake import DeltaTable

    def library() -> Totals:
        rows = DeltaTable(str(folder)).to_pyarrow_table(columns=["payload"])
        return len(rows), pc.sum(pc.binary_length(rows["payload"])).as_py()

    def pandas() -> Totals:
        rows = DeltaTable(str(folder)).to_pandas(columns=["payload"])
        return len(rows), int(rows["payload"].map(len).sum())

    def by_polars() -> Totals:
        sizes = pl.scan_delta(str(folder)).select(pl.col("payload").bin.size()).collect()["payload"]
        return len(sizes), int(sizes.sum())

    return {"deltalake": library, "pandas": pandas, "polars": by_polars}


def _iceberg(folder: Path) -> dict[str, Callable[[], Totals]]:
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(str(folder))

    def library() -> Totals:
        rows = table.scan(selected_fields=("payload",)).to_arrow()
        return len(rows), pc.sum(pc.binary_length(rows["payload"])).as_py()

    def pandas() -> Totals:
        rows = table.scan(selected_fields=("payload",)).to_pandas()
        return len(rows), int(rows["payload"].map(len).sum())

    def by_polars() -> Totals:
        os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # else it warns that a plugin of its own is faster
        sizes = pl.scan_iceberg(table).select(pl.col("payload").bin.size()).collect()["payload"]
        return len(sizes), int(sizes.sum())

    return {"pyiceberg": library, "pandas": pandas, "polars": by_polars}


def rows_by_library(kind: str, folder: Path, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a table as the library of its format reads it, or the files of a folder as they are."""
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(folder)).to_pyarrow_table(columns=list(columns))
    if kind == "iceberg":
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(str(folder)).scan(selected_fields=tuple(columns)).to_arrow()
    files = [str(file) for file in sorted(folder.glob("batch=*/**/*.parquet"))]
    query = f"SELECT {', '.join(columns)} FROM read_parquet(?, union_by_name = true)"
    found = duckdb.sql(query, params=[files])
    assert found is not None
    return found.to_arrow_table()


READERS = {"delta": _delta, "iceberg": _iceberg}
"""Readers of each format that know its commits."""
