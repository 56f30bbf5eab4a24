"""Every table of the pipeline as data: its layer, its columns, what they mean. docs/guide/tables.md is written from it.

Bronze is what nodes wrote, unchanged. Silver is each event once, decoded, and each verdict beside the one recomputed.
Gold answers questions. Types and the bit-cast of ids are those of log/schema.py. Where the files of a table are is
spark/lake/tablestore.py's business, how its rows are made that of the module named after its layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import msgspec

from meshbus.log.schema import EVENTS, PACKETS, Column, ColumnType, Table, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_STRING = ColumnType.STRING
_BIGINT = ColumnType.BIGINT
_INT = ColumnType.INT
_SMALLINT = ColumnType.SMALLINT
_DOUBLE = ColumnType.DOUBLE
_TIMESTAMP = ColumnType.TIMESTAMP


class Layer(StrEnum):
    """How far rows have come; also the folder of the tables."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"


class TableSpec(msgspec.Struct, frozen=True):
    """One table of the pipeline."""

    layer: Layer
    table: Table
    hourly: bool = True
    """Whether it is divided by hours; a table that is not holds few rows about all time."""

    @property
    def name(self) -> str:
        """The name that people use, such as `silver.events`."""
        return f"{self.layer}.{self.table.name}"

    def __iter__(self) -> Iterator[Column]:
        """Give the columns in order, without the hour."""
        return iter(self.table)

    @property
    def ddl(self) -> str:
        """The columns as Spark writes them, with the hour."""
        return spark_ddl(self.table) + (f", {spark_ddl(_HOUR)}" if self.hourly else "")

    def struct(self) -> StructType:
        """Give the columns as a Spark schema, all of them nullable as Parquet readers see them, with the hour."""
        from pyspark.sql.types import StructField, StructType

        fields = cast("StructType", StructType.fromDDL(self.ddl)).fields
        return StructType([StructField(field.name, field.dataType, nullable=True) for field in fields])


_HOUR = Table(
    "hour",
    "The division of a table.",
    (Column("hour", _STRING, "The hour in UTC that the rows belong to, such as 2026-11-15T23."),),
)
_WINDOW = Column("window_start", _TIMESTAMP, "When the minute began.")
_CHANNEL = Column("channel", _STRING, "Name of the channel.")
_ORIGIN = Column("origin", _BIGINT, "Origin hash of the publisher.", bit_cast=True)
_LOG_ID = Column("log_id", ColumnType.BINARY_16, "Drawn when the log was created and shared by its replicas.")
_CODEC = Column("codec", _STRING, "How the channel's payloads were declared: raw, utf8, json, msgpack or arrow.")
_SRC = Column("src", _INT, "Source subnet.", nullable=True, bit_cast=True)
_DST = Column("dst", _INT, "Destination subnet.", nullable=True, bit_cast=True)
_RECORDED = {
    "recorder", "ts", "ts_ns", "sampling_rate", "previous_hop", "next_hop", "subprotocol_id", "session_id", "stream_id",
    "packet_seq", "counter", "origin", "payload_len", "event_count", "verdict", "reason", "policy_version", "channel",
    "chash64", "src", "dst", "guard",
}  # fmt: skip

