"""Replay a policy over the record of one node where it lies, without Spark and without tables.

The kernel and the counts are those of the workers (spark/replay/tally.py), so the answer is the same as that of a replay over
tables that were made of this record. It runs on one core: for the records of a fleet over weeks, use spark/replay/replay.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from meshbus.log.packets.reader import PacketReader, PacketSnapshot
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.spark.replay.kernelgateway import Judge
from meshbus.spark.replay.replay import Replay, summary
from meshbus.spark.replay.tally import READ, Chosen, Tally, judge_rows


def replay_records(log_dir: Path, policy: GatewayPolicy, chosen: Chosen) -> Replay:
    """Judge the packets that one node recorded below a log folder by a policy, and compare.

    `chosen` must name the recorder. Raises LogError if that node recorded nothing there.
    """
    assert chosen.recorder is not None
    snapshot = PacketReader(log_dir, chosen.recorder).snapshot()
    if policy.prefixes:
        policy = msgspec.structs.replace(policy, names=(*policy.names, *_names_in(snapshot)))
    judge, tally, bounds = Judge(policy), Tally(), chosen.bounds()
    for batch in snapshot.batches(columns=[*READ, *(bound.column for bound in bounds)]):
        tally.add(batch, judge_rows(batch, judge, bounds))
    return summary(tally.to_batch().to_pylist())


def _names_in(snapshot: PacketSnapshot) -> list[str]:
    """Return the channels that the recorder knew by name: rules by prefix apply to their packets."""

    def names() -> Iterator[str | None]:
        for batch in snapshot.batches(columns=["channel"]):
            yield from batch.column("channel").dictionary.to_pylist()

    return sorted({name for name in names() if name is not None})
