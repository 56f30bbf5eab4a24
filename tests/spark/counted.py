"""Rows and counts as Arrow tables, for tests of what is computed from them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.counts import COUNTS
from meshbus.spark.lake.formats.parquetfile import row_schema
from meshbus.spark.lake.narrow import Scan

BY_NAME = {counts.name: counts for counts in COUNTS}


def rows_of(table: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows of a table, as gold tables are computed from them; what is not given is null."""
    spec = CATALOG[table]
    return pa.Table.from_pylist(list(rows), row_schema(spec, hour=spec.hourly))


def counted(names: Iterable[str], rows: pa.Table) -> list[pa.Table]:
    """Count rows for each of some count tables."""
    return [BY_NAME[name].compute(rows) for name in names]


def scanned(folder: Path, table: str, rows: pa.Table) -> Scan:
    """Rows in a file of a table."""
    pq.write_table(rows.drop_columns("hour"), folder / "rows.parquet")
    return Scan(CATALOG[table], [str(folder / "rows.parquet")])


class Unread(Scan):
    """A table that nobody may read."""

    def __init__(self) -> None:
        super().__init__(CATALOG["silver.events"], [])

    def rows(self, columns: Sequence[str], where: Any) -> Any:
        raise AssertionError(f"{columns} of rows that meet {where} were read")
