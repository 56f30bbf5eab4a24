"""The schema: everything the tables must hold, in types that Arrow, Parquet and Spark agree on."""

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.log import schema
from meshbus.log.schema import EVENTS, PACKETS, Column, ColumnType, Table, arrow_schema, signed, spark_ddl, unsigned
from meshbus.wire.header import HEADER_DTYPE

TABLES = pytest.mark.parametrize("table", [EVENTS, PACKETS], ids=lambda table: table.name)

EVENT_COLUMNS = {
    "channel": ColumnType.STRING,
    "seq": ColumnType.BIGINT,
    "ts": ColumnType.TIMESTAMP,
    "recv_ts": ColumnType.TIMESTAMP,
    "ts_ns": ColumnType.BIGINT,
    "recv_ts_ns": ColumnType.BIGINT,
    "origin": ColumnType.BIGINT,
    "log_id": ColumnType.BINARY_16,
    "pub_seq": ColumnType.BIGINT,
    "recorder": ColumnType.BIGINT,
    "session_id": ColumnType.BIGINT,
    "stream_id": ColumnType.BIGINT,
    "packet_seq": ColumnType.BIGINT,
    "event_index": ColumnType.INT,
    "chash64": ColumnType.BIGINT,
    "src": ColumnType.INT,
    "dst": ColumnType.INT,
    "chash": ColumnType.INT,
    "ttl": ColumnType.SMALLINT,
    "hops": ColumnType.SMALLINT,
    "flags": ColumnType.SMALLINT,
    "decision": ColumnType.SMALLINT,
    "payload": ColumnType.BINARY,
    "headers": ColumnType.MAP,
}
"""The columns that pipelines rely on: a change here needs a new SCHEMA_VERSION."""

PACKET_COLUMNS = {
    "subprotocol_id", "session_id", "payload_len", "event_count", "previous_hop", "next_hop", "verdict", "reason",
    "recorder", "sampling_rate", "policy_version", "src", "dst", "guard", "chash64", "route_ttl", "route_dst",
}  # fmt: skip

WIRE_WORDS = {
    "hop_ttl": "ttl",
    "hop_count": "hops",
    "channel_hash": "chash",
    "sequence": "packet_seq",
    "origin_hash": "origin",
}
"""Header fields with another name in the tables."""

VALUES: dict[ColumnType, list[Any]] = {
    ColumnType.STRING: ["sensors/lidar", "sensors/lidar"],
    ColumnType.BIGINT: [-(2**63), 2**63 - 1],
    ColumnType.INT: [-(2**31), 2**31 - 1],
    ColumnType.SMALLINT: [0, 255],
    ColumnType.TIMESTAMP: [datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)],
    ColumnType.BINARY: [b"", b"\0\xff"],
    ColumnType.BINARY_16: [bytes(16), bytes(range(16))],
    ColumnType.MAP: [[("a", b"1"), ("b", b"")], []],
}


def batch_of(table: Table, **options: bool) -> pa.Table:
    fields = arrow_schema(table, **options)
    values = {
        column.name: [VALUES[column.type][0], None] if column.nullable else VALUES[column.type] for column in table
    }
    return pa.table([pa.array(values[field.name], field.type) for field in fields], schema=fields)


@TABLES
def test_every_column_is_documented_and_named_once(table: Table) -> None:
    names = [column.name for column in table]
    assert len(set(names)) == len(names)
    for column in table:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)
        assert column.doc.endswith("."), f"{table.name}.{column.name} is not documented"
    assert table.doc.endswith(".")


def test_the_event_table_holds_what_pipelines_rely_on() -> None:
    assert {column.name: column.type for column in EVENTS} == EVENT_COLUMNS


def test_the_packet_table_holds_the_header_and_what_a_verdict_depends_on() -> None:
    names = {column.name for column in PACKETS}
    assert names >= PACKET_COLUMNS
    assert HEADER_DTYPE.names is not None
    wire = {WIRE_WORDS.get(name, name) for name in HEADER_DTYPE.names} - {"magic"}
    assert wire <= names, f"header fields that are not recorded: {wire - names}"
    assert "payload" not in names


def test_header_fields_fit_the_columns_they_are_recorded_in() -> None:
    columns = {column.name: column for column in PACKETS}
    assert HEADER_DTYPE.names is not None
    for name in HEADER_DTYPE.names[1:]:
        column, width = columns[WIRE_WORDS.get(name, name)], HEADER_DTYPE[name].itemsize
        expected = {8: ColumnType.BIGINT, 4: ColumnType.INT, 2: ColumnType.INT, 1: ColumnType.SMALLINT}[width]
        assert (column.type, column.bit_cast) == (expected, width >= 4), name


def test_columns_of_the_same_name_have_the_same_type() -> None:
    types = {column.name: column.type for column in EVENTS}
    for column in PACKETS:
        assert types.get(column.name, column.type) is column.type, column.name


@TABLES
def test_a_batch_survives_parquet(table: Table, tmp_path: Path) -> None:
    written = batch_of(table)
    pq.write_table(written, tmp_path / "t.parquet")
    read = pq.read_table(tmp_path / "t.parquet")
    assert read.schema.equals(written.schema)
    assert read.equals(written)
    assert read.schema.metadata[schema.VERSION_KEY.encode()] == str(schema.SCHEMA_VERSION).encode()
    assert read.schema.metadata[schema.TABLE_KEY.encode()] == table.name.encode()
    for column in table:
        assert read.schema.field(column.name).metadata[schema.DOC_KEY.encode()].decode() == column.doc


