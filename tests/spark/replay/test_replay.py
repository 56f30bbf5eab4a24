"""Replaying the policy that was in force changes nothing; replaying another reports exactly what it would change."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.spark.io.inputs import stored
from meshbus.spark.lake.subscribercount import PrefixSubscription
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.kernelgateway import Judge
from meshbus.spark.replay.replay import fate, replay_events, replay_packets
from meshbus.spark.replay.tally import SAMPLES
from tests.spark.packets import random_policy, said
from tests.spark.world import RECORDERS, World


def expected(packets: pa.Table, policy: GatewayPolicy, *, before_ns: int | None = None) -> Counter[tuple[Any, ...]]:
    """Count fates by plain Python."""
    verdicts, meant = Judge(policy).judge_batch(packets)
    counts: Counter[tuple[Any, ...]] = Counter()
    for row, verdict, own in zip(packets.to_pylist(), verdicts.tolist(), meant.tolist(), strict=True):
        if own and row["src"] is not None and (before_ns is None or row["ts_ns"] < before_ns):
            subnets = (str(SubnetId(row[name] & 0xFFFFFFFF)) for name in ("src", "dst"))
            counts[row["channel"], *subnets, fate(said(row) or 0), fate(verdict)] += row["sampling_rate"]
    return counts


def told(replay: Any) -> Counter[tuple[Any, ...]]:
    return Counter(
        {(c.channel, c.src, c.dst, c.recorded, c.proposed): c.packets for c in replay.changes},
    )


def test_the_policy_in_force_changes_nothing(spark: SparkSession, world: World) -> None:
    own = world.packets.filter((pc.field("recorder") == stored(RECORDERS[0])) & pc.field("src").is_valid())
    replay = replay_packets(spark, Store(world.tables), world.policy, recorder=RECORDERS[0])
    assert replay.changed == 0
    assert replay.samples == ()
    assert told(replay) == expected(own, world.policy)
    assert replay.packets == len(own) > 1_000


def test_another_policy_gives_its_own_verdicts(spark: SparkSession, world: World) -> None:
    proposed = random_policy(np.random.default_rng(99))
    replay = replay_packets(spark, Store(world.tables), proposed)
    assert told(replay) == expected(world.packets, proposed)
    assert replay.changed == sum(n for key, n in expected(world.packets, proposed).items() if key[-1] != key[-2]) > 0
    assert 0 < len(replay.samples) <= SAMPLES
    assert all(sample["recorded"] != sample["proposed"] for sample in replay.samples)


def test_a_proposed_rule_by_prefix_applies_to_the_channels_that_the_records_name(
    spark: SparkSession, world: World
) -> None:
    prefix = ChannelPolicy("plant/", Visibility.GLOBAL)
    proposed = msgspec.structs.replace(world.policy, channels=(), prefixes=(prefix,), forward_unknown=False)
    named = tuple(sorted(set(world.packets.column("channel").drop_null().to_pylist())))
    replay = replay_packets(spark, Store(world.tables), proposed)
    assert told(replay) == expected(world.packets, msgspec.structs.replace(proposed, names=named))
    verdicts = Counter((change.channel in named, change.proposed) for change in replay.changes)
    assert verdicts[True, "forward"] > 0
    assert verdicts[True, "unresolved_channel"] == 0


def test_a_time_span_can_be_chosen(spark: SparkSession, world: World) -> None:
    middle = int(world.packets.column("ts_ns").to_numpy()[1_000])
    end = datetime.fromtimestamp(middle // 1_000_000_000, UTC)
    first = replay_packets(spark, Store(world.tables), world.policy, end=end)
    rest = replay_packets(spark, Store(world.tables), world.policy, start=end)
    assert told(first) == expected(world.packets, world.policy, before_ns=middle)
    assert told(first) + told(rest) == expected(world.packets, world.policy)


def test_no_packets_give_an_empty_replay(spark: SparkSession, world: World, tmp_path: Any) -> None:
    assert replay_packets(spark, Store(tmp_path), world.policy).packets == 0


def test_events_are_matched_and_guarded_by_the_proposal(spark: SparkSession) -> None:
    events = spark.createDataFrame([("a/b", 5), ("a/b", 5), ("a/b", 6), ("c", -1)], "channel STRING, origin BIGINT")
    policy = GatewayPolicy(
        local_subnet=0, channels=(ChannelPolicy("a/b", Visibility.GLOBAL, enforced=True, publishers=(5,)),)
    )
    before, after = [PrefixSubscription(1, "a/")], [PrefixSubscription(1, "a/"), PrefixSubscription(2, "")]
    by_prefix = msgspec.structs.replace(
        policy, channels=(), prefixes=(msgspec.structs.replace(policy.channels[0], name="a/"),)
    )
    assert replay_events(events, by_prefix, before, after) == replay_events(events, policy, before, after)
    found = [msgspec.to_builtins(change) for change in replay_events(events, policy, before, after)]
    assert [
        (row["channel"], row["origin"], row["events"], row["deliveries"], row["proposed_deliveries"], row["allowed"])
        for row in found
    ] == [
        ("a/b", f"{5:016x}", 2, 2, 4, True),
        ("a/b", f"{6:016x}", 1, 1, 0, False),
        ("c", "f" * 16, 1, 0, 1, True),
    ]
