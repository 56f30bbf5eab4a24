"""Three ways to judge recorded packets say the same: the node's gateway, the kernel on columns, Column expressions."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from meshbus.policy.snapshot import GatewayPolicy
from meshbus.spark.gateway import COLUMNS, Judge, judge_frame, judge_versions
from tests.spark.packets import random_packets, random_policy

COUNT = 20_000


def recorded(table: pa.Table) -> list[int | None]:
    """What the node said, where a gateway had something to say."""
    return [
        row["reason"] if row["verdict"] != 1 and row["reason"] <= 6 and row["src"] is not None else None
        for row in table.select(["reason", "verdict", "src"]).to_pylist()
    ]


def by_kernel(policy: GatewayPolicy, table: pa.Table) -> list[int | None]:
    verdicts, meant = Judge(policy).judge_batch(table)
    return [int(verdict) if own else None for verdict, own in zip(verdicts, meant, strict=True)]


@pytest.mark.parametrize("seed", range(6))
def test_the_kernel_on_columns_repeats_what_the_node_said(seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy = random_policy(rng)
    table = random_packets(rng, COUNT, policy)
    assert by_kernel(policy, table) == recorded(table)
    assert set(recorded(table)) == {None, 0, 1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_column_expressions_equal_the_kernel(spark: SparkSession, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = random_packets(rng, COUNT, random_policy(rng))
    other = random_policy(rng)
    frame = spark.createDataFrame(table.select([*COLUMNS, "recorder", "policy_version"]))
    judged = judge_frame(spark, frame, other).toArrow().column("judged").to_pylist()
    assert judged == by_kernel(other, table)
    assert len(set(judged)) == 8


def test_each_packet_is_judged_by_the_policy_of_its_time(spark: SparkSession) -> None:
    rng = np.random.default_rng(9)
    policies = {7: random_policy(rng), 8: random_policy(rng)}
    table = random_packets(rng, COUNT, policies[7])
    frame = spark.createDataFrame(table.select([*COLUMNS, "recorder", "policy_version"]))
    known = {(recorder, 1): policy for recorder, policy in policies.items()}
    judged = judge_versions(spark, frame, known).toArrow().column("judged").to_pylist()
    expected = {recorder: by_kernel(policy, table) for recorder, policy in policies.items()}
    for place, recorder in enumerate(table.column("recorder").to_pylist()):
        assert judged[place] == (expected[recorder][place] if recorder in expected else None)


def test_without_policies_nothing_is_recomputed(spark: SparkSession) -> None:
    table = random_packets(np.random.default_rng(1), 10)
    frame = spark.createDataFrame(table.select([*COLUMNS, "recorder", "policy_version"]))
    assert judge_versions(spark, frame, {}).toArrow().column("judged").null_count == 10


def test_a_judge_can_be_sent_to_a_worker() -> None:
    import pickle

    rng = np.random.default_rng(2)
    policy = random_policy(rng)
    table = random_packets(rng, 500, policy)
    sent = pickle.loads(pickle.dumps(Judge(policy)))
    assert (sent.judge_batch(table)[0] == Judge(policy).judge_batch(table)[0]).all()
