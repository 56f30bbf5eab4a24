"""Spark expressions return the same verdicts as the kernel, and the kernel the same as the node's gateway."""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.policy.reason import DropReason
from meshbus.spark.replay.expressions import judge_frame, judge_versions
from meshbus.spark.replay.kernelgateway import COLUMNS
from tests.seeds import for_each_seed
from tests.spark.packets import SUBNETS, by_kernel, prefix_policy, random_policy, read_record, recorded, said

READ = [*COLUMNS, "recorder", "policy_version"]


def frame_of(spark: SparkSession, folder: Path, table: pa.Table) -> DataFrame:
    """Packets as Spark reads them from a file."""
    path = folder / "packets.parquet"
    pq.write_table(table.select(READ), path)
    return spark.read.parquet(str(path))


@for_each_seed(range(3))
def test_column_expressions_equal_the_kernel(seed: int, compiled: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path / str(seed)
    recorded(folder, rng)
    table, other = read_record(folder), random_policy(rng)
    frame = frame_of(compiled, folder, table)
    judged = judge_frame(frame, other).toArrow().column("judged").to_pylist()
    assert judged == by_kernel(other, table)
    assert len(set(judged)) == 8


def test_a_policy_of_many_channels_and_subnets_is_written_into_the_query(
    compiled: SparkSession, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    recorded(tmp_path, rng, 4_000)
    table, some = read_record(tmp_path), random_policy(rng)
    others = [ChannelPolicy(f"other/{number}", Visibility.EXPORTED, exports=(SUBNETS[1],)) for number in range(300)]
    large = msgspec.structs.replace(
        some,
        peer_subnets=(*some.peer_subnets, *(SubnetId.new([9, number]) for number in range(1, 200))),
        channels=(*some.channels, *others),
    )
    judged = judge_frame(frame_of(compiled, tmp_path, table), large)
    assert judged.columns == [*READ, "judged"]
    assert judged.toArrow().column("judged").to_pylist() == by_kernel(large, table) == by_kernel(some, table)


def test_a_policy_without_channels_lets_all_pass_or_none(spark: SparkSession, tmp_path: Path) -> None:
    recorded(tmp_path, np.random.default_rng(6), 400)
    table = read_record(tmp_path)
    frame = frame_of(spark, tmp_path, table)
    for forward in (False, True):
        bare = GatewayPolicy(local_subnet=SUBNETS[1], forward_unknown=forward)
        assert judge_frame(frame, bare).toArrow().column("judged").to_pylist() == by_kernel(bare, table)


def test_each_packet_is_judged_by_the_policy_of_its_time(compiled: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    policies = {recorder: recorded(tmp_path, rng, 3_000, recorder) for recorder in (7, 8, 9)}
    table = read_record(tmp_path)
    frame = frame_of(compiled, tmp_path, table)
    known = {(recorder, 1): policies[recorder] for recorder in (7, 8)}
    judged = judge_versions(frame, known).toArrow().column("judged").to_pylist()
    assert judged == [said(row) if row["recorder"] != 9 else None for row in table.to_pylist()]


def test_without_policies_nothing_is_recomputed(spark: SparkSession, tmp_path: Path) -> None:
    recorded(tmp_path, np.random.default_rng(1), 80)
    table = read_record(tmp_path)
    frame = frame_of(spark, tmp_path, table)
    assert judge_versions(frame, {}).toArrow().column("judged").null_count == len(table) > 0


@for_each_seed(range(3))
def test_rules_by_prefix_are_judged_as_by_the_kernel_and_as_recorded(
    seed: int, compiled: SparkSession, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path / str(seed)
    own = recorded(folder, rng, 6_000, policy=prefix_policy(rng))
    table, other = read_record(folder), prefix_policy(rng)
    frame = frame_of(compiled, folder, table)
    judged = judge_frame(frame, other).toArrow().column("judged").to_pylist()
    assert judged == by_kernel(other, table)
    assert DropReason.UNRESOLVED_CHANNEL in judged
    again = judge_versions(frame, {(7, 1): own}).toArrow().column("judged").to_pylist()
    assert again == [said(row) for row in table.to_pylist()]
    assert DropReason.UNRESOLVED_CHANNEL in again


def test_open_rules_by_prefix_forward_what_they_cannot_resolve(spark: SparkSession, tmp_path: Path) -> None:
    recorded(tmp_path, np.random.default_rng(6), 400)
    table = read_record(tmp_path)
    mild = GatewayPolicy(
        local_subnet=SUBNETS[1], forward_unknown=True, prefixes=(ChannelPolicy("plant/", Visibility.GLOBAL),)
    )
    judged = judge_frame(frame_of(spark, tmp_path, table), mild).toArrow().column("judged").to_pylist()
    assert judged == by_kernel(mild, table)
    assert set(judged) == {None, 0, DropReason.UNKNOWN_SUBNET, DropReason.TTL_EXPIRED}
