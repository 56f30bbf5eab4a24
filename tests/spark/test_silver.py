"""Silver's parts by themselves: stretches of numbers, which channels must be compared, and which rows are left out."""

import random
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from meshbus.spark.codec import Codec, Declaration
from meshbus.spark.gold import gaps
from meshbus.spark.schema import TABLES
from meshbus.spark.silver import (
    accepted,
    channels_to_compare,
    decode_rows,
    first_of_each,
    merge_runs,
    refused,
    runs_of,
    with_hour,
    without,
)
from tests.spark import oracle

STRETCHES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 6)), max_size=12)


def run_of(channel: str, first: int, length: int, *, log: bytes = b"1") -> dict[str, object]:
    last = first + length
    return {"kind": "log", "channel": channel, "log_id": log, "origin": None, "first": first, "last": last, "events": 0}


@given(STRETCHES, STRETCHES)
def test_only_channels_with_common_numbers_are_compared(
    new: list[tuple[str, int, int]], old: list[tuple[str, int, int]]
) -> None:
    expected = {
        channel
        for channel, first, length in new
        for other, start, size in old
        if channel == other and first <= start + size and start <= first + length
    }
    found = channels_to_compare([run_of(*run) for run in new], [run_of(*run) for run in old])
    assert set(found) == expected


def test_the_same_numbers_in_another_log_say_nothing() -> None:
    assert channels_to_compare([run_of("a", 0, 9)], [run_of("a", 0, 9, log=b"2")]) == []


def test_channels_without_numbers_are_always_compared() -> None:
    logged = {**run_of("a", 0, 9), "events": 10}
    numbered = {**logged, "kind": "publisher", "origin": 5, "events": 9}
    assert channels_to_compare([logged, numbered], []) == ["a"]
    assert channels_to_compare([logged, {**numbered, "events": 10}], []) == []


def bronze(spark: SparkSession, rows: list[dict[str, object]]) -> DataFrame:
    blank = {field.name: None for field in TABLES["bronze.events"].struct()}
    return spark.createDataFrame([{**blank, **row} for row in rows], TABLES["bronze.events"].struct())


def event(seq: int, pub_seq: int | None, **more: object) -> dict[str, object]:
    return {"channel": "a", "log_id": b"L" * 16, "seq": seq, "origin": 5, "pub_seq": pub_seq, "recv_ts_ns": seq, **more}


def test_stretches_of_batches_add_up_to_what_plain_python_counts(spark: SparkSession) -> None:
    rng = random.Random(3)
    rows = [event(seq, rng.randrange(0, 60), payload=b"") for seq in range(80)]
    found: list[Any] = []
    for start, stop in pairwise((0, 30, 55, 80)):
        earlier = spark.createDataFrame(found, TABLES["silver.runs"].struct())
        found += [row.asDict() for row in runs_of(bronze(spark, rows[start:stop]), earlier).collect()]
    expected = {row["kind"]: row for row in oracle.gaps(rows)}
    for kind, row in expected.items():
        own = [run for run in found if run["kind"] == kind]
        covered = {number for run in own for number in range(run["first"], run["last"] + 1)}
        assert len(covered) == row["events"]
        assert sum(run["events"] for run in own) == row["events"] + row["duplicates"]
        assert sum(run["reordered"] for run in own) == row["reordered"]


def test_merged_stretches_say_the_same_in_fewer_rows(spark: SparkSession) -> None:
    def run(first: int, last: int, events: int) -> tuple[object, ...]:
        return ("publisher", "a", b"L" * 16, 5, first, last, events, 1)

    runs = [run(20, 29, 10), run(0, 9, 12), run(5, 12, 8), run(13, 13, 1), run(40, 40, 1)]
    frame = spark.createDataFrame(runs, TABLES["silver.runs"].struct())
    merged = merge_runs(frame)
    assert sorted((row["first"], row["last"], row["events"], row["reordered"]) for row in merged.collect()) == [
        (0, 13, 21, 3),
        (20, 29, 10, 1),
        (40, 40, 1, 1),
    ]
    assert gaps(merged).collect() == gaps(frame).collect()


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
