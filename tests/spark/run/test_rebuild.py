"""Events are decoded again where that was asked for, and nothing else changes; a crash in between leaves nothing twice."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from meshbus.log.log import Redex
from meshbus.spark.io.inputs import Logs
from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run import rebuild as module
from meshbus.spark.run.eventwriter import EventWriter, Known
from meshbus.spark.run.ingest import Range
from meshbus.spark.run.rebuild import finish_rebuild, rebuild, repair
from meshbus.spark.run.refresh import Refresher

WRONG = (Declaration(name="a", codec=Codec.MSGPACK),)
RIGHT = (Declaration(name="a", codec=Codec.JSON),)
START = datetime(2026, 11, 15, 1, 0, tzinfo=UTC)


def fill(spark: SparkSession, folder: Path) -> Store:
    """Make tables of three hours: two good payloads and a bad one in each, all declared wrongly, and a raw channel."""
    with Redex(folder / "log", background=False) as redex:
        for hour in range(3):
            now = int((START + timedelta(hours=hour)).timestamp()) * 10**9
            redex.open("a").append_batch([b'{"n":1}', b'{"n":2}', b"\xc1"], recv_ts_ns=[now, now + 1, now + 2])
            redex.open("b").append_batch([b"x"], recv_ts_ns=[now])
    store = Store(folder / "tables")
    found = Logs(str(folder / "log"), lambda _: True).look()
    taken = [Range(name, seen, 0, seen.extent.end) for name, seen in found.items()]
    EventWriter(spark, store, "events", Known(store), lambda: WRONG).write(0, taken)
    Refresher(spark, store).refresh()
    return store


def silver(spark: SparkSession, store: Store) -> list[tuple[Any, ...]]:
    rows = store.read(spark, "silver.events").collect()
    return sorted((row["channel"], row["seq"], row["hour"][-2:], row["value"]) for row in rows)


def quarantined(store: Store) -> list[int]:
    return sorted(row["seq"] for row in store.rows("silver.quarantine"))


def counted(spark: SparkSession, store: Store) -> dict[str, int]:
    Refresher(spark, store).refresh()
    found: dict[str, int] = {}
    for row in store.rows("gold.channel_stats"):
        found[row["channel"]] = found.get(row["channel"], 0) + row["events"]
    return found


RAW = [("b", hour, f"{hour + 1:02}", None) for hour in range(3)]


def test_quarantined_events_come_to_silver_once_their_declaration_is_right(spark: SparkSession, tmp_path: Path) -> None:
    store = fill(spark, tmp_path)
    assert silver(spark, store) == RAW
    assert quarantined(store) == list(range(9))
    assert repair(spark, store, RIGHT) == 6
    assert repair(spark, store, RIGHT) == 0
    good = [("a", seq, f"{seq // 3 + 1:02}", f'{{"n":{seq % 3 + 1}}}') for seq in range(9) if seq % 3 < 2]
    assert silver(spark, store) == good + RAW
    assert quarantined(store) == [2, 5, 8]
    assert counted(spark, store) == {"a": 6, "b": 3}


def test_other_hours_stay_as_they_are_and_a_crash_leaves_nothing_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(spark, tmp_path)
    hour = START + timedelta(hours=1)

    def dying(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_count", dying)
    with pytest.raises(KeyboardInterrupt):
        rebuild(spark, store, RIGHT, hour, hour + timedelta(minutes=1))
    monkeypatch.undo()
    finish_rebuild(spark, store)
    assert counted(spark, store) == {"a": 2, "b": 3}
    assert rebuild(spark, store, RIGHT, hour, hour + timedelta(minutes=1)) == ["2026-11-15T02"]
    good = [("a", 3, "02", '{"n":1}'), ("a", 4, "02", '{"n":2}')]
    assert silver(spark, store) == good + RAW
    assert quarantined(store) == [0, 1, 2, 5, 6, 7, 8]
    assert counted(spark, store) == {"a": 2, "b": 3}
    assert rebuild(spark, store, RIGHT, START + timedelta(days=1), START + timedelta(days=2)) == []
