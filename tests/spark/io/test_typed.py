"""Payloads arrive as typed columns: by options, or as the schema beside the log was when each event was written."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import CalendarIntervalType, StructType

from meshbus.errors import ConfigError
from meshbus.log.folder import folder_of
from meshbus.log.log import Redex
from meshbus.log.payload import Codec, Kind, parse_fields
from meshbus.log.schemas import Version, declare
from meshbus.names.channel import ChannelName
from meshbus.spark.io.datasource import BatchReader, Options
from meshbus.spark.io.typed import kind_of, spark_type
from tests.spark.lake.messages import OLD, compile_proto
from tests.spark.lake.test_payloads import stream

LIDAR = "sensors/lidar"


def write(root: Path, channel: str, *payloads: bytes) -> Path:
    """Append to a log, half sealed and half hot, and return its folder."""
    with Redex(root, recorder=5, background=False) as redex:
        log = redex.open(channel, origin=7)
        log.append_batch(list(payloads[::2]))
        log.seal()
        if payloads[1::2]:
            log.append_batch(list(payloads[1::2]))
    return folder_of(root, ChannelName(channel))


def options(root: Path, **given: str) -> Options:
    return Options.read({"path": str(root), **given})


def read(root: Path, **given: str) -> list[dict[str, Any]]:
    chosen = options(root, **given)
    reader = BatchReader(chosen, chosen.shape(), chosen.typed())
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["seq"])


def pairs(rows: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(row["data"], row["problem"]) for row in rows]


def test_fields_stand_beside_the_columns_of_the_log(tmp_path: Path) -> None:
    write(tmp_path, LIDAR, b'{"temp":1.5,"unit":"C","more":0}', b'{"temp":2}', b'{"temp":"warm"}')
    rows = read(tmp_path, codec="json", payloadSchema="temp DOUBLE NOT NULL, unit STRING", columns="channel,seq")
    assert [list(row) for row in rows] == [["channel", "seq", "data", "problem"]] * 3
    assert pairs(rows) == [
        ({"temp": 1.5, "unit": "C"}, None),
        (None, "temp: Expected `float`, got `str`"),
        ({"temp": 2.0, "unit": None}, None),
    ]


def test_every_codec_has_typed_columns(tmp_path: Path) -> None:
    import pyarrow as pa

    sensors = compile_proto(tmp_path, OLD.replace("package sensors", "package typed"), "typed")
    write(tmp_path / "log", "pack", msgspec.msgpack.encode({"n": 1}))
    write(tmp_path / "log", "rows", stream(pa.table({"n": [1, 2]})))
    write(tmp_path / "log", "proto", sensors.module.Reading(temp=0.5, tags=["x"]).SerializeToString())

    def data(**given: str) -> Any:
        return read(tmp_path / "log", **given)[0]["data"]

    assert data(channels="pack", codec="msgpack", payloadSchema="n INT") == {"n": 1}
    assert data(channels="rows", codec="arrow", payloadSchema="n BIGINT") == [{"n": 1}, {"n": 2}]
    told = {"channels": "proto", "codec": "protobuf", "descriptor": str(sensors.descriptor), "message": "typed.Reading"}
    assert data(**told)["tags"] == ["x"]
    assert data(**told, payloadSchema="temp DOUBLE") == {"temp": 0.5}


def test_a_query_may_rather_fail(tmp_path: Path) -> None:
    write(tmp_path, LIDAR, b'{"n":1}', b"{")
    asked = {"codec": "json", "payloadSchema": "n INT", "onProblem": "fail"}
    assert [row["data"] for row in read(tmp_path, endingSeq="1", **asked)] == [{"n": 1}]
    with pytest.raises(
        ConfigError, match=r"event 1 of sensors/lidar does not fit \(DecodeError: .*set onProblem to null"
    ):
        read(tmp_path, **asked)


def test_a_schema_evolves(tmp_path: Path) -> None:
    folder = write(
        tmp_path, LIDAR, b'{"temp":1,"old":5}', b'{"temp":3,"hum":9}', b'{"temp":"2","old":5}', b'{"temp":4}'
    )  # in the log: the first, the third, the second, the fourth
    declare(folder, Version(0, Codec.JSON, "temp INT, old INT"))
    declare(folder, Version(2, Codec.JSON, "temp DOUBLE, hum INT NOT NULL"))
    assert pairs(read(tmp_path, codec="stored")) == [
        ({"temp": 1.0, "hum": None}, None),  # added: null, removed: left out
        (None, "temp: Expected `float | null`, got `str`"),  # of another type
        ({"temp": 3.0, "hum": 9}, None),
        (None, "hum is missing"),  # required since
    ]
    assert pairs(read(tmp_path, codec="stored", payloadSchema="old BIGINT"))[0] == ({"old": 5}, None)


def test_the_codec_of_a_sequence_is_the_one_it_was_written_with(tmp_path: Path) -> None:
    folder = write(tmp_path, LIDAR, b"raw", msgspec.msgpack.encode({"n": 2}), b"text", b'{"n":3}', b'{"n":1}', b"[]")
    for version in (
        Version(1, Codec.UTF8),
        Version(2, Codec.JSON, "n INT"),
        Version(3, Codec.MSGPACK, "n INT"),
        Version(4, Codec.ARROW, "n INT"),
        Version(5, Codec.JSON, "n INT"),
    ):
        declare(folder, version)
    rows = pairs(read(tmp_path, codec="stored"))
    assert [data for data, _ in rows] == [None, None, {"n": 1}, {"n": 2}, None, None]
    assert rows[0][1] == rows[1][1] == "no schema with fields is stored for this sequence"
    assert rows[4][1] == "the codec was arrow when it was written, whose rows do not fit the newest schema"
    assert rows[5][1] is not None


def test_logs_without_one_schema_say_what_to_do(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a", b"{}"), write(tmp_path, "b", b"{}")
    with pytest.raises(ConfigError, match="the channels a, b have no schema beside their log"):
        options(tmp_path, codec="stored").typed()
    declare(first, Version(0, Codec.JSON, "x INT"))
    assert options(tmp_path, codec="stored").typed() is not None
    declare(second, Version(0, Codec.JSON, "y INT"))
    with pytest.raises(
        ConfigError, match="have different schemas; choose channels with one schema, or set payloadSchema"
    ):
        options(tmp_path, codec="stored").typed()
    declare(second, Version(0, Codec.JSON))
    with pytest.raises(ConfigError, match="has the codec json and no fields"):
        options(tmp_path, codec="stored", channels="b").typed()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"payloadSchema": "a INT"}, "codec.*is required with payloadSchema"),
        ({"onProblem": "fail"}, "codec.*is required with payloadSchema"),
        ({"codec": "xml"}, "codec"),
        ({"codec": "json", "payloadSchema": "a WHAT"}, "unknown type WHAT"),
        ({"codec": "json", "message": "x.Y"}, "for codec protobuf only"),
        ({"codec": "protobuf"}, "need 'descriptor'"),
        ({"codec": "json", "payloadSchema": "a INT", "table": "packets"}, "events only"),
        ({"codec": "json", "payloadSchema": "a INT", "onProblem": "skip"}, "onProblem"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        options(Path("/none"), **given)


def test_fields_are_required_where_nothing_else_names_them() -> None:
    with pytest.raises(ConfigError, match=r"payloadSchema.*is required for codec msgpack"):
        options(Path("/none"), codec="msgpack").typed()


def test_types_go_to_spark_and_back() -> None:
    kind = Kind(
        "struct", fields=parse_fields("a DECIMAL(5,2), b ARRAY<STRUCT<x DATE>>, c MAP<STRING,BINARY>, d TINYINT")
    )
    assert kind_of(spark_type(kind)) == kind
    expected = "struct<a:decimal(5,2),b:array<struct<x:date>>,c:map<string,binary>,d:tinyint>"
    assert spark_type(kind).simpleString() == expected
    with pytest.raises(ConfigError, match="no fields of type interval"):
        kind_of(CalendarIntervalType())


def test_spark_reads_typed_columns_in_batches_streams_and_tables(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "log"
    folder = write(root, LIDAR, b'{"temp":1.5,"at":"2026-11-17T02:30:00Z"}', b"{", b'{"temp":2.5}')
    asked = {"channels": LIDAR, "codec": "json", "payloadSchema": "temp DOUBLE, at TIMESTAMP"}
    table = spark.read.format("meshbus").options(**asked).load(str(root))
    assert isinstance(table.schema, StructType)
    assert table.schema["data"].dataType.simpleString() == "struct<temp:double,at:timestamp>"
    assert table.where("problem IS NULL").selectExpr("sum(data.temp)").collect()[0][0] == 4.0
    assert table.where("data.at = TIMESTAMP '2026-11-17 02:30:00'").count() == 1

    source = spark.readStream.format("meshbus").options(**asked).load(str(root))
    query = (
        source.select("seq", "data.temp", "problem")
        .writeStream.format("memory")
        .queryName("typed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    found = [tuple(row) for row in spark.table("typed").orderBy("seq").collect()]
    assert [row[:2] for row in found] == [(0, 1.5), (1, 2.5), (2, None)]
    assert [row[2] is None for row in found] == [True, True, False]

    declare(folder, Version(0, Codec.JSON, "temp DOUBLE"))
    spark.sql(f"CREATE TABLE typed_log USING meshbus OPTIONS (path '{root}', codec 'stored')")
    try:
        # The table keeps its columns when the schema beside the log changes.
        declare(folder, Version(2, Codec.JSON, "temp DOUBLE, unit STRING"))
        assert spark.sql("SELECT sum(data.temp) AS t FROM typed_log").collect()[0]["t"] == 4.0
        assert spark.table("typed_log").select("data.*").columns == ["temp"]
    finally:
        spark.sql("DROP TABLE typed_log")
