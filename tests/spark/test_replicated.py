"""A replicated log in the tables: each event once, whichever members are read, also after another one led."""

import asyncio
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.runner import run
from tests.node.replicas.replicatrio import CHANNEL, NAMES, ReplicaTrio, replica_trio, until


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
        await until(lambda: len(guest.peers) == len(NAMES))
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
    return sent


def test_each_event_is_counted_once_whichever_members_are_read(spark: SparkSession, tmp_path: Path) -> None:
    sent = asyncio.run(live(tmp_path))
    for members in (NAMES[:1], NAMES):
        tables = tmp_path / f"tables-{len(members)}"
        run(spark, PipelineConfig(tables=str(tables), logs=tuple(str(tmp_path / name) for name in members)), once=True)
        store = Store(tables)
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
