"""Three ways to judge recorded packets say the same: the node's gateway, the kernel on columns, Column expressions."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from meshbus.policy.snapshot import GatewayPolicy
from meshbus.spark.gateway import COLUMNS, Judge, judge_frame, judge_versions
from tests.spark.packets import gateway_of, random_policy, read_record, record, said

COUNT = 20_000
READ = [*COLUMNS, "recorder", "policy_version"]


def recorded(log_dir: Path, rng: np.random.Generator, count: int = COUNT, recorder: int = 7) -> GatewayPolicy:
    """Record random packets by a random policy, and give it."""
    gateway = gateway_of(random_policy(rng))
    record(log_dir, recorder, gateway, rng, count)
    return gateway.snapshot()


def by_kernel(policy: GatewayPolicy, table: pa.Table) -> list[int | None]:
    verdicts, meant = Judge(policy).judge_batch(table)
    return [int(verdict) if own else None for verdict, own in zip(verdicts, meant, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_on_columns_repeats_what_the_node_said(tmp_path: Path, seed: int) -> None:
    policy = recorded(tmp_path, np.random.default_rng(seed))
    table = read_record(tmp_path)
    expected = [said(row) for row in table.to_pylist()]
    assert by_kernel(policy, table) == expected
    assert set(expected) == {None, 0, 1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_column_expressions_equal_the_kernel(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    recorded(tmp_path, rng)
    table, other = read_record(tmp_path), random_policy(rng)
    frame = spark.createDataFrame(table.select(READ))
    judged = judge_frame(spark, frame, other).toArrow().column("judged").to_pylist()
    assert judged == by_kernel(other, table)
    assert len(set(judged)) == 8


def test_each_packet_is_judged_by_the_policy_of_its_time(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    policies = {recorder: recorded(tmp_path, rng, 3_000, recorder) for recorder in (7, 8, 9)}
    table = read_record(tmp_path)
    frame = spark.createDataFrame(table.select(READ))
    known = {(recorder, 1): policies[recorder] for recorder in (7, 8)}
    judged = judge_versions(spark, frame, known).toArrow().column("judged").to_pylist()
    assert judged == [said(row) if row["recorder"] != 9 else None for row in table.to_pylist()]


def test_without_policies_nothing_is_recomputed(spark: SparkSession, tmp_path: Path) -> None:
    recorded(tmp_path, np.random.default_rng(1), 80)
    table = read_record(tmp_path)
    frame = spark.createDataFrame(table.select(READ))
    assert judge_versions(spark, frame, {}).toArrow().column("judged").null_count == len(table) > 0


def test_a_judge_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    policy = recorded(tmp_path, np.random.default_rng(2), 500)
    table = read_record(tmp_path)
    sent = pickle.loads(pickle.dumps(Judge(policy)))
    assert (sent.judge_batch(table)[0] == Judge(policy).judge_batch(table)[0]).all()
