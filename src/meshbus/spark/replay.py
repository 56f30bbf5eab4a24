"""What would a policy have done? The node's own kernels over what was recorded, and the difference to what was done.

Packets are judged where they lie: each task gets row groups of Parquet files, reads the columns a verdict depends on, and
gives back counts and a few samples. Nothing but those leaves a worker; that is what makes it quicker than any form in
which rows cross into the JVM (docs/decisions/0014). Events are few kinds: they are counted by Spark, and each kind is
matched once.

The policy and its two forms are in spark/gateway.py. Nothing here changes a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from meshbus.log.schema import unsigned
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.fate import REASONS, TransitReason
from meshbus.policy.guard import AuthGuard, AuthVerdict
from meshbus.policy.snapshot import GatewayPolicy
from meshbus.spark.gateway import COLUMNS, Judge
from meshbus.spark.gold import PrefixSubscription, match_channels
from meshbus.spark.inputs import stored
from meshbus.spark.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLES = 20
"""Packets shown of each kind of change."""

_GROUPS_PER_TASK = 8
_READ = (*COLUMNS, "recorder", "channel", "ts", "sampling_rate", "payload_len", "packet_seq")
_KEYS = ("channel", "src", "dst", "reason", "proposed")
_COUNTED = (
    "sample BOOLEAN, channel STRING, src INT, dst INT, reason SMALLINT, proposed SMALLINT, packets BIGINT, bytes BIGINT,"
    " ts TIMESTAMP, origin BIGINT, stream_id BIGINT, packet_seq BIGINT"
)


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
    files = [file for part in store.parts("bronze.packets") for file in sorted(part.path.rglob("*.parquet"))]
    counted = judge_files(spark, files, policy, Chosen(recorder, start, end)).persist()
    try:
        return _summarize(counted)
    finally:
        counted.unpersist()


class Chosen(NamedTuple):
    """Which packets are judged."""

    recorder: int | None = None
    start: datetime | None = None
    end: datetime | None = None

    def of(self, rows: Any) -> Any:
        """Keep only those of an Arrow table; where subnets played no part, no policy decides otherwise."""
        import pyarrow as pa
        import pyarrow.compute as pc

        recorder = None if self.recorder is None else stored(self.recorder)
        for name, condition, value in (
            ("recorder", pc.equal, recorder),
            ("ts", pc.greater_equal, self.start),
            ("ts", pc.less, self.end),
        ):
            if value is not None:
                rows = rows.filter(condition(rows.column(name), pa.scalar(value, rows.column(name).type)))
        return rows.filter(pc.is_valid(rows.column("src"))) if rows.column("src").null_count else rows


def judge_files(
    spark: SparkSession, files: Sequence[Path], policy: GatewayPolicy, chosen: Chosen | None = None
) -> DataFrame:
    """Judge the packets in some Parquet files, in the workers; gives counts and samples."""
    tasks = spark.createDataFrame(list(_tasks(files)), "path STRING, first INT, last INT")
    spread = tasks.repartition(max(tasks.count(), 1)) if files else tasks
    return spread.mapInArrow(_worker(Judge(policy), chosen or Chosen()), _COUNTED)


def _tasks(files: Iterable[Path]) -> Iterator[tuple[str, int, int]]:
    import pyarrow.parquet as pq

    for file in files:
        groups = pq.ParquetFile(file).metadata.num_row_groups
        for first in range(0, groups, _GROUPS_PER_TASK):
            yield str(file), first, min(first + _GROUPS_PER_TASK, groups)


def _worker(judge: Judge, chosen: Chosen) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def work(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow.parquet as pq

        for tasks in batches:
            for task in tasks.to_pylist():
                with pq.ParquetFile(task["path"]) as file:
                    for group in range(task["first"], task["last"]):
                        yield from _judge_group(judge, chosen.of(file.read_row_group(group, list(_READ))))

    return work


def _judge_group(judge: Judge, rows: Any) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    verdicts, meant = judge.judge_batch(rows)
    if not meant.any():
        return
    rows = rows.append_column("proposed", pa.array(verdicts)).append_column("_meant", pa.array(meant))
    if not meant.all():
        rows = rows.filter(rows.column("_meant"))
    # The gateway let pass what then found no room.
    said = pc.if_else(pc.equal(rows.column("reason"), int(TransitReason.CROWDED)), 0, rows.column("reason"))
    rows = rows.set_column(rows.column_names.index("reason"), "reason", pc.cast(said, pa.int16()))
    rate = pc.cast(rows.column("sampling_rate"), pa.int64())
    rows = rows.append_column("packets", rate)
    rows = rows.append_column("bytes", pc.multiply(rate, pc.cast(rows.column("payload_len"), pa.int64())))
    counts = rows.group_by(list(_KEYS)).aggregate([("packets", "sum"), ("bytes", "sum")])
    yield _batch(counts.rename_columns([*_KEYS, "packets", "bytes"]), sample=False)
    changed = rows.filter(pc.not_equal(rows.column("reason"), rows.column("proposed")))
    if len(changed):
        yield _batch(_few_of_each(changed), sample=True)


def _few_of_each(rows: Any) -> Any:
    """Keep the first rows of each kind of change."""
    kinds = rows.column("reason").to_numpy().astype(np.int64) * 256 + rows.column("proposed").to_numpy()
    places = [np.flatnonzero(kinds == kind)[:SAMPLES] for kind in np.unique(kinds)]
    return rows.take(np.sort(np.concatenate(places)))


def _batch(rows: Any, *, sample: bool) -> Any:
    import pyarrow as pa

    fields = [
        ("sample", pa.bool_()), ("channel", pa.string()), ("src", pa.int32()), ("dst", pa.int32()),
        ("reason", pa.int16()), ("proposed", pa.int16()), ("packets", pa.int64()), ("bytes", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")), ("origin", pa.int64()), ("stream_id", pa.int64()), ("packet_seq", pa.int64()),
    ]  # fmt: skip
    present = set(rows.column_names)
    arrays = [
        rows.column(name).combine_chunks().cast(kind) if name in present else pa.nulls(len(rows), kind)
        for name, kind in fields[1:]
    ]
    return pa.RecordBatch.from_arrays([pa.array([sample] * len(rows)), *arrays], schema=pa.schema(fields))


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
    before, after = match_channels(names, subscriptions), match_channels(names, proposed)
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
