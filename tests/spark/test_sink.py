"""Rows of a query come to a log once, in one order, however often a batch is tried and wherever it dies."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from meshbus.errors import ConfigError
from meshbus.log.log import Redex, RedexFile
from meshbus.spark import sink
from meshbus.spark.failure import sentence_of_failure
from meshbus.spark.sink import SinkOptions, append_once, ordered
from tests.spark.world import World, forget_newest_commit, rows_of_logs


def rows(count: int, batch: int = 0) -> pa.Table:
    return pa.table({"payload": [b"%d:%d" % (batch, number) for number in range(count)], "ts_ns": range(count)})


def options(root: Path, writer: str = "w") -> SinkOptions:
    return SinkOptions(path=str(root), channel="out", writer_id=writer)


def payloads(root: Path) -> list[bytes]:
    return [row["payload"] for row in rows_of_logs(root)]


def test_a_batch_that_is_tried_again_is_not_appended_again(tmp_path: Path) -> None:
    for batch in (0, 1, 1, 0, 2):
        append_once(options(tmp_path), rows(3, batch), batch)
    assert payloads(tmp_path) == [b"%d:%d" % (batch, number) for batch in range(3) for number in range(3)]


def test_writers_do_not_count_for_each_other(tmp_path: Path) -> None:
    append_once(options(tmp_path, "w"), rows(2), 0)
    append_once(options(tmp_path, "v"), rows(2), 0)
    append_once(options(tmp_path, "w"), rows(2), 0)
    assert payloads(tmp_path) == [b"0:0", b"0:1"] * 2


def test_a_batch_that_died_in_the_middle_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_EVENTS_AT_ONCE", 4)
    monkeypatch.setattr(sink, "_LOOK_BACK", 3)
    append = RedexFile.append_batch
    for deaths in range(4):
        calls: list[int] = []

        def dying(self: RedexFile, *given: object, calls: list[int] = calls, **columns: object) -> object:
            calls.append(1)
            if len(calls) > 1:
                raise KeyboardInterrupt
            return append(self, *given, **columns)  # type: ignore[arg-type]

        monkeypatch.setattr(RedexFile, "append_batch", dying)
        if deaths < 3:
            with pytest.raises(KeyboardInterrupt):
                append_once(options(tmp_path), rows(14), 5)
    monkeypatch.setattr(RedexFile, "append_batch", append)
    append_once(options(tmp_path), rows(14), 5)
    assert payloads(tmp_path) == [b"0:%d" % number for number in range(14)]


@settings(max_examples=25)
@given(st.permutations(list(range(12))))
def test_the_order_does_not_depend_on_the_tasks(order: list[int]) -> None:
    table = pa.table({"payload": [b"x"] * 12, "n": [n // 2 for n in range(12)], "m": [{"a": n} for n in range(12)]})
    table = table.set_column(0, "payload", pa.array([b"%d" % n for n in range(12)]))
    assert ordered(table.take(order)).column("payload").to_pylist() == ordered(table).column("payload").to_pylist()


@pytest.mark.parametrize(
    ("given_", "problem"),
    [
        ({"path": "x", "channel": "a"}, "writerId must be given"),
        ({"path": "x", "channel": "a", "writerId": "a/b"}, "not a path"),
    ],
)
def test_a_wrong_option_is_named(given_: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SinkOptions.read(given_)


def test_a_query_writes_back_into_a_channel(spark: SparkSession, world: World, tmp_path: Path) -> None:
    log = world.config.logs[0]
    source = (
        spark.readStream.format("meshbus").option("channels", "raw/blob").option("maxRowsPerTrigger", 150).load(log)
    )
    target = tmp_path / "out"
    writer = (
        source.select("channel", "seq", "payload")
        .writeStream.format("meshbus")
        .option("path", str(target))
        .option("channel", "copies/blob")
        .option("writerId", "copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    forget_newest_commit(tmp_path / "checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    expected = [row["payload"] for row in rows_of_logs(Path(log)) if row["channel"] == "raw/blob"]
    assert payloads(target) == expected
    assert not list((target / "_staging").rglob("*.arrow"))
    with Redex(target, background=False) as redex:
        redex.open("copies/blob")
        again = writer.option("writerId", "second").option("checkpointLocation", str(tmp_path / "c2"))
        query = again.trigger(availableNow=True).start()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own classes differ between releases
            query.awaitTermination()
    assert "is being written by another process" in sentence_of_failure(caught.value)
