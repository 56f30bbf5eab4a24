"""What would a policy have done? The node's own kernels over what was recorded, and the difference to what was done.

Packets are judged where they lie (spark/replay/tally.py): nothing but counts and a few samples leaves a worker, and that is what
makes it quicker than any form in which rows cross into the JVM (docs/decisions/0020). Events are few kinds: they are
counted by Spark, and each kind is matched once.

The policy and its two forms are in spark/replay/kernelgateway.py. Nothing here changes a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meshbus.log.schema import unsigned
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.fate import REASONS
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.guard import AuthGuard, AuthVerdict
from meshbus.spark.lake.subscribers import PrefixSubscription, count_subscribers
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.kernelgateway import Judge
from meshbus.spark.replay.tally import COUNTED, SAMPLES, Chosen, Piece, judge_task, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS = ("channel", "src", "dst", "reason", "proposed")


class Change(msgspec.Struct, frozen=True):
    """Packets that had one fate and would have another; the same fate twice where nothing changes."""

    channel: str | None
    src: str
    dst: str
    recorded: str
    """`forward`, or the reason of the drop."""
    proposed: str
    packets: int
    bytes: int


class Replay(msgspec.Struct, frozen=True):
    """What came out."""

    packets: int
    changed: int
    changes: tuple[Change, ...]
    """Every combination, the largest difference first."""
    samples: tuple[dict[str, Any], ...]
    """Some packets that would fare differently."""


def replay_packets(
    spark: SparkSession,
    store: Store,
    policy: GatewayPolicy,
    *,
    recorder: int | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
) -> Replay:
    """Judge the recorded packets of a time span, of one gateway or all, by a policy, and compare."""
    with store.reading():
        files = [file for part in store.parts("bronze.packets") for file in sorted(part.path.rglob("*.parquet"))]
        counted = judge_files(spark, files, policy, Chosen(recorder, start, end)).persist()
        try:
            return _summarize(counted)
        finally:
            counted.unpersist()


def judge_files(
    spark: SparkSession, files: Sequence[Path], policy: GatewayPolicy, chosen: Chosen | None = None
) -> DataFrame:
    """Judge the packets in some Parquet files, in the workers; gives counts and samples."""
    chosen = chosen or Chosen()
    tasks = plan(files, chosen)
    # A row for each task, in a partition of its own: nothing is shuffled, and a worker finds its task by the number.
    numbers = spark.range(0, len(tasks), 1, max(len(tasks), 1))
    return numbers.mapInArrow(_worker(tasks, Judge(policy), chosen), COUNTED)


def _worker(tasks: Sequence[Sequence[Piece]], judge: Judge, chosen: Chosen) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def work(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from judge_task(tasks[number], judge, chosen)

    return work


def _summarize(counted: DataFrame) -> Replay:
    from pyspark.sql import functions as F

    found = (
        counted.where(~F.col("sample"))
        .groupBy(*_KEYS)
        .agg(F.sum("packets").alias("packets"), F.sum("bytes").alias("bytes"))
    ).collect()
    changes = [
        Change(
            row["channel"],
            _subnet(row["src"]),
            _subnet(row["dst"]),
            fate(row["reason"]),
            fate(row["proposed"]),
            row["packets"],
            row["bytes"],
        )
        for row in found
    ]
    changes.sort(key=lambda change: (change.recorded == change.proposed, -change.packets, str(change)))
    rows = counted.where("sample").orderBy("ts", "stream_id", "packet_seq").limit(SAMPLES).collect()
    samples = tuple(
        {
            "ts": row["ts"].isoformat(),
            "channel": row["channel"],
            "src": _subnet(row["src"]),
            "dst": _subnet(row["dst"]),
            "origin": f"{row['origin'] & 0xFFFF_FFFF_FFFF_FFFF:016x}",
            "packet_seq": row["packet_seq"],
            "recorded": fate(row["reason"]),
            "proposed": fate(row["proposed"]),
        }
        for row in rows
    )
    changed = sum(change.packets for change in changes if change.recorded != change.proposed)
    return Replay(sum(change.packets for change in changes), changed, tuple(changes), samples)


def fate(reason: int) -> str:
    """Name a verdict."""
    return REASONS[reason] if reason else "forward"


def _subnet(stored: int) -> str:
    return str(SubnetId(stored & 0xFFFFFFFF))


class EventChange(msgspec.Struct, frozen=True):
    """What would become of the events of one publisher on one channel."""

    channel: str
    origin: str
    events: int
    deliveries: int
    """Under the subscriptions that are in force."""
    proposed_deliveries: int
    allowed: bool
    """Whether the proposed policy lets this publisher publish here."""


def replay_events(
    events: DataFrame,
    policy: GatewayPolicy,
    subscriptions: Sequence[PrefixSubscription],
    proposed: Sequence[PrefixSubscription],
) -> list[EventChange]:
    """Match recorded events against other subscriptions and other publishers, by the node's prefix and guard kernels."""
    kinds = events.groupBy("channel", "origin").count().orderBy("channel", "origin").collect()
    names = sorted({row["channel"] for row in kinds})
    before, after = count_subscribers(names, subscriptions), count_subscribers(names, proposed)
    guard, enforced = AuthGuard(), set()
    for rule in policy.channels:
        if rule.enforced and rule.publishers is not None:
            enforced.add(rule.name)
            for origin in rule.publishers:
                guard.authorize(origin, ChannelName(rule.name).hash)
    origins = unsigned(np.array([row["origin"] for row in kinds], np.int64))
    hashes = np.array([ChannelName(row["channel"]).hash for row in kinds], np.uint64)
    verdicts = guard.check_batch(origins, hashes) if kinds else np.empty(0, np.uint8)
    found = []
    for row, origin, verdict in zip(kinds, origins.tolist(), verdicts, strict=True):
        channel, count = row["channel"], row["count"]
        allowed = channel not in enforced or verdict == AuthVerdict.ALLOWED
        delivered = count * after[channel] if allowed else 0
        found.append(EventChange(channel, f"{origin:016x}", count, count * before[channel], delivered, bool(allowed)))
    return found
