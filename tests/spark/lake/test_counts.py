"""Counts equal those of plain Python, however the rows are divided into batches."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.schema import EVENTS, PACKETS, arrow_schema
from meshbus.spark.lake.counts import COUNTS, CountTable
from tests.spark.counted import BY_NAME
from tests.spark.oracle import minute_of
from tests.spark.world import World

Row = dict[str, Any]
EACH = pytest.mark.parametrize("counts", COUNTS, ids=lambda counts: counts.name)
START = datetime(2026, 11, 15, 23, 59, tzinfo=UTC)
START_NS = int(START.timestamp()) * 10**9
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAST, MOST = -(2**63), 2**63 - 1
FARTHEST = 2**62 - 2**20
"""Nanoseconds from 1970 to the last time that a latency is measured with, in 2116."""


def added(rows: Iterable[Row], counts: CountTable) -> Counter[tuple[Any, ...]]:
    """Add up the measures of equal keys."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        key = tuple((name, value) for name, value in sorted(row.items()) if name not in counts.measures)
        for name in counts.measures:
            sums[*key, name] += row[name]
    return sums


def minute_of_ns(ns: int | None) -> datetime | None:
    return None if ns is None else minute_of(EPOCH + timedelta(seconds=ns // 10**9))


def placed(row: Row, time: str = "recv_ts") -> Row:
    at = EPOCH + timedelta(seconds=row[f"{time}_ns"] // 10**9)
    return {"hour": f"{at:%Y-%m-%dT%H}", "window_start": minute_of(at)}


def taken(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def rounded(ns: int) -> float:
    """Three significant digits, and never to more than a tenth of a millisecond; a half is rounded up."""
    step: int = 10 ** min(max(len(str(abs(ns))) - 3, 0), 5)
    return float((ns * 2 + step) // (step * 2) * step) / 1000


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
    received, sent = (min(max(row[name], -FARTHEST), FARTHEST) for name in ("recv_ts_ns", "ts_ns"))
    return placed(row) | known | {"latency_us": rounded(received - sent), "rows": 1}


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


BIGINT = st.sampled_from([0, 5, -1, LEAST, MOST])
INT = st.sampled_from([0, 3, -(2**31), 2**31 - 1])
RECEIVED = st.one_of(st.integers(START_NS, START_NS + 120 * 10**9), st.sampled_from([0, -1, LEAST, MOST]))


@st.composite
def event_rows(draw: st.DrawFn) -> Row:
    """A row of an event, with everything that may be unknown, repeated or extreme."""
    at = draw(RECEIVED)
    near = st.integers(0, 13).flatmap(lambda digits: st.integers(at - 10**digits, at + 10**digits))
    sent = st.one_of(st.none(), near.filter(lambda ns: LEAST <= ns <= MOST), st.sampled_from([LEAST, MOST, 0]))
    return {
        "channel": draw(st.sampled_from(["a", "b/ü"])), "origin": draw(BIGINT), "recorder": draw(BIGINT),
        "src": draw(INT), "dst": draw(INT), "payload": draw(st.binary(max_size=9)),
        "log_id": draw(st.sampled_from([b"A" * 16, b"\xff\xfe" * 8, bytes(16)])),
        "session_id": draw(st.sampled_from([None, 0, -7])), "ts_ns": draw(sent), "recv_ts_ns": at,
        "recv_ts": EPOCH + timedelta(microseconds=at // 1000),
    }  # fmt: skip


@st.composite
def packet_rows(draw: st.DrawFn) -> Row:
    """A row of a recorded packet."""
    at = draw(RECEIVED)
    return {
        "ts_ns": at, "ts": EPOCH + timedelta(microseconds=at // 1000), "recorder": draw(BIGINT), "origin": draw(BIGINT),
        "verdict": draw(st.sampled_from([0, 1, 2])), "reason": draw(st.sampled_from([0, 9_999])),
        "previous_hop": draw(st.sampled_from([None, 4, LEAST])), "channel": draw(st.sampled_from([None, "a"])),
        "src": draw(st.one_of(st.none(), INT)), "dst": draw(st.one_of(st.none(), INT)),
        "payload_len": draw(st.sampled_from([0, 65_535, 2**31 - 1])),
        "sampling_rate": draw(st.sampled_from([1, 1_000, 2**31 - 1])),
    }  # fmt: skip


def some_rows(counts: CountTable) -> st.SearchStrategy[list[Row]]:
    return st.lists(packet_rows() if counts.source == "bronze.packets" else event_rows(), max_size=30)


def table_of(counts: CountTable, rows: list[Row], *, dictionaries: bool = True) -> pa.Table:
    """Rows as they are in the files of a table."""
    schema = arrow_schema(PACKETS if counts.source == "bronze.packets" else EVENTS, dictionaries=dictionaries)
    return pa.Table.from_pylist(rows, pa.schema([field.with_nullable(True) for field in schema]))


@EACH
def test_rows_of_a_pipeline_equal_plain_python(read: dict[str, list[Row]], world: World, counts: CountTable) -> None:
    rows = world.packets.to_pylist() if counts.source == "bronze.packets" else read[counts.source]
    assert added(read[counts.name], counts) == plain(counts, rows)


@EACH
@given(data=st.data())
def test_unknown_and_extreme_values_are_counted_as_what_they_are(counts: CountTable, data: st.DataObject) -> None:
    rows = data.draw(some_rows(counts))
    counted = counts.compute(table_of(counts, rows, dictionaries=data.draw(st.booleans())))
    found = counted.to_pylist()
    assert added(found, counts) == plain(counts, rows)
    assert len(added(found, counts)) == len(found) * len(counts.measures)
    assert counted.schema.equals(counts.schema)


@EACH
@given(data=st.data())
def test_counts_of_parts_are_merged_to_those_of_the_whole(counts: CountTable, data: st.DataObject) -> None:
    rows = data.draw(some_rows(counts))
    thirds = [counts.compute(table_of(counts, rows[third::3])) for third in range(3)]
    merged = counts.merge(pa.concat_tables(thirds))
    whole = counts.compute(table_of(counts, rows))
    assert added(merged.to_pylist(), counts) == added(whole.to_pylist(), counts) == plain(counts, rows)
    assert len(merged) == len(whole)
    assert merged.schema.equals(counts.schema)


def test_latencies_keep_three_digits_but_at_most_a_tenth_of_a_millisecond() -> None:
    counts = BY_NAME["silver.latency_counts"]
    expected = {
        0: 0.0, 999: 0.999, 1_004: 1.0, 1_005: 1.01, 9_995: 10.0, -1_234: -1.23, 123_456: 123.0, 9_994_999: 9_990.0,
        123_456_789: 123_500.0, 3_600_000_123_456: 3_600_000_100.0,
    }  # fmt: skip
    rows = [{"session_id": 1, "recv_ts": START, "ts_ns": 0, "recv_ts_ns": took} for took in expected]
    found = set(counts.compute(table_of(counts, rows))["latency_us"].to_pylist())
    assert found == set(expected.values())
    assert {rounded(took) for took in expected} == found


@pytest.mark.parametrize("at", [datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)])
def test_a_time_before_1970_is_in_its_own_minute(at: datetime) -> None:
    counts = BY_NAME["silver.event_counts"]
    sent_ns = int((at - timedelta(seconds=40)).timestamp()) * 10**9
    (found,) = counts.compute(table_of(counts, [{"recv_ts": at, "ts_ns": sent_ns, "payload": b"12"}])).to_pylist()
    assert (found["window_start"], found["hour"]) == (minute_of(at), f"{at:%Y-%m-%dT%H}")
    assert found["sent_minute"] == minute_of(at - timedelta(seconds=40))
    assert (found["events"], found["bytes"]) == (1, 2)


def test_a_column_that_older_files_do_not_have_is_unknown() -> None:
    counts = BY_NAME["silver.event_counts"]
    (found,) = counts.compute(
        table_of(counts, [{"recv_ts": START, "channel": "a", "payload": b"12", "ts_ns": 0}]).drop(["src", "ts_ns"])
    ).to_pylist()
    assert (found["src"], found["sent_minute"], found["bytes"]) == (None, None, 2)


@EACH
def test_only_columns_that_are_counted_are_read(counts: CountTable) -> None:
    assert ("payload" in counts.reads) is (counts.name == "silver.event_counts")
    assert not {"headers", "seq", "counter", "stream_id"} & set(counts.reads)