@TABLES
def test_parquet_stores_only_what_spark_reads(table: Table, tmp_path: Path) -> None:
    pq.write_table(batch_of(table), tmp_path / "t.parquet")
    stored = pq.ParquetFile(tmp_path / "t.parquet").schema
    leaves = {stored.column(place).path.partition(".")[0]: stored.column(place) for place in range(len(stored.names))}
    assert set(leaves) == {column.name for column in table}
    for column in table:
        leaf = leaves[column.name]
        logical = str(leaf.logical_type)
        assert leaf.physical_type != "INT96"
        assert "isSigned=false" not in logical
        assert "nano" not in logical.lower()
        match column.type:
            case ColumnType.TIMESTAMP:
                assert leaf.physical_type == "INT64"
                assert "isAdjustedToUTC=true, timeUnit=microseconds" in logical
            case ColumnType.BIGINT:
                assert leaf.physical_type == "INT64"
            case ColumnType.INT | ColumnType.SMALLINT:
                assert leaf.physical_type == "INT32"
            case ColumnType.BINARY_16:
                assert (leaf.physical_type, leaf.length) == ("FIXED_LEN_BYTE_ARRAY", 16)
            case ColumnType.STRING:
                assert (leaf.physical_type, logical) == ("BYTE_ARRAY", "String")
            case ColumnType.BINARY:
                assert (leaf.physical_type, logical) == ("BYTE_ARRAY", "None")
            case ColumnType.MAP:
                assert leaf.path.startswith("headers.key_value.")


@TABLES
def test_arrow_schemas_keep_the_order_and_the_nullability(table: Table) -> None:
    fields = arrow_schema(table)
    assert [field.nullable for field in fields] == [column.nullable for column in table]
    assert [field.name for field in fields] == [column.name for column in table]


@TABLES
def test_text_can_be_plain(table: Table) -> None:
    assert pa.types.is_dictionary(arrow_schema(table).field("channel").type)
    assert arrow_schema(table, dictionaries=False).field("channel").type == pa.string()
    assert batch_of(table, dictionaries=False).column("channel")[0].as_py() == "sensors/lidar"


DDL_COLUMN = re.compile(
    r"(?P<name>[a-z]\w*) (?P<type>STRING|BIGINT|INT|SMALLINT|TIMESTAMP|BINARY|MAP<STRING,BINARY>)"
    r"(?P<required> NOT NULL)? COMMENT '(?P<doc>(?:[^'\\]|\\.)*)'(?:, |$)"
)


@TABLES
def test_the_ddl_names_every_column_in_order(table: Table) -> None:
    text = spark_ddl(table)
    found = list(DDL_COLUMN.finditer(text))
    assert "".join(match.group() for match in found) == text, "something in the text is no column"
    assert [match["name"] for match in found] == [column.name for column in table]
    assert [match["required"] is None for match in found] == [column.nullable for column in table]
    for match, column in zip(found, table, strict=True):
        assert match["type"] == column.type.value.upper().removesuffix("(16)")


def test_quotes_in_a_comment_are_escaped() -> None:
    table = Table("t", "A table.", (Column("a", ColumnType.INT, "it's a \\ mark", nullable=True),))
    assert spark_ddl(table) == "a INT COMMENT 'it\\'s a \\\\ mark'"


@pytest.mark.parametrize("width", [32, 64])
def test_ids_cross_into_signed_columns_and_back_without_a_copy(width: int) -> None:
    ids = np.array([0, 1, 2 ** (width - 1), 2**width - 1], f"uint{width}")
    stored = signed(ids)
    assert stored.dtype == np.dtype(f"int{width}")
    assert stored.tolist() == [0, 1, -(2 ** (width - 1)), -1]
    assert np.shares_memory(ids, stored)
    back = unsigned(stored)
    assert back.dtype == ids.dtype
    assert back.tolist() == ids.tolist()
    assert np.shares_memory(ids, back)


def test_strided_and_foreign_columns_cross_too() -> None:
    rows = np.zeros(3, HEADER_DTYPE)
    rows["session_id"] = 2**64 - 1
    assert signed(rows["session_id"]).tolist() == [-1, -1, -1]
    assert signed(np.array([2**32 - 2], ">u4")).tolist() == [-2]


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int64", "float64"])
def test_what_is_not_bit_cast_is_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="widened"):
        signed(np.zeros(1, kind))


@pytest.mark.parametrize("kind", ["int8", "int16", "uint64"])
def test_what_was_not_bit_cast_is_refused_on_the_way_back(kind: str) -> None:
    with pytest.raises(TypeError, match="widened"):
        unsigned(np.zeros(1, kind))


@TABLES
def test_bit_cast_columns_are_marked_in_the_file(table: Table) -> None:
    for column, field in zip(table, arrow_schema(table), strict=True):
        told = field.metadata.get(schema.BIT_CAST_KEY.encode())
        expected = {ColumnType.BIGINT: b"uint64", ColumnType.INT: b"uint32"}.get(column.type)
        assert told == (expected if column.bit_cast else None)


def test_reading_the_tables_needs_neither_pyarrow_nor_pyspark() -> None:
    program = (
        "import sys; from meshbus.log.schema import EVENTS, spark_ddl; spark_ddl(EVENTS); "
        "sys.exit(any(name in sys.modules for name in ('pyarrow', 'pyspark', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
