"""Process one batch of a streaming query: write bronze, then silver from it, each step at most once.

A step whose output directory exists does nothing, so a batch that Spark retries after a crash continues where it stopped.
Silver is computed from the bronze rows just written, never from the source again. Queries over the logs of different nodes
take turns at silver, because otherwise two copies of one event could each find that the other is not there yet.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from meshbus.policy.reason import Reason
from meshbus.spark.io.inputs import recorded_policies
from meshbus.spark.lake import silver, stretches
from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.lake.tableschema import DECISIONS
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.expressions import judge_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MERGES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "bronze.events": lambda rows: rows,
    "silver.runs": stretches.merge_runs,
    "silver.events": lambda rows: rows,
    "silver.quarantine": lambda rows: rows,
}
"""The tables that event queries write, and how compaction reduces their rows."""
_PACKET_TABLES = ("bronze.packets", "silver.decisions")


class EventBatches(msgspec.Struct, frozen=True):
    """The `foreachBatch` function of an event query. Picklable, so that it also runs on a Spark Connect server."""

    root: str
    query: str
    declarations: tuple[Declaration, ...] = ()
    compact_batches: int = 32

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Process one batch."""
        store, query = Store(self.root), self.query
        spark = rows.sparkSession
        # spark.md §6: the batch id determines the offsets, so every step must be idempotent per batch.
        store.add("bronze.events", query, batch, lambda: silver.with_hour(rows, "recv_ts"))
        if store.has("silver.events", query, batch):
            return
        with _turn(store.root):
            with store.reading():
                self._make_silver(store, spark, batch)
            for name, merge in _MERGES.items():
                store.compact(spark, name, query, fewest=self.compact_batches, merge=merge)

    def _make_silver(self, store: Store, spark: SparkSession, batch: int) -> None:
        query = self.query
        # Without the batch itself: a crash may have left its own ranges in silver.runs.
        bronze = store.read_batch(spark, "bronze.events", query, batch)
        earlier = store.rows("silver.runs", but=(query, batch))
        if not store.has("silver.runs", query, batch):
            numbers = store.table("bronze.events", query, batch, stretches.COLUMNS)
            store.put("silver.runs", query, batch, stretches.runs_of(numbers, earlier))
        found = store.rows("silver.runs", only=(query, batch))
        rows = silver.first_of_each(bronze) if stretches.may_repeat(found) else bronze
        channels = stretches.channels_to_compare(found, earlier)
        if channels:
            rows = silver.without(rows, store.read(spark, "silver.events"), channels)
        decoded = silver.decode_rows(rows, self.declarations)
        # Raw payloads cannot fail to decode: skip the second write.
        if all(declaration.codec is Codec.RAW for declaration in self.declarations):
            store.add("silver.events", query, batch, lambda: silver.accepted(decoded))
            return
        decoded.persist()
        try:
            # silver.events is last: its directory marks the whole batch as done.
            store.add("silver.quarantine", query, batch, lambda: silver.refused(decoded))
            store.add("silver.events", query, batch, lambda: silver.accepted(decoded))
        finally:
            decoded.unpersist()


class PacketBatches(msgspec.Struct, frozen=True):
    """The `foreachBatch` function of a packet query."""

    root: str
    query: str
    recorded: str
    """The directory that nodes log to; their policies are stored beside the packet records."""
    compact_batches: int = 32

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Process one batch."""
        store, query = Store(self.root), self.query
        spark = rows.sparkSession
        store.add("bronze.packets", query, batch, lambda: silver.with_hour(rows, "ts"))
        if store.has("silver.decisions", query, batch):
            return
        bronze = store.read_batch(spark, "bronze.packets", query, batch)
        store.add("silver.decisions", query, batch, lambda: self._decisions(bronze))
        for name in _PACKET_TABLES:
            store.compact(spark, name, query, fewest=self.compact_batches)

    def _decisions(self, packets: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        judged = judge_versions(packets, recorded_policies(self.recorded), "recomputed")
        # CROWDED: the gateway forwarded the packet, and it was dropped afterwards for lack of room.
        said = F.when(F.col("reason") == Reason.CROWDED.code, F.lit(0)).otherwise(F.col("reason"))
        judged = judged.withColumn("agrees", F.col("recomputed") == said)
        return judged.select(*(column.name for column in DECISIONS), "hour")


def repair(store: Store, spark: SparkSession, declarations: tuple[Declaration, ...]) -> int:
    """Decode quarantined events again, move those that succeed to silver.events, and return their number.

    A crash in between leaves rows in both tables; the next repair finds them in silver and only removes them here.
    """
    from pyspark.sql import functions as F

    moved = 0
    for part in store.parts("silver.quarantine"):
        with _turn(store.root):
            held = store.read_part(spark, "silver.quarantine", part)
            channels = sorted(row["channel"] for row in held.select("channel").distinct().collect())
            decoded = silver.decode_rows(held.drop("codec", "problem"), declarations).persist()
            good = decoded.where(F.col("problem").isNull())
            count = good.count()
            if count:
                fresh = silver.without(silver.first_of_each(good), store.read(spark, "silver.events"), channels)
                store.append("silver.events", "repair", silver.accepted(fresh))
                store.replace("silver.quarantine", part, silver.refused(decoded))
                moved += count
            decoded.unpersist()
    return moved


@contextmanager
def _turn(root: Path) -> Iterator[None]:
    """Wait until no other query writes silver, and hold its lock."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "_silver.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
