"""The Spark data source `meshbus`: the logs and packet records of a node as a batch or streaming DataFrame.

    spark.read.format("meshbus").load("/var/lib/meshbus")
    spark.readStream.format("meshbus").option("channels", "sensors/*").load("/var/lib/meshbus")
    spark.readStream.format("meshbus").option("table", "packets").load("/var/lib/meshbus")
    results.write.format("meshbus").option("channel", "alerts/summary").mode("append").save("/var/lib/meshbus/log")

The layout below the path is described in spark/io/inputs.py. Sealed files and the hot tail form one range of numbers, so
no row is read twice or left out. Offsets are in spark/io/offsets.py; writing into a log is in spark/io/sink.py. Spark
finds `DefaultSource` through the package pyspark_meshbus, without registration.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
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
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from meshbus.errors import ConfigError
from meshbus.log.consumers import publish_consumer
from meshbus.log.payload import Codec, check_declared
from meshbus.log.schema import EVENTS, ColumnType, Table, spark_ddl
from meshbus.spark.io.inputs import TABLES, Comparison, Input, Logs, Records, match_channels, pack, read_rows
from meshbus.spark.io.offsets import Extent, advance, amount, first_offset, next_of, offset_of, ranges
from meshbus.spark.io.sink import BatchWriter, SinkOptions, StreamWriter
from meshbus.spark.io.typed import DATA, PROBLEM, Typed, kind_of, spark_type, typed_by
from meshbus.spark.lake.codec import read_descriptor

if TYPE_CHECKING:
    from meshbus.spark.io.inputs import Rows

_ROWS_PER_PARTITION = 131_072
"""Two Arrow batches of 65,536 rows each (spark/run/sparksession.py)."""
_STORED = "stored"
"""The codec that stands for the schemas beside the logs."""
_TIMES = ("ts", "recv_ts", "ts_ns", "recv_ts_ns")
_OPTION, _PROVIDER = "option.", "provider"
"""Among the properties of a table: what is before the keys of its options, and a key that only tables have."""
_KEPT = "meshbus.options"
"""Metadata of the first column of a table in the catalog: the options, as JSON."""
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


class Options(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The options of the data source, in camelCase as usual in Spark."""

    path: str
    """The directory that nodes log to."""
    table: Literal["events", "packets"] = "events"
    """`events` reads the logs of channels, `packets` the packet records of nodes."""
    channels: str = "*"
    """Events only: comma-separated patterns such as `sensors/*,alarms`; `*` also matches slashes."""
    columns: str = ""
    """Columns to read, in this order; Spark does not tell a Python source which columns a query needs."""
    starting_seq: int | None = None
    """Batch queries of events only: the first sequence to read of each channel."""
    ending_seq: int | None = None
    """Batch queries of events only: one past the last sequence to read of each channel."""
    starting_offsets: str = "earliest"
    """Streaming queries with a new checkpoint only: earliest, latest, or {"channel": sequence} as JSON, with the names
    of spark/io/inputs.py."""
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    """Approximate bytes on disk."""
    rows_per_partition: int = _ROWS_PER_PARTITION
    """Approximate rows per task; small splits are combined."""
    fail_on_gap: bool = True
    """Whether rows that expired before they were read are an error; if not, gold.gaps lists them."""
    consumer: str = ""
    """Streaming queries only: the name under which progress is published beside the logs."""
    codec: Literal["", "json", "msgpack", "arrow", "protobuf", "stored"] = ""
    """Events only: decode payloads into a column `data`; `stored` uses the schemas beside the logs."""
    payload_schema: str = ""
    """The fields of `data` in Spark's DDL syntax: `temp DOUBLE NOT NULL, unit STRING`. By default those of the message, for
    protobuf, or of the newest stored schema."""
    descriptor: str = ""
    """Protobuf only: path of a file with the FileDescriptorSet."""
    message: str = ""
    """Protobuf only: full name of the message."""
    on_problem: Literal["null", "fail"] = "null"
    """What happens to an event whose payload does not fit: `null` leaves `data` null and says why in the column `problem`,
    `fail` fails the query."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Parse the options from Spark, whose keys are case-insensitive; raises ConfigError."""
        # A misspelled option would otherwise be ignored, and the query would silently read something else.
        known = {field.lower(): field for field in cls.__struct_encode_fields__}
        chosen = _without_sparks_own({key.lower(): value for key, value in given.items()})
        unknown = sorted(key for key in chosen if key not in known)
        if unknown:
            raise ConfigError("option", f"unknown option {', '.join(unknown)}; choose from {', '.join(known.values())}")
        spelled = {known[key]: value for key, value in chosen.items()}
        if not spelled.get("path"):
            raise ConfigError(
                "path",
                "is required; pass the directory of the logs: .load('/var/lib/meshbus'), or CREATE TABLE … USING meshbus"
                " OPTIONS (path '/var/lib/meshbus') without columns of its own",
            )
        try:
            options = msgspec.convert(spelled, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError("option", str(error)) from None
        if options.rows_per_partition < 1 or (
            options.max_rows_per_trigger is not None and options.max_rows_per_trigger < 1
        ):
            raise ConfigError("option", "rowsPerPartition and maxRowsPerTrigger must be at least 1")
        of_events = (options.channels, options.starting_seq, options.ending_seq)
        if options.table != EVENTS.name and of_events != ("*", None, None):
            raise ConfigError(
                "option",
                "channels, startingSeq and endingSeq apply to events only; filter packets by a column",
            )
        options.check_codec()
        if os.sep in options.consumer:
            raise ConfigError("consumer", f"must be a name, not a path, got {options.consumer!r}")
        return options

    def check_codec(self) -> None:
        """Raise ConfigError if the options about payloads do not fit together."""
        about = (self.payload_schema, self.descriptor, self.message)
        if not self.codec and (any(about) or self.on_problem != "null"):
            raise ConfigError(
                "codec",
                "is required with payloadSchema, descriptor, message and onProblem; choose from json, msgpack,"
                " arrow, protobuf, stored",
            )
        if self.codec and self.table != EVENTS.name:
            raise ConfigError("codec", "applies to events only; packets have no payloads")
        if self.codec:
            codec = Codec.JSON if self.codec == _STORED else Codec(self.codec)
            check_declared(codec, self.payload_schema, descriptor=bool(self.descriptor), message=bool(self.message))

    def typed(self) -> Typed | None:
        """Return how payloads are decoded, or None if they are not; reads the descriptor or the stored schemas."""
        if not self.codec:
            return None
        stored = self.codec == _STORED
        return typed_by(
            None if stored else Codec(self.codec),
            self.payload_schema,
            descriptor=read_descriptor(self.descriptor) if self.descriptor else b"",
            message=self.message,
            folders=Logs(self.path, match_channels(self.channels)).folders()
            if stored and not self.payload_schema
            else {},
            fail=self.on_problem == "fail",
        )

    def typed_for(self, schema: StructType) -> Typed | None:
        """Return how payloads are decoded into the columns of a schema, which may be older than the stored one."""
        held = next((field.dataType for field in schema.fields if field.name == DATA), None)
        if not self.codec or held is None:
            return None
        if self.codec == _STORED:
            return Typed(kind_of(held), None, fail=self.on_problem == "fail")
        typed = self.typed()
        assert typed is not None
        if kind_of(held) != kind_of(spark_type(typed.kind)):
            raise ConfigError("schema", f"column data is {typed.kind.ddl} by the options, got {held.simpleString()}")
        return typed

    @property
    def names(self) -> tuple[str, ...]:
        """The requested columns; empty for all."""
        return tuple(name.strip() for name in self.columns.split(",") if name.strip())

    def shape(self) -> Table:
        """Return the table reduced to the requested columns; raises ConfigError for an unknown column."""
        table = TABLES[self.table]
        if not self.names:
            return table
        known = {column.name: column for column in table}
        unknown = [name for name in self.names if name not in known]
        if unknown:
            raise ConfigError("columns", f"unknown column {', '.join(unknown)}; choose from {', '.join(known)}")
        return Table(table.name, table.doc, tuple(known[name] for name in self.names))

    def shape_for(self, schema: StructType) -> Table:
        """Return the table reduced to the columns of a schema, which a user may have given; raises ConfigError.

        Nothing is converted: each column must have the name and the type that it has in the log.
        """
        known = {column.name: column for column in TABLES[self.table]}
        added = {DATA, PROBLEM} if self.codec else set()
        fields = [field for field in schema.fields if field.name not in added]
        for field in fields:
            column, given = known.get(field.name), field.dataType.simpleString()
            if column is None:
                raise ConfigError("schema", f"unknown column {field.name}; choose from {', '.join(known)}")
            held = ColumnType.BINARY if column.type is ColumnType.BINARY_16 else column.type
            if given != held.value:
                raise ConfigError(
                    "schema",
                    f"column {field.name} is {held.value} in the table, got {given}; leave the schema out, and cast"
                    " the column after reading",
                )
            if column.nullable and not field.nullable:
                raise ConfigError("schema", f"column {field.name} may be null; leave NOT NULL out")
        table = TABLES[self.table]
        # Spark compares what is read with its schema, nulls included.
        columns = (msgspec.structs.replace(known[field.name], nullable=field.nullable) for field in fields)
        return Table(table.name, table.doc, tuple(columns))

    def input(self) -> Input:
        """Return the input that the options choose."""
        return Logs(self.path, match_channels(self.channels)) if self.table == EVENTS.name else Records(self.path)


def _without_sparks_own(given: dict[str, str]) -> dict[str, str]:
    """Return the options of a user, by key in lower case, without the properties that Spark adds for a table."""
    # CREATE TABLE: Spark passes the properties of the table, and each option a second time as `option.<key>`.
    if _PROVIDER not in given:
        return given
    chosen = {key.removeprefix(_OPTION): value for key, value in given.items() if key.startswith(_OPTION)}
    place = given.get("path") or given.get("location", "")
    return {"path": place.removeprefix("file:"), **chosen} if place else chosen


def _keeping(options: Mapping[str, str], table: Table, typed: Typed | None) -> StructType:
    """Return a schema that keeps options: when a table of the catalog is read, Spark passes the schema and nothing else."""
    kinds = {
        ColumnType.STRING: StringType(),
        ColumnType.BIGINT: LongType(),
        ColumnType.INT: IntegerType(),
        ColumnType.SMALLINT: ShortType(),
        ColumnType.TIMESTAMP: TimestampType(),
        ColumnType.BINARY: BinaryType(),
        ColumnType.BINARY_16: BinaryType(),
        ColumnType.MAP: MapType(StringType(), BinaryType()),
    }
    kept = [{_KEPT: msgspec.json.encode(options).decode()}, *({} for _ in table.columns[1:])]
    return StructType(
        [
            StructField(column.name, kinds[column.type], column.nullable, {"comment": column.doc, **more})
            for column, more in zip(table, kept, strict=True)
        ]
        + ([] if typed is None else typed.struct.fields)
    )


class DefaultSource(DataSource):
    """`format("meshbus")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "meshbus"

    def schema(self) -> StructType | str:
        """Return the columns: in Spark's DDL syntax, or for CREATE TABLE with the options of the table."""
        given = {key.lower(): value for key, value in self.options.items()}
        options = Options.read(given)
        shape, typed = options.shape(), options.typed()
        if _PROVIDER in given:
            return _keeping(_without_sparks_own(given), shape, typed)
        return spark_ddl(shape) if typed is None else f"{spark_ddl(shape)}, {typed.ddl}"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of batch queries."""
        options = self._options_for(schema)
        return BatchReader(options, options.shape_for(schema), options.typed_for(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of streaming queries."""
        options = self._options_for(schema)
        return StreamReader(options, options.shape_for(schema), options.typed_for(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of batch queries. Raises ConfigError for mode `overwrite`: a log only grows."""
        if overwrite:
            raise ConfigError("mode", "a log cannot be overwritten; use .mode('append')")
        return BatchWriter(SinkOptions.read(self.options, streaming=False), schema)

    def _options_for(self, schema: StructType) -> Options:
        """Return the options of a query, or if it has none, those that a table keeps with its schema."""
        kept = schema.fields[0].metadata.get(_KEPT) if schema.fields else None
        return Options.read(self.options if self.options or kept is None else msgspec.json.decode(kept))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of streaming queries."""
        return StreamWriter(SinkOptions.read(self.options), schema)


class BatchReader(DataSourceReader):
    """Reads the rows that are there when the query is planned."""

    def __init__(self, options: Options, table: Table | None = None, typed: Typed | None = None) -> None:
        """Prepare to read a table with some of its columns, by default those of the options, and typed payloads."""
        self._options = options
        self._table = options.shape() if table is None else table
        self._typed = typed
        self.pushFilters = Pushdown(self)  # type: ignore[method-assign]  # see there
        self._named_by = "channel" if options.table == EVENTS.name else "recorder"
        self._first, self._end = options.starting_seq, options.ending_seq
        self._low = 0
        self._whose: set[Any] | None = None
        self._conditions: list[Comparison] = []

    def take(self, condition: Filter) -> None:
        """Skip rows by a condition on channel, seq, recorder or a time column; others are ignored."""
        name = getattr(condition, "attribute", ("",))[0]
        value: Any = getattr(condition, "value", None)
        match condition:
            case EqualTo() if name == self._named_by:
                self._keep([value])
            case In() if name == self._named_by:
                self._keep(condition.value)
            case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual() if name == "seq":
                self._cut(condition, int(value))
            # Times cannot be skipped by sequence, but dropping rows here saves the hand-over to the JVM.
            case _ if name in _TIMES and type(condition) in _COMPARISONS and isinstance(value, int | datetime):
                self._conditions.append(Comparison(name, _COMPARISONS[type(condition)], value))

    def _keep(self, values: Iterable[Any]) -> None:
        self._whose = set(values) if self._whose is None else self._whose & set(values)

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
            # Unlike startingSeq, a filter below the first available sequence is not an error.
            self._low = max(self._low, low)
        if high is not None:
            self._end = high if self._end is None else min(self._end, high)

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the rows into tasks."""
        found = []
        for seen in self._options.input().look().values():
            if self._whose is None or seen.whose in self._whose:
                found += seen.rows.splits(self._start(seen.rows), self._end, rows=self._options.rows_per_partition)
        return [InputPartition(splits) for splits in pack(found, self._options.rows_per_partition)]

    def _start(self, rows: Rows) -> int:
        wanted = self._first
        if wanted is not None and not self._options.fail_on_gap:
            wanted = max(wanted, rows.first)
        return max(rows.first if wanted is None else wanted, self._low)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the rows of one task, in a worker."""
        # spark.md §2: an empty list of partitions reaches the workers as one partition without a value.
        if partition.value is not None:
            yield from read_rows(partition.value, self._table, self._conditions, self._typed)


class Pushdown:
    """The `pushFilters` of a reader, which does not fail a session that has filter pushdown disabled.

    Spark calls `pushFilters` only if spark.sql.python.filterPushdown.enabled is set, which is not the default. If it is
    not set, Spark refuses a reader whose class overrides the method (DATA_SOURCE_PUSHDOWN_DISABLED). The setting cannot
    be read where a reader is created, so the method is not overridden but set on the object, and says what Spark asks.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)
    """What Spark compares to find out whether the method is overridden."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take conditions. All are returned, so Spark applies them again: skipping rows is only an optimization."""
        for condition in filters:
            self._reader.take(condition)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new rows from offset to offset."""

    def __init__(self, options: Options, table: Table | None = None, typed: Typed | None = None) -> None:
        """Prepare to read a table with some of its columns, by default those of the options, and typed payloads."""
        self._options = options
        self._table = options.shape() if table is None else table
        self._typed = typed
        self._input = options.input()
        self._until: dict[str, Any] | None = None
        self._batch: tuple[dict[str, int], dict[str, int]] | None = None
        """The next sequences at the start and at the end of the batch that was planned last, in this process."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query starts."""
        return first_offset(self._extents(), self._options.starting_offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the present ends, so that a run that stops by itself does not follow new rows forever."""
        self._until = _ends(self._extents())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offset of the next batch."""
        extents = self._extents()
        if self._until is not None:
            # Channels that appeared since then are left for the next run.
            until = next_of(self._until)
            extents = {
                channel: msgspec.structs.replace(extent, end=min(extent.end, until[channel]))
                for channel, extent in extents.items()
                if channel in until
            }
        match limit:
            case ReadMaxRows():
                end = advance(start, extents, rows=limit.max_rows)
            case ReadMaxBytes():
                end = advance(start, extents, size=limit.max_bytes)
            case _:
                end = advance(start, extents)
        self._batch = next_of(start), next_of(end)
        return end

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of all inputs for `latestOffset` of Spark's progress, with what the batch has and what it leaves.

        Spark only shows it, so it may have more than an offset. `batch` and `lag` are rows and bytes on disk; they are
        missing before the first batch of a process.
        """
        extents = self._extents()
        latest = _ends(extents)
        if self._batch is None:
            return latest
        start, end = self._batch
        return {**latest, "batch": amount(start, end, extents), "lag": amount(end, next_of(latest), extents)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide the rows between two offsets into tasks; raises LogError if some are gone and `failOnGap` is set."""
        found = self._input.look()
        wanted, gaps = ranges(start, end, {name: seen.extent for name, seen in found.items()})
        if gaps and self._options.fail_on_gap:
            raise self._input.gap_error(gaps[0])
        rows = self._options.rows_per_partition
        splits = [
            split for name, (first, stop) in wanted.items() for split in found[name].rows.splits(first, stop, rows=rows)
        ]
        return [InputPartition(together) for together in pack(splits, rows)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the rows of one task, in a worker."""
        if partition.value is not None:
            yield from read_rows(partition.value, self._table, typed=self._typed)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish how far this query has read, under the name `consumer`."""
        if self._options.consumer:
            publish_consumer(Path(self._options.path), self._options.consumer, next_of(end), time.time_ns())

    def _extents(self) -> dict[str, Extent]:
        return {name: seen.extent for name, seen in self._input.look().items()}


def _ends(extents: Mapping[str, Extent]) -> dict[str, Any]:
    """Return the offset at the end of all inputs."""
    return offset_of(
        {channel: extent.end for channel, extent in extents.items()},
        {channel: extent.log_id for channel, extent in extents.items()},
    )
