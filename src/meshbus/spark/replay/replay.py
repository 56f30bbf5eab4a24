"""Replay: apply a proposed policy to recorded packets and events, and compare it with what happened.

Packets are judged in the workers that read their files (spark/replay/tally.py). Only counts and a few samples leave a
worker, which is faster than any form in which rows cross into the JVM (docs/decisions/0020). Events are first counted by
channel and publisher in Spark, and each pair is then matched once on the driver.

Verdicts come from spark/replay/kernelgateway.py. Read-only: no table is changed.
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
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.guard import AuthGuard, AuthVerdict
from meshbus.policy.reason import RECORDED
from meshbus.spark.lake.subscribercount import PrefixSubscription, count_subscribers
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.kernelgateway import Judge
from meshbus.spark.replay.tally import COUNTED, SAMPLES, Chosen, Piece, judge_task, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS = ("channel", "src", "dst", "reason", "proposed")


class Change(msgspec.Struct, frozen=True):
    """Packets with the same recorded and proposed verdict, which are equal if the policy changes nothing for them."""

    channel: str | None
    src: str
    dst: str
    recorded: str
    """`forward`, or the drop reason."""
    proposed: str
    packets: int
    bytes: int


class Replay(msgspec.Struct, frozen=True):
    """The result of a replay of packets."""

    packets: int
    changed: int
    changes: tuple[Change, ...]
    """Every combination; changed verdicts first, then by number of packets."""
    samples: tuple[dict[str, Any], ...]
    """Some packets whose verdict would change."""


def replay_packets(
    spark: SparkSession,
    store: Store,
    policy: GatewayPolicy,
    *,
    recorder: int | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
) -> Replay:
    """Judge recorded packets by a policy and compare; optionally those of one recorder, or from `start` until `end`.

    Rules by prefix apply to the channels that are named in the records or in the policy.
    """
    with store.reading():
        files = [Path(path) for path in store.paths("bronze.packets")]
        if policy.prefixes:
            policy = msgspec.structs.replace(policy, names=(*policy.names, *_names_in(spark, files)))
        # Persisted, because the summary runs two queries over it.
        counted = judge_files(spark, files, policy, Chosen(recorder, start, end)).persist()
        try:
            return _summarize(counted)
        finally:
            counted.unpersist()


def _names_in(spark: SparkSession, files: Sequence[Path]) -> list[str]:
    """Return the channels that the recorders knew by name: rules by prefix apply to their packets."""
    if not files:
        return []
    found = spark.read.parquet(*map(str, files)).where("channel IS NOT NULL").select("channel").distinct()
    return sorted(row["channel"] for row in found.collect())


def judge_files(
    spark: SparkSession, files: Sequence[Path], policy: GatewayPolicy, chosen: Chosen | None = None
) -> DataFrame:
    """Judge the packets of Parquet files in the workers; returns a DataFrame of counts and samples (COUNTED)."""
    chosen = chosen or Chosen()
    tasks = plan(files, chosen)
    # One row and one partition per task: nothing is shuffled, and a worker finds its task by the row's number.
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
    return summary(found, samples)


def summary(counted: Iterable[Any], samples: tuple[dict[str, Any], ...] = ()) -> Replay:
    """Return the result of a replay from rows with the columns of COUNTED that are counts, each combination once."""
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
        for row in counted
    ]
    # The last key makes the order total, so that a replay prints the same each time.
    changes.sort(key=lambda change: (change.recorded == change.proposed, -change.packets, str(change)))
    changed = sum(change.packets for change in changes if change.recorded != change.proposed)
    return Replay(sum(change.packets for change in changes), changed, tuple(changes), samples)


def fate(reason: int) -> str:
    """Return the name of a verdict: `forward` or the drop reason."""
    return RECORDED[reason].word if reason else "forward"


def _subnet(stored: int) -> str:
    return str(SubnetId(stored & 0xFFFFFFFF))


class EventChange(msgspec.Struct, frozen=True):
    """The recorded and proposed deliveries of one publisher on one channel."""

    channel: str
    origin: str
    events: int
    deliveries: int
    """Deliveries under the present subscriptions."""
    proposed_deliveries: int
    allowed: bool
    """Whether the proposed policy authorizes this publisher on this channel."""


def replay_events(
    events: DataFrame,
    policy: GatewayPolicy,
    subscriptions: Sequence[PrefixSubscription],
    proposed: Sequence[PrefixSubscription],
) -> list[EventChange]:
    """Compare deliveries of recorded events under present and proposed subscriptions and publishers.

    Matching uses the node's own prefix index and guard.
    """
    kinds = events.groupBy("channel", "origin").count().orderBy("channel", "origin").collect()
    names = sorted({row["channel"] for row in kinds})
    before, after = count_subscribers(names, subscriptions), count_subscribers(names, proposed)
    # Channels without a list of publishers are judged by tokens, which a log does not have: they count as allowed.
    guard, enforced = AuthGuard(), set()
    for rule in map(policy.rule_of, names):
        if rule is not None and rule.enforced and rule.publishers is not None:
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
