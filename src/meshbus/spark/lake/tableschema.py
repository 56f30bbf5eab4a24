"""Columns of the bronze and silver tables, and the type that describes any table of the pipeline.

Bronze holds what nodes wrote, unchanged. Silver holds each event once, decoded, and each recorded verdict beside the
recomputed one. Gold tables are defined one per file in spark/lake/gold/; spark/lake/catalog.py lists all tables.
Column types and the bit-cast of unsigned ids come from log/schema.py. File paths are in spark/lake/tablestore.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import msgspec

from meshbus.log.schema import CENSUS, EVENTS, PACKETS, Column, ColumnType, Table, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Layer(StrEnum):
    """The stage of processing of a table; also the name of its directory."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"


class TableSpec(msgspec.Struct, frozen=True):
    """One table of the pipeline."""

    layer: Layer
    table: Table
    hourly: bool = True
    """Whether rows have an hour; a table without hours has few rows, which cover all time."""

    @property
    def name(self) -> str:
        """The qualified name, such as `silver.events`."""
        return f"{self.layer}.{self.table.name}"

    def __iter__(self) -> Iterator[Column]:
        """Iterate over the columns in order, without the hour."""
        return iter(self.table)

    @property
    def time(self) -> str | None:
        """The column with the time of a row, by the clock of the node that recorded it; None if there is none."""
        held = {column.name for column in self.table}
        return next((name for name in ("recv_ts", "ts", "window_start") if name in held), None)

    @property
    def ddl(self) -> str:
        """The columns in Spark's DDL syntax, including the hour."""
        return spark_ddl(self.table) + (f", {spark_ddl(_PARTITION)}" if self.hourly else "")

    def struct(self) -> StructType:
        """Return the columns as a Spark schema, including the hour.

        Every field is nullable, because Spark makes the columns of any Parquet file nullable.
        """
        from pyspark.sql.types import StructField, StructType

        fields = cast("StructType", StructType.fromDDL(self.ddl)).fields
        return StructType([StructField(field.name, field.dataType, nullable=True) for field in fields])


WINDOW_S = 60
"""Width of the time windows of count tables and of per-minute gold tables, in seconds."""

# Columns that several tables share.
HOUR = Column("hour", ColumnType.STRING, "Hour of receipt in UTC, such as 2026-11-15T23.")
WINDOW_START = Column("window_start", ColumnType.TIMESTAMP, "Start of the minute.")
CHANNEL = Column("channel", ColumnType.STRING, "Name of the channel.")
ORIGIN = Column("origin", ColumnType.BIGINT, "Origin hash of the publisher.", bit_cast=True)
SEEN_IN_LOG = Column("log_id", ColumnType.BINARY_16, "Id of the log that holds the rows.")
NUMBERED_BY = Column(
    "origin",
    ColumnType.BIGINT,
    "Origin hash of the publisher; null for kind `log`, and for what arrived of a replicated log.",
    nullable=True,
    bit_cast=True,
)
NUMBERED_IN = Column(
    "session_id",
    ColumnType.BIGINT,
    "Session that the numbers are valid in; null if they are those of a log, which continue over all sessions.",
    nullable=True,
    bit_cast=True,
)
_PARTITION = Table("hour", "The partition of a table.", (HOUR,))
_CODEC = Column(
    "codec",
    ColumnType.STRING,
    "Declared codec of the channel: utf8, json, msgpack, arrow or protobuf; null for raw.",
    nullable=True,
)

_RECORDED = {
    "recorder", "ts", "ts_ns", "sampling_rate", "previous_hop", "next_hop", "subprotocol_id", "session_id", "stream_id",
    "packet_seq", "counter", "origin", "payload_len", "event_count", "verdict", "reason", "policy_version", "channel",
    "chash64", "src", "dst", "guard",
}  # fmt: skip
"""Columns of bronze.packets that silver.decisions keeps."""