SILVER_EVENTS = Table(
    "events",
    "Each event once, decoded as its channel declares.",
    (
        *EVENTS,
        _CODEC,
        Column(
            "value",
            _STRING,
            "The payload as text: itself for utf8, JSON for json, msgpack and arrow; null for raw.",
            nullable=True,
        ),
    ),
)
QUARANTINE = Table(
    "quarantine",
    "Events whose payload is not what their channel declares; `meshbus pipeline repair` tries them again.",
    (*EVENTS, _CODEC, Column("problem", _STRING, "Why the payload could not be decoded.")),
)
RUNS = Table(
    "runs",
    "Stretches of numbers without a gap, as each batch saw them: what gold.gaps is made of.",
    (
        Column("kind", _STRING, "`log` for positions in a log, `publisher` for numbers that publishers gave."),
        _CHANNEL,
        Column("log_id", ColumnType.BINARY_16, "The log in which they were seen."),
        Column("origin", _BIGINT, "The publisher, for kind `publisher`.", nullable=True, bit_cast=True),
        Column("first", _BIGINT, "First number of the stretch."),
        Column("last", _BIGINT, "Last number of the stretch."),
        Column("events", _BIGINT, "Rows in it, repeated ones included."),
        Column("reordered", _BIGINT, "Rows that stand behind a higher number in their log."),
    ),
)
DECISIONS = Table(
    "decisions",
    "Each recorded verdict beside the one recomputed from the policy in force then.",
    (
        *(column for column in PACKETS if column.name in _RECORDED),
        Column(
            "recomputed",
            _SMALLINT,
            "0 for forward or a DropReason; null where no gateway was asked or its policy is not known.",
            nullable=True,
        ),
        Column(
            "agrees",
            ColumnType.BOOLEAN,
            "Whether they are the same; a packet that was crowded out had been let pass.",
            nullable=True,
        ),
    ),
)
CHANNEL_STATS = Table(
    "channel_stats",
    "What each channel carried, minute by minute, by the time of receipt.",
    (
        _WINDOW,
        _CHANNEL,
        Column("events", _BIGINT, "Events."),
        Column("bytes", _BIGINT, "Bytes of payload."),
        Column("publishers", _BIGINT, "Different publishers."),
        Column("events_per_s", _DOUBLE, "Events a second, over the minute."),
        Column("bytes_per_s", _DOUBLE, "Bytes a second, over the minute."),
        Column("latency_p50_us", _DOUBLE, "Half of the events were received within so many microseconds."),
        Column("latency_p95_us", _DOUBLE, "The same for 95 percent."),
        Column("latency_p99_us", _DOUBLE, "The same for 99 percent."),
    ),
)
TRAFFIC_MATRIX = Table(
    "traffic_matrix",
    "Who talked to whom: source subnet by destination subnet by channel, hour by hour.",
    (
        _SRC,
        _DST,
        Column("channel", _STRING, "Name of the channel; null for packets that name none.", nullable=True),
        Column("events", _BIGINT, "Events that arrived."),
        Column("bytes", _BIGINT, "Bytes of payload that arrived."),
        Column("forwarded", _BIGINT, "Packets that gateways forwarded; recorded ones times the sampling rate."),
        Column("dropped", _BIGINT, "Packets that were dropped, counted in the same way."),
    ),
)
GAPS = Table(
    "gaps",
    "What is missing, repeated or out of order, per log and per publisher.",
    (
        Column("kind", _STRING, "`log`: what expired before it was read. `publisher`: what did not arrive."),
        _CHANNEL,
        Column("log_id", ColumnType.BINARY_16, "The log in which they were seen."),
        Column("origin", _BIGINT, "The publisher, for kind `publisher`.", nullable=True, bit_cast=True),
        Column("first", _BIGINT, "Lowest number seen."),
        Column("last", _BIGINT, "Highest number seen."),
        Column("events", _BIGINT, "Different numbers seen."),
        Column("missing", _BIGINT, "Numbers between them that never came."),
        Column("holes", _BIGINT, "Stretches that the missing ones form."),
        Column("first_missing", _BIGINT, "The lowest of them.", nullable=True),
        Column("last_missing", _BIGINT, "The highest of them.", nullable=True),
        Column("duplicates", _BIGINT, "Rows that repeated a number."),
        Column("reordered", _BIGINT, "Rows that stood behind a higher number."),
    ),
)
DENIALS = Table(
    "denials",
    "What was refused, hour by hour: by reason, peer and channel.",
    (
        Column("recorder", _BIGINT, "Node that refused.", bit_cast=True),
        Column("reason", _STRING, "Why, as meshbus.policy.fate names it."),
        Column("peer", _BIGINT, "Peer that the packets came from.", nullable=True, bit_cast=True),
        Column("channel", _STRING, "Name of the channel; null if the policy does not know it.", nullable=True),
        _ORIGIN,
        Column("packets", _BIGINT, "Packets; recorded ones times the sampling rate."),
        Column("bytes", _BIGINT, "Bytes of payload in them."),
    ),
)
TOP_TALKERS = Table(
    "top_talkers",
    "The publishers with the most bytes, hour by hour.",
    (
        Column("rank", _INT, "1 is the most."),
        _ORIGIN,
        Column("channels", _BIGINT, "Different channels."),
        Column("events", _BIGINT, "Events."),
        Column("bytes", _BIGINT, "Bytes of payload."),
    ),
)
REPLICATION_LAG = Table(
    "replication_lag",
    "How far replicas of a log are behind the first to have an event, minute by minute; only logs with replicas.",
    (
        _WINDOW,
        _CHANNEL,
        _LOG_ID,
        Column("recorder", _BIGINT, "The replica.", bit_cast=True),
        Column("events", _BIGINT, "Events it wrote."),
        Column("last_seq", _BIGINT, "Its highest sequence."),
        Column("behind", _BIGINT, "Sequences that the most advanced replica had beyond it by the end of the minute."),
        Column("delay_p50_us", _DOUBLE, "Half of the events came within so many microseconds of the first replica."),
        Column("delay_p99_us", _DOUBLE, "The same for 99 percent."),
    ),
)
FAN_OUT = Table(
    "fan_out",
    "How many subscriptions each channel's events match, hour by hour, by the prefix kernel.",
    (
        _CHANNEL,
        Column("subscribers", _INT, "Peers with at least one matching prefix."),
        Column("events", _BIGINT, "Events."),
        Column("deliveries", _BIGINT, "Events times subscribers."),
    ),
)

_LAYERS = {
    Layer.BRONZE: (EVENTS, PACKETS),
    Layer.SILVER: (SILVER_EVENTS, QUARANTINE, RUNS, DECISIONS),
    Layer.GOLD: (CHANNEL_STATS, TRAFFIC_MATRIX, GAPS, DENIALS, TOP_TALKERS, REPLICATION_LAG, FAN_OUT),
}
_WHOLE = {RUNS.name, GAPS.name}

TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for layer, tables in _LAYERS.items()
    for table in tables
    for spec in [TableSpec(layer, table, hourly=table.name not in _WHOLE)]
}
"""All tables by name, in the order in which rows come to them."""
