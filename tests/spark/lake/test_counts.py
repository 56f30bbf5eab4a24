"""Counts equal those of plain Python, however the rows are divided into batches."""

import random
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.counts import COUNTS, CountTable
from tests.spark.counted import BY_NAME
from tests.spark.oracle import hour_of, minute_of
from tests.spark.world import World

Row = dict[str, Any]
EACH = pytest.mark.parametrize("counts", COUNTS, ids=lambda counts: counts.name)
START = datetime(2026, 11, 15, 23, 59, tzinfo=UTC)
START_NS = int(START.timestamp()) * 10**9


def added(rows: Iterable[Row], counts: CountTable) -> Counter[tuple[Any, ...]]:
    """Add up the measures of equal keys."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        key = tuple((name, value) for name, value in sorted(row.items()) if name not in counts.measures)
        for name in counts.measures:
            sums[*key, name] += row[name]
    return sums


def minute_of_ns(ns: int | None) -> datetime | None:
    return None if ns is None else minute_of(datetime.fromtimestamp(ns // 10**9, UTC))


def placed(row: Row, time: str = "recv_ts") -> Row:
    return {"hour": hour_of(row[f"{time}_ns"]), "window_start": minute_of_ns(row[f"{time}_ns"])}


def taken(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def rounded(ns: int) -> float:
    """Three significant digits, and at most a tenth of a millisecond; a half is rounded up."""
    step: int = 10 ** min(max(len(str(abs(ns))) - 3, 0), 5)
    return (ns * 2 + step) // (step * 2) * step / 1000


def event_counts(row: Row) -> Row | None:
    known = taken(row, "channel", "origin", "src", "dst")
    return placed(row) | known | {
        "sent_minute": minute_of_ns(row["ts_ns"]), "events": 1, "bytes": len(row["payload"])
    }  # fmt: skip


def receipt_counts(row: Row) -> Row | None:
    known = taken(row, "channel", "log_id", "origin", "recorder")
    return placed(row) | known | {
        "received": row["session_id"] is not None, "rows": 1, "timed": int(row["ts_ns"] is not None)
    }  # fmt: skip


def latency_counts(row: Row) -> Row | None:
    if row["session_id"] is None or row["ts_ns"] is None:
        return None
    known = taken(row, "channel", "origin", "recorder")
    return placed(row) | known | {"latency_us": rounded(row["recv_ts_ns"] - row["ts_ns"]), "rows": 1}


def packet_counts(row: Row) -> Row | None:
    known = taken(row, "recorder", "verdict", "reason", "channel", "origin", "src", "dst")
    rate = row["sampling_rate"]
    sums = {"packets": rate, "bytes": rate * row["payload_len"]}
    return placed(row, "ts") | known | sums | {"peer": row["previous_hop"]}


PLAIN = {
    f"silver.{function.__name__}": function
    for function in (event_counts, receipt_counts, latency_counts, packet_counts)
}


def plain(counts: CountTable, rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
    return added((one for row in rows if (one := PLAIN[counts.name](row)) is not None), counts)


def some_rows(counts: CountTable, number: int = 400) -> list[Row]:
    """Rows over two hours with everything that may be unknown, repeated or extreme."""
    rng = random.Random(5)
    rows = []
    for _ in range(number):
        at = START_NS + rng.randrange(120 * 10**9)
        known: Row = {
            "channel": rng.choice(["a", "b"]), "origin": rng.choice([5, -(2**63)]), "recorder": rng.choice([9, -1]),
            "src": rng.choice([0, -(2**31)]), "dst": 3, "payload": rng.randbytes(rng.randrange(9)),
            "log_id": rng.choice([b"A" * 16, b"\xff\xfe" * 8, bytes(16)]), "session_id": rng.choice([None, 7]),
            "ts_ns": rng.choice([None, at - rng.randrange(10 ** rng.randrange(1, 14)), at + rng.randrange(10**7)]),
            "recv_ts_ns": at, "recv_ts": datetime.fromtimestamp(at // 10**9, UTC), "verdict": rng.choice([0, 1, 2]),
            "reason": rng.choice([0, 9_999]), "previous_hop": rng.choice([None, 4]), "payload_len": rng.randrange(2**16),
            "sampling_rate": rng.choice([1, 1_000]),
        }  # fmt: skip
        if counts.source == "bronze.packets":
            known |= {"ts": known["recv_ts"], "ts_ns": at, "channel": rng.choice([None, "a"]), "src": None}
        rows.append({field.name: known.get(field.name) for field in CATALOG[counts.source].struct()})
    return rows


@EACH
def test_rows_of_a_pipeline_equal_plain_python(read: dict[str, list[Row]], world: World, counts: CountTable) -> None:
    rows = world.packets.to_pylist() if counts.source == "bronze.packets" else read[counts.source]
    assert added(read[counts.name], counts) == plain(counts, rows)


@EACH
def test_unknown_and_extreme_values_are_counted_as_what_they_are(spark: SparkSession, counts: CountTable) -> None:
    rows = some_rows(counts)
    found = counts.compute(spark.createDataFrame(rows, CATALOG[counts.source].struct())).toArrow().to_pylist()
    assert added(found, counts) == plain(counts, rows)
    assert len(added(found, counts)) == len(found) * len(counts.measures)
    assert {row["hour"] for row in found} == {"2026-11-15T23", "2026-11-16T00"}


@EACH
def test_counts_of_two_halves_are_merged_to_those_of_the_whole(spark: SparkSession, counts: CountTable) -> None:
    rows, struct = some_rows(counts), CATALOG[counts.source].struct()
    halves = [counts.compute(spark.createDataFrame(rows[half::2], struct)) for half in (0, 1)]
    merged = counts.merge(halves[0].unionByName(halves[1])).toArrow().to_pylist()
    whole = counts.compute(spark.createDataFrame(rows, struct)).toArrow().to_pylist()
    assert added(merged, counts) == added(whole, counts)
    assert len(merged) == len(whole)


def test_latencies_keep_three_digits_but_at_most_a_tenth_of_a_millisecond(spark: SparkSession) -> None:
    counts = BY_NAME["silver.latency_counts"]
    struct = CATALOG[counts.source].struct()
    blank = {field.name: None for field in struct} | {"session_id": 1, "recv_ts": START}
    expected = {
        0: 0.0, 999: 0.999, 1_004: 1.0, 1_005: 1.01, 9_995: 10.0, -1_234: -1.23, 123_456: 123.0, 9_994_999: 9_990.0,
        123_456_789: 123_500.0, 3_600_000_123_456: 3_600_000_100.0,
    }  # fmt: skip
    rows = [{**blank, "ts_ns": 0, "recv_ts_ns": took} for took in expected]
    found = {row["latency_us"] for row in counts.compute(spark.createDataFrame(rows, struct)).collect()}
    assert found == set(expected.values())
    assert {rounded(took) for took in expected} == found


@pytest.mark.parametrize("at", [datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)])
def test_a_time_before_1970_is_in_its_own_minute(spark: SparkSession, at: datetime) -> None:
    counts = BY_NAME["silver.event_counts"]
    struct = CATALOG[counts.source].struct()
    sent_ns = int((at - timedelta(seconds=40)).timestamp()) * 10**9
    row = {field.name: None for field in struct} | {"recv_ts": at, "ts_ns": sent_ns, "payload": b"12"}
    (found,) = counts.compute(spark.createDataFrame([row], struct)).toArrow().to_pylist()
    assert (found["window_start"], found["hour"]) == (minute_of(at), f"{at:%Y-%m-%dT%H}")
    assert found["sent_minute"] == minute_of(at - timedelta(seconds=40))
    assert (found["events"], found["bytes"]) == (1, 2)


@EACH
def test_rows_are_scanned_once_and_added_up_before_they_are_exchanged(
    spark: SparkSession, tmp_path: Path, counts: CountTable
) -> None:
    struct = CATALOG[counts.source].struct()
    spark.createDataFrame(some_rows(counts, 5), struct).write.parquet(str(tmp_path / "rows"))
    plan = counts.compute(spark.read.parquet(str(tmp_path / "rows")))._jdf.queryExecution().executedPlan().toString()
    steps = re.findall(r"\b(\w*Aggregate|Exchange|Sort|Window|Expand|Generate|FileScan)\b", plan)
    assert steps == ["HashAggregate", "Exchange", "HashAggregate", "FileScan"]
    (read,) = [line.partition("ReadSchema: ")[2] for line in plan.splitlines() if "ReadSchema" in line]
    assert ("payload:" in read) is (counts.name == "silver.event_counts")
    assert not any(f"{unused}:" in read for unused in ("headers", "seq", "hour", "counter"))
