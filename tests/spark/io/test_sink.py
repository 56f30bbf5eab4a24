"""Rows of a query come to a log once, in one order, however often a batch is tried and wherever it dies."""

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from meshbus.background import BackgroundLoop
from meshbus.errors import ConfigError
from meshbus.log.log import Redex
from meshbus.node.admin import Admin
from meshbus.node.channels.subscription import Subscription
from meshbus.node.node import Node
from meshbus.spark.io.sink import SinkOptions, append_once, ordered
from meshbus.spark.run.failure import sentence_of_failure
from tests.node.test_node import QUICK, take
from tests.spark.world import World, rows_of_logs


def forget_newest_commit(checkpoint: Path) -> None:
    """Do as people do when they doubt the last batch."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def rows(count: int, batch: int = 0) -> pa.Table:
    return pa.table({"payload": [b"%d:%d" % (batch, number) for number in range(count)], "ts_ns": range(count)})


def options(root: Path, writer: str = "w") -> SinkOptions:
    return SinkOptions(path=str(root), channel="out", writer_id=writer)


def payloads(root: Path) -> list[bytes]:
    return [row["payload"] for row in rows_of_logs(root)]


def test_a_batch_that_is_tried_again_is_not_appended_again(tmp_path: Path) -> None:
    counts = [append_once(options(tmp_path), rows(3, batch), batch) for batch in (0, 1, 1, 0, 2)]
    assert counts == [3, 3, 0, 0, 3]
    assert payloads(tmp_path) == [b"%d:%d" % (batch, number) for batch in range(3) for number in range(3)]


@settings(max_examples=25)
@given(st.permutations(list(range(12))))
def test_the_order_does_not_depend_on_the_tasks(order: list[int]) -> None:
    table = pa.table({"payload": [b"x"] * 12, "n": [n // 2 for n in range(12)], "m": [{"a": n} for n in range(12)]})
    table = table.set_column(0, "payload", pa.array([b"%d" % n for n in range(12)]))
    assert ordered(table.take(order)).column("payload").to_pylist() == ordered(table).column("payload").to_pylist()


@pytest.mark.parametrize(
    ("given_", "problem"),
    [
        ({"path": "x", "channel": "a"}, "writerId must be set"),
        ({"path": "x", "channel": "a", "writerId": "a/b"}, "a name without '/'"),
        ({"path": "x", "channel": "a", "writerId": ".."}, "does not start with '.'"),
        ({"path": "x", "channel": "a", "writerId": "."}, "does not start with '.'"),
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


@contextmanager
def serving(socket: Path, **settings: Any) -> Iterator[Callable[[int], list[bytes]]]:
    """Run a node with an admin socket beside this thread; return what waits for events that another node receives."""
    loop, closing = BackgroundLoop(), AsyncExitStack()

    async def begin() -> Subscription:
        node = await closing.enter_async_context(Node.open(**QUICK, **settings))
        await closing.enter_async_context(Admin(node).serve(socket))
        far = await closing.enter_async_context(Node.open(**QUICK))
        await far.connect(node.address, public_key=node.public_key)
        return await closing.enter_async_context(far.subscribe("copies/blob"))

    try:
        subscription = loop.run(begin())
        yield lambda count: loop.run(take(subscription, count))
    finally:
        loop.run(closing.aclose())
        loop.stop()


def test_a_query_writes_to_a_channel_of_a_live_node(spark: SparkSession, world: World, tmp_path: Path) -> None:
    log = world.config.logs[0]
    channel = {"name": "copies/blob", "log": "published"}
    socket = tmp_path / "run" / "admin.sock"
    source = spark.readStream.format("meshbus").option("channels", "raw/blob").option("maxRowsPerTrigger", 150)
    writer = (
        source.load(log)
        .select("channel", "seq", "payload")
        .writeStream.format("meshbus")
        .options(path=str(tmp_path / "staging"), channel="copies/blob", writerId="copy", admin=str(socket))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    expected = [row["payload"] for row in rows_of_logs(Path(log)) if row["channel"] == "raw/blob"]
    with serving(socket, log_dir=tmp_path / "logs", channels=[channel]) as heard:
        writer.trigger(availableNow=True).start().awaitTermination()
        forget_newest_commit(tmp_path / "checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        assert heard(len(expected)) == expected
    assert payloads(tmp_path / "logs" / "published") == expected
    again = writer.option("checkpointLocation", str(tmp_path / "c2")).trigger(availableNow=True).start()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own classes differ between releases
        again.awaitTermination()
    assert "does not answer" in sentence_of_failure(caught.value)
