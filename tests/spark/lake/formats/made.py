"""Tables of every format, and files for them that pyarrow wrote."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

from meshbus.log.schema import arrow_schema
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.formats.delta import DeltaTable
from meshbus.spark.lake.formats.folders import FolderTable
from meshbus.spark.lake.formats.iceberg import IcebergTable
from meshbus.spark.lake.formats.parttable import PartTable

FORMATS: dict[str, type[PartTable]] = {"parquet": FolderTable, "delta": DeltaTable, "iceberg": IcebergTable}
EVENTS, RUNS, FAN_OUT, GAPS = "silver.events", "silver.runs", "gold.fan_out", "gold.gaps"
START = datetime(2026, 11, 15, 10, tzinfo=UTC)


def open_table(name: str, root: Path, format: str) -> PartTable:  # noqa: A002 - the name of the setting
    spec = CATALOG[name]
    return FORMATS[format](root / spec.layer / spec.table.name, spec)


def event(number: int, *, second: int | None = None) -> dict[str, Any]:
    """One event; its time is `number` seconds after the start if not given."""
    when = START + timedelta(seconds=number if second is None else second)
    values: dict[str, Any] = {
        "channel": f"load/{number % 3}",
        "seq": number,
        "log_id": number.to_bytes(16, "big"),
        "recv_ts": when,
        "recv_ts_ns": int(when.timestamp() * 1e9),
        "payload": b"p%d" % number,
        "headers": [("k", b"%d" % number)] if number % 2 else None,
    }
    zero = {"origin": 7, "recorder": 8, "chash64": 9, "chash": 1, "src": 2, "dst": 3, "ttl": 0, "hops": 1, "flags": 0}
    return zero | values


def write_events(folder: Path, rows: Iterable[dict[str, Any]], *, name: str = "part", **options: Any) -> Path:
    """Write events as a log's segment has them: without the columns that only silver has."""
    from meshbus.log.schema import EVENTS as COLUMNS

    path = folder / f"{name}.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), schema=arrow_schema(COLUMNS)), path, **options)
    return path


def commit(
    table: PartTable, batch: int, numbers: Iterable[int], *, query: str = "events", last: int | None = None
) -> bool:
    staged = table.stage()
    if made := [event(number) for number in numbers]:
        write_events(staged, made)
    return table.commit(query, batch, batch if last is None else last, staged)


def read(table: PartTable) -> list[dict[str, Any]]:
    """Return all rows, straight from the files."""
    return [row for file in table.files() for row in pq.ParquetFile(file.path).read().to_pylist()]


def numbers(table: PartTable) -> list[int]:
    return sorted(row["seq"] for row in read(table))


def spans(table: PartTable) -> list[tuple[str, int, int]]:
    return sorted({(file.query, file.first, file.last) for file in table.files()})


def seen(table: PartTable, format: str) -> list[int]:  # noqa: A002 - the name of the setting
    """Return the numbers of all rows, as a reader finds them that knows only the library of the format."""
    if format == "delta":
        found = deltalake.DeltaTable(str(table.folder)).to_pyarrow_table(columns=["seq"])
    elif format == "iceberg":
        found = StaticTable.from_metadata(str(table.folder)).scan(selected_fields=("seq",)).to_arrow()
    else:
        return numbers(type(table)(table.folder, table.spec))
    return sorted(found.column("seq").to_pylist())
