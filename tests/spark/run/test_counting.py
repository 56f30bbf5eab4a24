"""Each batch is counted once, each file is read once, and executors count only where that pays."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.log.schema import arrow_schema
from meshbus.spark.lake import countfiles
from meshbus.spark.lake.countfiles import Share, count_share
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run import counting
from meshbus.spark.run.counting import count_new, count_span
from tests.spark.counted import BY_NAME

START = datetime(2026, 11, 15, tzinfo=UTC)
EVENTS, BRONZE = "silver.events", "bronze.events"


class Somewhere:
    """What is asked of a session: where it runs."""

    def __init__(self, master: str) -> None:
        self.master = master
        self.conf = self

    def get(self, key: str, default: str) -> str:
        return self.master if key == "spark.master" else default


HERE: Any = Somewhere("local[2]")


def stage(store: Store, name: str, hours: list[int], size: int = 5) -> Path:
    """A file with a row in each of some hours, in a directory that can be committed."""
    schema = arrow_schema(store.catalog.spec(name).table, dictionaries=False)
    rows = [
        {"channel": "a", "origin": 5, "recorder": 9, "log_id": b"L" * 16, "session_id": 1, "ts_ns": 0, "recv_ts_ns": 7,
         "recv_ts": START + timedelta(hours=hour), "payload": b"x" * size}
        for hour in hours
    ]  # fmt: skip
    staged = store.table(name).stage()
    table = pa.Table.from_pylist(rows, pa.schema([field.with_nullable(True) for field in schema]))
    pq.write_table(table, staged / "rows.parquet")
    return staged


def commit(store: Store, name: str, staged: Path, query: str = "events") -> None:
    batch = store.table(name).last(query) + 1
    store.table(name).commit(query, batch, batch, staged)


def counted(store: Store, name: str = "silver.event_counts", measure: str = "events") -> list[tuple[str, int]]:
    return sorted((row["hour"][-2:], row[measure]) for row in store.rows(name))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Share]:
    """The shares that are read."""
    found: list[Share] = []

    def noted(share: Share) -> dict[str, Any]:
        found.append(share)
        return count_share(share)

    monkeypatch.setattr(countfiles, "count_share", noted)
    return found


def test_each_batch_is_counted_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for hours in ([1, 2], [2]):
        commit(store, EVENTS, stage(store, EVENTS, hours))
    commit(store, EVENTS, stage(store, EVENTS, [2]), "events_1")
    count_new(HERE, store)
    count_new(HERE, store)
    assert counted(store) == [("01", 1), ("02", 1), ("02", 2)]
    commit(store, EVENTS, stage(store, EVENTS, [2]))
    count_new(HERE, store)
    assert counted(store) == [("01", 1), ("02", 1), ("02", 1), ("02", 2)]
    assert [store.table("silver.event_counts").last(query) for query in ("events", "events_1")] == [2, 0]


def test_a_batch_without_rows_counts_as_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit(store, EVENTS, stage(store, EVENTS, [1]))
    commit(store, EVENTS, store.table(EVENTS).stage())
    count_new(HERE, store)
    assert counted(store) == [("01", 1)]
    assert store.table("silver.event_counts").last("events") == 1


def test_a_file_that_is_in_bronze_and_silver_is_read_once(tmp_path: Path, reads: list[Share]) -> None:
    store = Store(tmp_path)
    staged = stage(store, BRONZE, [1])
    linked = store.table(EVENTS).stage()
    os.link(staged / "rows.parquet", linked / "other.parquet")
    commit(store, BRONZE, staged)
    commit(store, EVENTS, linked)
    count_new(HERE, store)
    assert [share.names for share in reads] == [
        ("silver.event_counts", "silver.latency_counts", "silver.receipt_counts")
    ]
    assert counted(store) == counted(store, "silver.receipt_counts", "rows") == [("01", 1)]
    assert counted(store, "silver.latency_counts", "rows") == [("01", 1)]


def test_much_is_counted_and_committed_in_steps_of_whole_batches(
    tmp_path: Path, reads: list[Share], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    for hour in range(5):
        commit(store, EVENTS, stage(store, EVENTS, [hour]))
    size = max(file.bytes for file in store.table(EVENTS).files())
    monkeypatch.setattr(counting, "_STEP_BYTES", 2 * size)
    count_new(HERE, store)
    files = store.table("silver.event_counts").files()
    assert [(file.first, file.last) for file in files] == [(0, 1), (2, 3), (4, 4)]
    assert counted(store) == [(f"{hour:02}", 1) for hour in range(5)]
    assert len(reads) == 5


@pytest.mark.parametrize(
    ("master", "least", "there"),
    [
        ("local[*]", 0, False),
        ("spark://10.0.0.1:7077", 0, True),
        ("spark://10.0.0.1:7077", 1 << 20, False),
        ("local-cluster[2,1,512]", 0, True),
    ],
)
def test_executors_count_only_on_a_cluster_and_if_it_is_much(
    master: str, least: int, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def far(spark: Any, shares: list[Share]) -> list[dict[str, Any]]:
        asked.append(len(shares))
        return [count_share(share) for share in shares]

    monkeypatch.setattr(counting, "count_there", far)
    monkeypatch.setattr(counting, "_FAR_BYTES", least)
    store = Store(tmp_path)
    commit(store, EVENTS, stage(store, EVENTS, [1]))
    count_new(Somewhere(master), store)  # type: ignore[arg-type]  # it is asked only where it runs
    assert asked == ([1] if there else [])
    assert counted(store) == [("01", 1)]


def test_the_counts_of_a_span_are_those_of_its_hours_only(tmp_path: Path, reads: list[Share]) -> None:
    store = Store(tmp_path)
    for hours in ([1, 2, 2], [2, 3], [7]):
        commit(store, EVENTS, stage(store, EVENTS, hours))
    table = store.table("silver.event_counts")
    staged = table.stage()
    start = START + timedelta(hours=2)
    count_span(HERE, store, BY_NAME["silver.event_counts"], start, start + timedelta(hours=1), staged)
    commit(store, "silver.event_counts", staged)
    assert counted(store) == [("02", 3)]
    assert len(reads) == 2, "the file of another hour is not read"
