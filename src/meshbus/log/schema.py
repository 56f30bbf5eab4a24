"""The schema of events and packets: what the log's writers write and what Spark reads.

Three tables, as plain data. `EVENTS` is the log of a channel. `PACKETS` is the flight recorder: the header of a packet,
where it came from and went, the decision about it, and everything that the decision depended on, so that a replay can
reproduce the record. `CENSUS` is what nodes knew about each other over time (log/census.py).

Spark has no unsigned numbers. Ids of 64 and 32 bits are stored bit-cast in the signed type of the same width (`signed`
and `unsigned` return views, never copies); numbers of 16 and 8 bits are widened. Times are microseconds in UTC, with
the nanosecond original beside them as a plain number.

A change to a table needs a new SCHEMA_VERSION. pyarrow is imported only for an Arrow schema, pyspark never. Batches of
these columns are built in log/arrow.py.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.formats import Format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

SCHEMA_VERSION = 2

ON_DISK = (
    Format(
        name="sealed segment",
        where="`log_dir/*/*/*.parquet`, `log_dir/_packets/*/*.parquet`, and their copies on object storage",
        what="sealed events, packets and census rows, as Parquet",
        version=SCHEMA_VERSION,
        mark="`meshbus.schema_version` in the metadata of the file",
        refused="reading its rows; the rest of the log is readable",
    ),
)

VERSION_KEY = "meshbus.schema_version"
"""Metadata key of the schema version; the table name and its description have the two next keys."""
TABLE_KEY = "meshbus.table"
DOC_KEY = "meshbus.doc"
BIT_CAST_KEY = "meshbus.bit_cast"
"""Metadata key of a column: the unsigned type that it holds."""


class ColumnType(StrEnum):
    """Types of columns; the value is Spark's name for the type where it has one."""

    STRING = "string"
    """Text with few different values, dictionary-encoded."""
    BIGINT = "bigint"
    INT = "int"
    SMALLINT = "smallint"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """Microseconds in UTC; Spark cannot read nanoseconds."""
    BINARY = "binary"
    BINARY_16 = "binary(16)"
    """Exactly 16 bytes in Arrow and Parquet; Spark has no type of fixed length."""
    MAP = "map<string,binary>"


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    name: str
    type: ColumnType
    doc: str
    nullable: bool = False
    bit_cast: bool = False
    """Whether it holds an unsigned number in the signed type of the same width."""


