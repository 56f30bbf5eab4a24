"""A replicated log in the tables: each event once, whichever members and subscribers are read, also after another led."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.runner import run
from tests.node.replicas.replicatrio import CHANNEL, NAMES, ReplicaTrio, replica_trio, until

LISTENER = "spare"
"""A node that is no member, subscribes to the channel and logs what it receives."""


async def live(folder: Path) -> list[bytes]:
    """Publish through members and from outside, while another member begins to lead; return what was acknowledged."""
    sent: list[bytes] = []

    async def publish(trio: ReplicaTrio, name: str, count: int) -> None:
        publisher = trio.nodes[name].publisher(CHANNEL)
        for _ in range(count):
            await publisher.publish(b"%d" % len(sent))
            sent.append(b"%d" % len(sent))

    async with replica_trio(folder) as trio:
        guest = await trio.start("guest")
        listener = await trio.start(LISTENER, subscriptions=[{"channel": CHANNEL}])
        await until(lambda: len(guest.peers) >= len(NAMES))
        await trio.subscribed(listener)
        await publish(trio, "guest", 20)
        await publish(trio, trio.follower(), 10)
        led = await trio.led()
        await trio.stop(led)
        await trio.led(other_than=led)
        await publish(trio, "guest", 20)
        await trio.start(led)
        await trio.settled()
        await publish(trio, led, 5)
        await trio.settled()
        # It got the first 30 events from one leader and the next 20 from another.
        log = listener.logs.received.open(CHANNEL)
        await until(lambda: log.next_seq >= 50)
    return sent


def tables_of(spark: SparkSession, folder: Path, *nodes: Sequence[str]) -> Store:
    """Run a pipeline over the logs of some nodes, then over those of others too, and so on."""
    read = [name for group in nodes for name in group]
    tables = folder / "-".join(["tables", *read])
    for count in range(1, len(nodes) + 1):
        logs = tuple(str(folder / name) for group in nodes[:count] for name in group)
        run(spark, PipelineConfig(tables=str(tables), logs=logs), once=True)
    return Store(tables)


def test_each_event_is_counted_once_whichever_members_are_read(spark: SparkSession, tmp_path: Path) -> None:
    sent = asyncio.run(live(tmp_path))
    for members in (NAMES[:1], NAMES):
        store = tables_of(spark, tmp_path, members)
        assert Counter(row["payload"] for row in store.rows("silver.events")) == Counter(sent)
        assert len(store.rows("bronze.events")) == len(members) * len(sent)
        assert sum(row["events"] for row in store.rows("gold.channel_stats")) == len(sent)
        assert sum(row["events"] for row in store.rows("gold.top_talkers")) == len(sent)
        # Several publishers share the numbers of the log, and several members have them: nothing is missing or late.
        [gaps] = store.rows("gold.gaps")
        assert (gaps["kind"], gaps["first"], gaps["last"], gaps["events"]) == ("log", 0, len(sent) - 1, len(sent))
        assert (gaps["missing"], gaps["duplicates"], gaps["reordered"]) == (0, 0, 0)
        lags = store.rows("gold.replication_lag")
        assert len({row["recorder"] for row in lags}) == (len(members) if len(members) > 1 else 0)
    for nodes in ([[NAMES[0], LISTENER]], [[LISTENER], NAMES[:1]]):
        store = tables_of(spark, tmp_path, *nodes)
        assert Counter(row["payload"] for row in store.rows("silver.events")) == Counter(sent), nodes
        assert sum(row["events"] for row in store.rows("gold.channel_stats")) == len(sent)
