"""The Spark source `meshbus`: logs of channels as one table, read as a batch or followed as a stream.

    spark.read.format("meshbus").load("/var/lib/meshbus/log")
    spark.readStream.format("meshbus").option("channels", "sensors/*").load("/var/lib/meshbus/log")

Sealed segments and the hot tail are one range of sequences (log/reader.py), so nothing is read twice or left out.
Workers get splits, which are plain dicts; no worker takes a lock, and the writer is never disturbed. Offsets are in
spark/offsets.py, the way back into a log in spark/sink.py. Spark finds `DefaultSource` by the name of the package
pyspark_meshbus, without registration.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.reader import LogReader, list_channels, read_split
from meshbus.log.schema import EVENTS, Table, arrow_schema, spark_ddl
from meshbus.spark.offsets import Extent, Gap, advance, first_offset, next_of, offset_of, ranges
from meshbus.spark.sink import SinkOptions, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from meshbus.log.snapshot import Snapshot

CONSUMERS = "_consumers"
"""Beside the logs: how far each named query has read, one small file each, for those who show lag."""

_ROWS_PER_PARTITION = 131_072
_TIMES = ("ts", "recv_ts", "ts_ns", "recv_ts_ns")
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


class Options(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What `.option(...)` takes; names are as Spark users write them."""

    path: str
    """The folder of the logs."""
    channels: str = "*"
    """Patterns such as `sensors/*,alarms`; a star also matches slashes."""
    columns: str = ""
    """Only these, in this order; Spark does not tell a Python source which columns a query needs."""
    starting_seq: int | None = None
    """Batches only: the first sequence of each channel."""
    ending_seq: int | None = None
    """Batches only: one past the last sequence of each channel."""
    starting_offsets: str = "earliest"
    """Streams only, and only for a new checkpoint: earliest, latest, or {"channel": sequence} as JSON."""
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    """Bytes on disk, about."""
    rows_per_partition: int = _ROWS_PER_PARTITION
    fail_on_gap: bool = True
    """Whether rows that expired before they were read are an error; otherwise gold.gaps has them."""
    consumer: str = ""
    """Streams only: the name under which the offset is published beside the logs."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Check what Spark hands over, whose keys come in any case; raises ConfigError."""
        known = {field.lower(): field for field in cls.__struct_encode_fields__}
        unknown = sorted(key for key in given if key.lower() not in known)
        if unknown:
            raise ConfigError("option", f"there is no {', '.join(unknown)}; there are {', '.join(known.values())}")
        spelled = {known[key.lower()]: value for key, value in given.items()}
        if not spelled.get("path"):
            raise ConfigError("path", "say where the logs are: .load('/path/of/the/logs')")
        try:
            options = msgspec.convert(spelled, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError("option", str(error)) from None
        if options.rows_per_partition < 1 or (
            options.max_rows_per_trigger is not None and options.max_rows_per_trigger < 1
        ):
            raise ConfigError("option", "rowsPerPartition and maxRowsPerTrigger must be 1 or more")
        if os.sep in options.consumer:
            raise ConfigError("consumer", f"{options.consumer!r} must be a name, not a path")
        return options

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are wanted."""
        return tuple(name.strip() for name in self.columns.split(",") if name.strip())

    def table(self) -> Table:
        """Give the table that is read; raises ConfigError for a column that it does not have."""
        if not self.names:
            return EVENTS
        known = {column.name: column for column in EVENTS}
        unknown = [name for name in self.names if name not in known]
        if unknown:
            raise ConfigError("columns", f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
        return Table(EVENTS.name, EVENTS.doc, tuple(known[name] for name in self.names))

    def wants(self, channel: str) -> bool:
        """Say whether a channel is wanted."""
        return any(fnmatchcase(channel, pattern.strip()) for pattern in self.channels.split(","))


class DefaultSource(DataSource):
    """`format("meshbus")`."""

    @classmethod
    def name(cls) -> str:
        """Give the word for `format`."""
        return "meshbus"

    def schema(self) -> str:
        """Give the columns."""
        return spark_ddl(Options.read(self.options).table())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once."""
        return BatchReader(Options.read(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Follow."""
        return StreamReader(Options.read(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Write back into a log."""
        return StreamWriter(SinkOptions.read(self.options), schema)


class _Logs:
    """The logs that a reader wants, as they are now."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._readers: dict[str, LogReader] = {}

    def snapshots(self) -> dict[str, Snapshot]:
        """Look at all of them; raises LogError when the folder is none."""
        root = Path(self._options.path)
        found = {}
        for entry in list_channels(root):
            if self._options.wants(entry.channel):
                reader = self._readers.setdefault(entry.channel, LogReader(root, entry.channel))
                found[entry.channel] = reader.snapshot()
        return found


def extent_of(snapshot: Snapshot) -> Extent:
    """Say what a snapshot holds."""
    segments = snapshot.manifest.segments
    size = sum(part.bytes for part in segments) + sum(view.place_of(view.blocks) for view in snapshot.hot)
    rows = snapshot.end - (segments[0].first if segments else snapshot.manifest.hot_from)
    return Extent(snapshot.first, snapshot.end, snapshot.manifest.log_id, size / rows if rows else 0.0)


class Comparison(msgspec.Struct, frozen=True):
    """A condition on a column of times, checked before rows are handed to Spark."""

    column: str
    kind: str
    value: Any


def read_rows(split: Mapping[str, Any], table: Table, conditions: Sequence[Comparison] = ()) -> Iterator[Any]:
    """Give the rows of a split as Spark wants them: plain text, and no binary of fixed length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([_plain(field) for field in arrow_schema(table, dictionaries=False)])
    names = dict.fromkeys([*schema.names, *(condition.column for condition in conditions)])
    for whole in read_split(split, list(names), dictionaries=False):
        batch = whole
        for condition in conditions:
            column = batch.column(condition.column)
            batch = batch.filter(getattr(pc, condition.kind)(column, pa.scalar(condition.value, column.type)))
        if len(batch):
            arrays = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(field: Any) -> Any:
    import pyarrow as pa

    return field.with_type(pa.binary()) if pa.types.is_fixed_size_binary(field.type) else field


class BatchReader(DataSourceReader):
    """Reads what is there at the moment of planning."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._table = options.table()
        self._first, self._end = options.starting_seq, options.ending_seq
        self._low = 0
        self._channels: set[str] | None = None
        self._conditions: list[Comparison] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read less by conditions on channel, seq and times; Spark checks them all again."""
        for condition in filters:
            self._take(condition)
        return filters

    def _take(self, condition: Filter) -> None:
        name = getattr(condition, "attribute", ("",))[0]
        value: Any = getattr(condition, "value", None)
        match condition:
            case EqualTo() if name == "channel":
                self._keep({value})
            case In() if name == "channel":
                self._keep(set(condition.value))
            case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual() if name == "seq":
                self._cut(condition, int(value))
            case _ if name in _TIMES and type(condition) in _COMPARISONS and isinstance(value, int | datetime):
                self._conditions.append(Comparison(name, _COMPARISONS[type(condition)], value))

    def _keep(self, channels: set[str]) -> None:
        self._channels = channels if self._channels is None else self._channels & channels

    def _cut(self, condition: Filter, value: int) -> None:
        low: int | None = None
        high: int | None = None
        match condition:
            case EqualTo():
                low, high = value, value + 1
            case GreaterThan():
                low = value + 1
            case GreaterThanOrEqual():
                low = value
            case LessThan():
                high = value
            case _:
                high = value + 1
        if low is not None:
            # A condition may reach below what is there; only an option is a demand for it.
            self._low = max(self._low, low)
        if high is not None:
            self._end = high if self._end is None else min(self._end, high)

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the logs."""
        found = []
        for channel, snapshot in _Logs(self._options).snapshots().items():
            if self._channels is not None and channel not in self._channels:
                continue
            start = self._start(snapshot)
            found += snapshot.splits(start, self._end, rows=self._options.rows_per_partition)
        return [InputPartition(split) for split in found]

    def _start(self, snapshot: Snapshot) -> int:
        wanted = self._first
        if wanted is not None and not self._options.fail_on_gap:
            wanted = max(wanted, snapshot.first)
        return max(snapshot.first if wanted is None else wanted, self._low)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one part, in a worker; Spark makes a part of nothing when there is none."""
        if partition.value is not None:
            yield from read_rows(partition.value, self._table, self._conditions)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the logs from offset to offset."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._table = options.table()
        self._logs = _Logs(options)
        self._until: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Say where a new query begins."""
        return first_offset(self._extents(), self._options.starting_offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Give the limit that the options ask for."""
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember how far the logs reach now: a run that ends by itself does not chase its writer."""
        self._until = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Say how far the next batch reads."""
        extents = self._extents()
        if self._until is not None:
            until = next_of(self._until)
            extents = {
                channel: msgspec.structs.replace(extent, end=min(extent.end, until[channel]))
                for channel, extent in extents.items()
                if channel in until
            }
        match limit:
            case ReadMaxRows():
                return advance(start, extents, rows=limit.max_rows)
            case ReadMaxBytes():
                return advance(start, extents, size=limit.max_bytes)
            case _:
                return advance(start, extents)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Say how far the logs reach, so that lag can be seen."""
        return self._latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide what lies between two offsets; raises LogError where that is gone and gaps are errors."""
        snapshots = self._logs.snapshots()
        wanted, gaps = ranges(start, end, {name: extent_of(snapshot) for name, snapshot in snapshots.items()})
        if gaps and self._options.fail_on_gap:
            raise _gap_error(gaps[0], self._options.path)
        return [
            InputPartition(split)
            for channel, (first, stop) in wanted.items()
            for split in snapshots[channel].splits(first, stop, rows=self._options.rows_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one part, in a worker."""
        if partition.value is not None:
            yield from read_rows(partition.value, self._table)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish how far this query has read."""
        if self._options.consumer:
            publish_offset(Path(self._options.path), self._options.consumer, end)

    def _extents(self) -> dict[str, Extent]:
        return {channel: extent_of(snapshot) for channel, snapshot in self._logs.snapshots().items()}

    def _latest(self) -> dict[str, Any]:
        extents = self._extents()
        return offset_of(
            {channel: extent.end for channel, extent in extents.items()},
            {channel: extent.log_id for channel, extent in extents.items()},
        )


def publish_offset(root: Path, consumer: str, offset: Mapping[str, Any]) -> None:
    """Write beside the logs how far a consumer has read; a folder that cannot be written to is left alone."""
    place = root / CONSUMERS / f"{consumer}.json"
    content = {"consumer": consumer, "next": next_of(offset), "at_ns": time.time_ns()}
    aside = place.with_name(f"_{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(exist_ok=True)
        aside.write_bytes(msgspec.json.encode(content))
        aside.replace(place)
    except OSError:
        return  # a reader needs no more than the right to read; lag is then seen in the query's own progress


def _gap_error(gap: Gap, path: str) -> LogError:
    if not any(entry.channel == gap.channel for entry in list_channels(Path(path))):
        return LogError(
            LogFault.UNKNOWN,
            f"channel {gap.channel!r} is gone from {path}, sequences {gap.first} to {gap.end - 1} were not read:"
            " put it back, or set failOnGap to false to go on without them",
        )
    return LogError(
        LogFault.RANGE_GONE,
        f"channel {gap.channel!r}: sequences {gap.first} to {gap.end - 1} expired before they were read, the first"
        f" available is {gap.end}: set failOnGap to false to go on there, and keep the log longer",
        first_available=gap.end,
    )