class Table(msgspec.Struct, frozen=True):
    """A table and its columns."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def __iter__(self) -> Iterator[Column]:
        """Iterate over the columns in order."""
        return iter(self.columns)


_STRING = ColumnType.STRING
_BIGINT = ColumnType.BIGINT
_INT = ColumnType.INT
_SMALLINT = ColumnType.SMALLINT
_TIMESTAMP = ColumnType.TIMESTAMP
_BINARY = ColumnType.BINARY

EVENTS = Table(
    "events",
    "The events of a channel in the order of its log.",
    (
        Column("channel", _STRING, "Name of the channel; it is in every file, so no directory name means anything."),
        Column("seq", _BIGINT, "Position in the log of the channel; (channel, seq) is the key within one log."),
        Column("log_id", ColumnType.BINARY_16, "Drawn when the log was created and shared by its replicas."),
        Column("pub_seq", _BIGINT, "The number its publisher gave the event on this channel, if known.", nullable=True),
        Column("origin", _BIGINT, "Origin hash of the publisher.", bit_cast=True),
        Column("ts", _TIMESTAMP, "When it was published, by its publisher's clock; null if unknown.", nullable=True),
        Column("ts_ns", _BIGINT, "The same in nanoseconds since 1970.", nullable=True),
        Column("recv_ts", _TIMESTAMP, "When the recorder received it, by the recorder's clock."),
        Column("recv_ts_ns", _BIGINT, "The same in nanoseconds since 1970."),
        Column("recorder", _BIGINT, "Node that wrote the row.", bit_cast=True),
        Column("session_id", _BIGINT, "Session it arrived in; null if published here.", nullable=True, bit_cast=True),
        Column("stream_id", _BIGINT, "Stream it arrived on; null if published here.", nullable=True, bit_cast=True),
        Column("packet_seq", _BIGINT, "Sequence of its packet in that stream.", nullable=True, bit_cast=True),
        Column("event_index", _INT, "Place of the event in its packet.", nullable=True),
        Column("chash64", _BIGINT, "Canonical hash of the channel, the key of every authorization.", bit_cast=True),
        Column("chash", _INT, "Wire hash of the channel: its low 16 bits."),
        Column("src", _INT, "Subnet of the publisher.", bit_cast=True),
        Column("dst", _INT, "Subnet of the recorder.", bit_cast=True),
        Column("ttl", _SMALLINT, "hop_ttl of the packet; 0 is no limit."),
        Column("hops", _SMALLINT, "hop_count of the packet."),
        Column("flags", _SMALLINT, "Flags of the packet."),
        Column("decision", _SMALLINT, "Gateway verdict: 0 or a DropReason; null if none judged.", nullable=True),
        Column("payload", _BINARY, "The event itself."),
        Column("headers", ColumnType.MAP, "Application headers, if any.", nullable=True),
    ),
)

PACKETS = Table(
    "packets",
    "What a node decided about each packet it saw, and why.",
    (
        Column("recorder", _BIGINT, "Node that wrote the row.", bit_cast=True),
        Column("ts", _TIMESTAMP, "When the packet was judged."),
        Column("ts_ns", _BIGINT, "The same in nanoseconds since 1970."),
        Column("sampling_rate", _INT, "One in so many packets was recorded; 1 is all of them."),
        # Where it came from and where it went.
        Column(
            "previous_hop", _BIGINT, "Neighbor it came from; null if that is no peer.", nullable=True, bit_cast=True
        ),
        Column("next_hop", _BIGINT, "Neighbor it was forwarded to; null if it was not.", nullable=True, bit_cast=True),
        Column("route_src", _INT, "src_id of the routing header; null if not relayed.", nullable=True, bit_cast=True),
        Column(
            "route_dst", _BIGINT, "dest_id of the routing header; null if not relayed.", nullable=True, bit_cast=True
        ),
        Column("route_ttl", _SMALLINT, "ttl of the routing header; null if not relayed.", nullable=True),
        Column("route_hops", _SMALLINT, "hop_count of the routing header; null if not relayed.", nullable=True),
        Column("route_flags", _SMALLINT, "Flags of the routing header; null if not relayed.", nullable=True),
        # The header, as it arrived.
        Column("version", _SMALLINT, "Version of the header."),
        Column("flags", _SMALLINT, "Flags of the packet."),
        Column("priority", _SMALLINT, "priority."),
        Column("ttl", _SMALLINT, "hop_ttl; 0 is no limit."),
        Column("hops", _SMALLINT, "hop_count before this node added its own."),
        Column("frag_flags", _SMALLINT, "frag_flags."),
        Column("subprotocol_id", _INT, "subprotocol_id; 0 is events."),
        Column("chash", _INT, "channel_hash: the low 16 bits of the canonical hash."),
        Column("nonce_prefix", _INT, "The constant part of the nonce.", bit_cast=True),
        Column("counter", _BIGINT, "The packet counter in the nonce.", bit_cast=True),
        Column("session_id", _BIGINT, "session_id.", bit_cast=True),
        Column("stream_id", _BIGINT, "stream_id.", bit_cast=True),
        Column("packet_seq", _BIGINT, "sequence: the number of the packet in its stream.", bit_cast=True),
        Column("origin", _BIGINT, "origin_hash.", bit_cast=True),
        Column("subnet_id", _INT, "subnet_id: what the packet says its source is.", bit_cast=True),
        Column("fragment_id", _INT, "fragment_id."),
        Column("fragment_offset", _INT, "fragment_offset."),
        Column("payload_len", _INT, "payload_len: bytes of plaintext."),
        Column("event_count", _INT, "event_count."),
        # The decision, and what it depended on.
        Column("verdict", _SMALLINT, "What was done: 0 forwarded, 1 delivered here, 2 dropped."),
        Column("reason", _SMALLINT, "Why it was dropped, a code of docs/reasons.md; 0 if it was not."),
        Column("policy_version", _BIGINT, "Number of the policy in force, at this recorder."),
        Column("channel", _STRING, "Name of the channel, if the recorder knew it.", nullable=True),
        Column(
            "chash64", _BIGINT, "Canonical hash of the channel, if its name was known.", nullable=True, bit_cast=True
        ),
        Column("src", _INT, "Source subnet as judged; null if it played no part.", nullable=True, bit_cast=True),
        Column("dst", _INT, "Destination subnet as judged; null if it played no part.", nullable=True, bit_cast=True),
        Column("guard", _SMALLINT, "AuthVerdict of the guard; null if it was not asked.", nullable=True),
    ),
)

CENSUS = Table(
    "census",
    "What nodes knew about other nodes and about the subscribers of their channels, whenever it changed and once an hour.",
    (
        Column("recorder", _BIGINT, "Node that wrote the row.", bit_cast=True),
        Column("log_id", ColumnType.BINARY_16, "Drawn when the census was created."),
        Column("seq", _BIGINT, "Position in the census; (log_id, seq) is the key."),
        Column("ts", _TIMESTAMP, "When it was so, by the recorder's clock."),
        Column("ts_ns", _BIGINT, "The same in nanoseconds since 1970."),
        Column(
            "kind",
            _STRING,
            "`snapshot`: the recorder itself; everything else that it knows follows, and channels that do not follow have"
            " no subscribers. `node`: one of its peers. `roster`: the subscribers of one of its channels. `moving`: it began to"
            " move a daemon. `moved`: the daemon has arrived. `not_moved`: it has not.",
        ),
        Column(
            "node_id",
            _BIGINT,
            "The node that the row describes; of a daemon, the node that it leaves, has arrived on or was to go to; null for a"
            " roster.",
            nullable=True,
            bit_cast=True,
        ),
        Column(
            "origin",
            _BIGINT,
            "Its origin hash, which its events carry, or that of the daemon; null if unknown.",
            nullable=True,
            bit_cast=True,
        ),
        Column("entity", _BINARY, "Its public key; null if unknown.", nullable=True),
        Column("name", _STRING, "The name that it announces, or that of the daemon, if any.", nullable=True),
        Column("subnet", _INT, "Its subnet; null if unknown.", nullable=True, bit_cast=True),
        Column("clock_offset_ns", _BIGINT, "Its clock minus the recorder's; null if not measured.", nullable=True),
        Column("clock_error_ns", _BIGINT, "The offset is wrong by at most this much.", nullable=True),
        Column("channel", _STRING, "Name of the channel; null unless the row is a roster.", nullable=True),
        Column("subscribers", _INT, "Nodes that were subscribed to it.", nullable=True),
        Column(
            "copies",
            _INT,
            "Copies that were sent of each event: one to each subscriber outside of groups, and one to each group.",
            nullable=True,
        ),
        Column("failure", _STRING, "Why a daemon did not move; null in other rows.", nullable=True),
    ),
)

_UNSIGNED_NAMES = {ColumnType.BIGINT: "uint64", ColumnType.INT: "uint32"}
_CAST_BYTES = (4, 8)


def arrow_schema(table: Table, *, dictionaries: bool = True) -> Any:
    """Return a table as a `pyarrow.Schema` whose metadata has the version and the meaning of each column.

    Without `dictionaries`, text columns are plain strings, as Spark's Python data sources require.
    """
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string()) if dictionaries else pa.string()
    types = {
        ColumnType.STRING: text,
        ColumnType.BIGINT: pa.int64(),
        ColumnType.INT: pa.int32(),
        ColumnType.SMALLINT: pa.int16(),
        ColumnType.DOUBLE: pa.float64(),
        ColumnType.BOOLEAN: pa.bool_(),
        ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
        ColumnType.BINARY: pa.binary(),
        ColumnType.BINARY_16: pa.binary(16),
        ColumnType.MAP: pa.map_(pa.string(), pa.binary()),
    }
    fields = [
        pa.field(column.name, types[column.type], nullable=column.nullable, metadata=_metadata_of(column))
        for column in table
    ]
    return pa.schema(fields, {VERSION_KEY: str(SCHEMA_VERSION), TABLE_KEY: table.name, DOC_KEY: table.doc})


def spark_ddl(table: Table) -> str:
    """Return the columns of a table in the syntax of Spark's CREATE TABLE, with their meaning as comments."""
    return ", ".join(_ddl_of(column) for column in table)


def signed(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an unsigned array of 32 or 64 bits as the signed type that is stored."""
    return _cast(array, "u", "i")


def unsigned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of a stored array of 32 or 64 bits as the unsigned numbers that it stands for."""
    return _cast(array, "i", "u")


def _cast(array: NDArray[Any], kind: str, wanted: str) -> NDArray[Any]:
    if array.dtype.kind != kind or array.dtype.itemsize not in _CAST_BYTES:
        raise TypeError(
            f"cannot bit-cast {array.dtype}: only numbers of 32 and 64 bits are bit-cast, narrower ones are widened"
        )
    return array.view(array.dtype.str.replace(kind, wanted))


def _metadata_of(column: Column) -> dict[str, str]:
    metadata = {DOC_KEY: column.doc}
    if column.bit_cast:
        metadata[BIT_CAST_KEY] = _UNSIGNED_NAMES[column.type]
    return metadata


def _ddl_of(column: Column) -> str:
    kind = ColumnType.BINARY if column.type is ColumnType.BINARY_16 else column.type
    required = "" if column.nullable else " NOT NULL"
    quoted = column.doc.replace("\\", "\\\\").replace("'", "\\'")
    return f"{column.name} {kind.value.upper()}{required} COMMENT '{quoted}'"