SILVER_EVENTS = Table(
    "events",
    "Each event once, with its payload decoded as declared for its channel.",
    (
        *EVENTS,
        _CODEC,
        Column(
            "value",
            ColumnType.STRING,
            "Decoded payload: the text for utf8, JSON for json, msgpack, arrow and protobuf, null for raw.",
            nullable=True,
        ),
    ),
)
QUARANTINE = Table(
    "quarantine",
    "Events whose payload does not match the declaration of their channel; `meshbus pipeline repair` decodes them again.",
    (*EVENTS, _CODEC, Column("problem", ColumnType.STRING, "Why the payload could not be decoded.")),
)
RUNS = Table(
    "runs",
    "Ranges of consecutive numbers in each batch; gold.gaps is computed from them.",
    (
        Column(
            "kind",
            ColumnType.STRING,
            "`log` for positions in a log, `publisher` for publish numbers, `stream` for the packets of a best-effort"
            " stream, `unnumbered` for the positions of events that have no number of their own.",
        ),
        CHANNEL,
        SEEN_IN_LOG,
        NUMBERED_BY,
        NUMBERED_IN,
        Column("first", ColumnType.BIGINT, "First number of the range."),
        Column("last", ColumnType.BIGINT, "Last number of the range."),
        Column("events", ColumnType.BIGINT, "Events (packets for kind `stream`), including repeated numbers."),
        Column("reordered", ColumnType.BIGINT, "Those that follow a higher number in their log."),
    ),
)
DECISIONS = Table(
    "decisions",
    "Each recorded verdict beside the verdict recomputed from the policy that was in force.",
    (
        *(column for column in PACKETS if column.name in _RECORDED),
        Column(
            "recomputed",
            ColumnType.SMALLINT,
            "0 for forward, or the code of a drop reason; null if no gateway judged the packet or its policy is unknown.",
            nullable=True,
        ),
        Column(
            "agrees",
            ColumnType.BOOLEAN,
            "Whether both verdicts are equal; a packet dropped for lack of room counts as forwarded.",
            nullable=True,
        ),
    ),
)


def _columns_of(table: Table, *names: str) -> tuple[Column, ...]:
    """Return columns that a count table takes over from its source."""
    known = {column.name: column for column in table}
    return tuple(known[name] for name in names)


EVENT_COUNTS = Table(
    "event_counts",
    "Events and payload bytes of silver.events, per minute of receipt.",
    (
        HOUR,
        WINDOW_START,
        CHANNEL,
        ORIGIN,
        *_columns_of(EVENTS, "src", "dst"),
        Column(
            "sent_minute",
            ColumnType.TIMESTAMP,
            "Start of the minute of publication, by the publisher's clock; null if unknown.",
            nullable=True,
        ),
        Column("events", ColumnType.BIGINT, "Number of events."),
        Column("bytes", ColumnType.BIGINT, "Payload bytes."),
    ),
)
RECEIPT_COUNTS = Table(
    "receipt_counts",
    "Rows of bronze.events by log, publisher and recorder, per minute of receipt.",
    (
        HOUR,
        WINDOW_START,
        CHANNEL,
        SEEN_IN_LOG,
        ORIGIN,
        *_columns_of(EVENTS, "recorder"),
        Column("received", ColumnType.BOOLEAN, "Whether the recorder received the events, or published them itself."),
        Column("rows", ColumnType.BIGINT, "Number of rows."),
        Column("timed", ColumnType.BIGINT, "Rows with a known time of publication."),
    ),
)
LATENCY_COUNTS = Table(
    "latency_counts",
    "Received events with a known time of publication by latency, per minute of receipt.",
    (
        HOUR,
        WINDOW_START,
        CHANNEL,
        ORIGIN,
        *_columns_of(EVENTS, "recorder"),
        Column(
            "latency_us",
            ColumnType.DOUBLE,
            "Receipt by the recorder's clock minus publication by the publisher's, in microseconds, rounded to three"
            " significant digits.",
        ),
        Column("rows", ColumnType.BIGINT, "Number of rows with this latency."),
    ),
)
PACKET_COUNTS = Table(
    "packet_counts",
    "Recorded packets and their bytes by verdict, reason, peer, channel and subnets, per minute.",
    (
        HOUR,
        WINDOW_START,
        *_columns_of(PACKETS, "recorder", "verdict", "reason"),
        Column(
            "peer", ColumnType.BIGINT, "Neighbor they came from; null if that is no peer.", nullable=True, bit_cast=True
        ),
        *_columns_of(PACKETS, "channel", "origin", "src", "dst"),
        Column("packets", ColumnType.BIGINT, "Recorded packets, multiplied by the sampling rate."),
        Column("bytes", ColumnType.BIGINT, "Payload bytes in these packets."),
    ),
)

FIXED_TABLES = (
    TableSpec(Layer.BRONZE, EVENTS),
    TableSpec(Layer.BRONZE, PACKETS),
    TableSpec(Layer.BRONZE, CENSUS),
    TableSpec(Layer.SILVER, SILVER_EVENTS),
    TableSpec(Layer.SILVER, QUARANTINE),
    TableSpec(Layer.SILVER, RUNS, hourly=False),
    TableSpec(Layer.SILVER, DECISIONS),
    TableSpec(Layer.SILVER, EVENT_COUNTS, hourly=False),
    TableSpec(Layer.SILVER, RECEIPT_COUNTS, hourly=False),
    TableSpec(Layer.SILVER, LATENCY_COUNTS, hourly=False),
    TableSpec(Layer.SILVER, PACKET_COUNTS, hourly=False),
)
"""Every bronze and silver table, in processing order. The streaming queries write these; gold tables derive from them."""
