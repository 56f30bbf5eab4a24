"""Silver's parts by themselves: which rows are left out, and what becomes of payloads."""

from pyspark.sql import DataFrame, SparkSession

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.lake.silver import (
    accepted,
    decode_rows,
    first_of_each,
    refused,
    with_hour,
    without,
)
from tests.spark import oracle


def bronze(spark: SparkSession, rows: list[dict[str, object]]) -> DataFrame:
    blank = {field.name: None for field in CATALOG["bronze.events"].struct()}
    return spark.createDataFrame([{**blank, **row} for row in rows], CATALOG["bronze.events"].struct())


def event(seq: int, pub_seq: int | None, **more: object) -> dict[str, object]:
    return {"channel": "a", "log_id": b"L" * 16, "seq": seq, "origin": 5, "pub_seq": pub_seq, "recv_ts_ns": seq, **more}


def test_one_row_of_each_event_is_kept_and_known_ones_are_left_out(spark: SparkSession) -> None:
    placed = {"recorder": 1, "session_id": 2, "stream_id": 3, "packet_seq": 4}
    rows = [
        event(0, 10),
        event(1, 10),  # the same number again
        event(2, 11),
        event(3, None, **placed, event_index=0),
        event(4, None, **placed, event_index=0),  # the same place again
        event(5, None, **placed, event_index=1),
        event(6, None),
        event(7, None),
    ]
    kept = first_of_each(bronze(spark, rows))
    assert sorted(row["seq"] for row in kept.collect()) == [0, 2, 3, 5, 6, 7]
    known = bronze(
        spark,
        [
            event(90, 11, log_id=b"M" * 16),  # another node's copy
            event(6, 99),  # a replica's row
            event(91, None, log_id=b"N" * 16, **placed, event_index=1),
        ],
    )
    assert sorted(row["seq"] for row in without(kept, known, ["a"]).collect()) == [0, 3, 7]
    assert without(kept, known, ["b"]).count() == 6


def test_good_and_bad_payloads_part(spark: SparkSession) -> None:
    rows = bronze(
        spark, [event(0, 0, payload=b"{}"), event(1, 1, payload=b"{"), {**event(2, 2, payload=b"{"), "channel": "raw"}]
    )
    decoded = decode_rows(rows, (Declaration(name="a", codec=Codec.JSON),))
    assert sorted((row["seq"], row["codec"], row["value"]) for row in accepted(decoded).collect()) == [
        (0, "json", "{}"),
        (2, "raw", None),
    ]
    (bad,) = refused(decoded).collect()
    assert bad["seq"] == 1
    assert bad["problem"].startswith("DecodeError")


def test_the_hour_is_utc(spark: SparkSession) -> None:
    rows = spark.sql("SELECT timestamp_micros(1794786655123456) AS ts")
    assert with_hour(rows, "ts").collect()[0]["hour"] == oracle.hour_of(1_794_786_655_123_456_000)
