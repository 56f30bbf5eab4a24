"""Decoded events and those that could not be decoded go to different tables."""

from pyspark.sql import DataFrame, SparkSession

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.lake.decode import decode_rows
from meshbus.spark.lake.silver import accepted, refused


def bronze(spark: SparkSession, rows: list[dict[str, object]]) -> DataFrame:
    blank = {field.name: None for field in CATALOG["bronze.events"].struct()}
    return spark.createDataFrame([{**blank, **row} for row in rows], CATALOG["bronze.events"].struct())


def event(seq: int, pub_seq: int | None, **more: object) -> dict[str, object]:
    return {"channel": "a", "log_id": b"L" * 16, "seq": seq, "origin": 5, "pub_seq": pub_seq, "recv_ts_ns": seq, **more}


def test_good_and_bad_payloads_part(spark: SparkSession) -> None:
    rows = bronze(
        spark, [event(0, 0, payload=b"{}"), event(1, 1, payload=b"{"), {**event(2, 2, payload=b"{"), "channel": "raw"}]
    )
    decoded = decode_rows(rows, (Declaration(name="a", codec=Codec.JSON),))
    found = accepted(decoded).orderBy("seq").collect()
    assert [(row["seq"], row["codec"], row["value"]) for row in found] == [(0, "json", "{}"), (2, None, None)]
    (bad,) = refused(decoded).collect()
    assert bad["seq"] == 1
    assert bad["problem"].startswith("payload is not strict JSON")
