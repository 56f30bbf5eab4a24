"""What is done with one batch of a query: bronze as it came, then silver of it, every step at most once.

A step that finds its folder in the table does nothing, so a batch that Spark tries again after a crash goes on where it
stopped. Silver reads the bronze that was just written, never the source again. Queries that read the logs of different
nodes take turns at silver: two copies of an event must not be looked up at the same time.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from meshbus.policy.fate import TransitReason
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
"""The tables of event queries, and how the rows of several batches become fewer."""
_PACKET_TABLES = ("bronze.packets", "silver.decisions")


class EventBatches(msgspec.Struct, frozen=True):
    """What `foreachBatch` of an event query calls. Picklable, so that it also runs at a Spark Connect server."""

    root: str
    query: str
    declarations: tuple[Declaration, ...] = ()
    compact_batches: int = 32

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Take one batch."""
        store, query = Store(self.root), self.query
        spark = rows.sparkSession
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
        if all(declaration.codec is Codec.RAW for declaration in self.declarations):
            store.add("silver.events", query, batch, lambda: silver.accepted(decoded))
            return
        decoded.persist()
        try:
            store.add("silver.quarantine", query, batch, lambda: silver.refused(decoded))
            store.add("silver.events", query, batch, lambda: silver.accepted(decoded))
        finally:
            decoded.unpersist()


class PacketBatches(msgspec.Struct, frozen=True):
    """What `foreachBatch` of a packet query calls."""

    root: str
    query: str
    recorded: str
    """The folder that nodes log to: their policies are beside what they recorded."""
    compact_batches: int = 32

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Take one batch."""
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
        # The gateway let pass what then found no room.
        said = F.when(F.col("reason") == int(TransitReason.CROWDED), F.lit(0)).otherwise(F.col("reason"))
        judged = judged.withColumn("agrees", F.col("recomputed") == said)
        return judged.select(*(column.name for column in DECISIONS), "hour")


def repair(store: Store, spark: SparkSession, declarations: tuple[Declaration, ...]) -> int:
    """Decode what is in quarantine anew, move what is good now to silver.events, and give how many rows that were.

    A crash in between leaves rows in both; the next repair finds them in silver and only removes them here.
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
    """Wait until no other query of these tables is at silver."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "_silver.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
