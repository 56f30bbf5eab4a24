"""Copy the tables to Delta Lake, and update the copy, with delta-rs and without Spark.

    <target>/silver/events/_delta_log/…    one Delta table per table, partitioned by hour
    <target>/_copied.json                  the source files of each copied hour

An hour is replaced as a whole, in one commit, when its source files have changed, and deleted when it has expired. A copy
that crashed is completed by the next one, and readers never see a partial hour. Delta has no fixed-size binary type, so
log ids become plain binary. Requires meshbus[delta].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.schema import arrow_schema
from meshbus.spark.lake.tableschema import TableSpec

if TYPE_CHECKING:
    from meshbus.spark.lake.tablestore import Store

COPIED = "_copied.json"
"""The file that says what has been copied; it also marks a directory as ours."""


def copy_to_delta(store: Store, target: Path) -> dict[str, int]:
    """Update the copy of every table, and return how many hours of each were written or deleted.

    Raises PipelineError if delta-rs is not installed or the target is a directory of something else.
    """
    try:
        import deltalake
    except ImportError:
        raise PipelineError(
            PipelineFault.FAILED, "the package deltalake is not installed; run: pip install 'meshbus[delta]'"
        ) from None
    copied = _read_copied(target)
    target.mkdir(parents=True, exist_ok=True)
    _write_copied(target, copied)  # first, so that the next run recognizes a copy that crashed
    changed: dict[str, int] = {}
    for name, spec in store.catalog.items():
        with store.reading():
            files = store.files(name)
            before, now = copied.get(name, {}), {hour: _stamp(paths) for hour, paths in files.items()}
            place = target / spec.layer / spec.table.name
            stale = [hour for hour in now.keys() | before.keys() if now.get(hour) != before.get(hour)]
            for hour in sorted(stale):
                _replace(deltalake, place, spec, hour, files.get(hour, []))
                # After the commit: a crash in between copies the hour again, which gives the same rows.
                copied.setdefault(name, {}).pop(hour, None)
                if hour in now:
                    copied[name][hour] = now[hour]
                _write_copied(target, copied)
        changed[name] = len(stale)
    return changed


def _replace(deltalake: Any, place: Path, spec: TableSpec, hour: str, files: list[Path]) -> None:
    import pyarrow as pa

    schema = _delta_schema(spec)
    rows = pa.RecordBatchReader.from_batches(schema, _batches(files, schema, hour))
    exists = deltalake.DeltaTable.is_deltatable(str(place))
    only = f"hour = '{hour}'" if spec.hourly else None
    if exists and not files:
        deltalake.DeltaTable(str(place)).delete(only)
    elif files:
        divided = ["hour"] if spec.hourly else None
        deltalake.write_deltalake(
            str(place), rows, mode="overwrite", partition_by=divided, predicate=only if exists else None
        )


def _batches(files: list[Path], schema: Any, hour: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        for batch in pq.ParquetFile(file).iter_batches():
            # Files of older versions may lack columns, and files of bronze and silver have the hour in their path only.
            held = set(batch.schema.names)
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in held
                else pa.repeat(pa.scalar(hour if field.name == "hour" else None, field.type), len(batch))
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _delta_schema(spec: TableSpec) -> Any:
    import pyarrow as pa

    fields = [
        pa.field(field.name, pa.binary() if pa.types.is_fixed_size_binary(field.type) else field.type)
        for field in arrow_schema(spec.table, dictionaries=False)
    ]
    return pa.schema([*fields, pa.field("hour", pa.string())] if spec.hourly else fields)


def _stamp(files: list[Path]) -> str:
    """Return a fingerprint of the files of an hour; files of tables are replaced, never modified."""
    return " ".join(sorted(f"{file.parent.parent.name}/{file.name}:{file.stat().st_mtime_ns}" for file in files))


def _read_copied(target: Path) -> dict[str, dict[str, str]]:
    try:
        return msgspec.json.decode((target / COPIED).read_bytes(), type=dict[str, dict[str, str]])
    except FileNotFoundError:
        if target.is_dir() and any(target.iterdir()):
            raise PipelineError(
                PipelineFault.BAD_TABLE, f"{target} is not empty and not a copy of tables; choose another directory"
            ) from None
        return {}
    except msgspec.MsgspecError:
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"{target / COPIED} is damaged; remove {target} and copy again"
        ) from None


def _write_copied(target: Path, copied: Mapping[str, Mapping[str, str]]) -> None:
    aside = target / f"{COPIED}.new"
    aside.write_bytes(msgspec.json.encode(copied))
    aside.replace(target / COPIED)
