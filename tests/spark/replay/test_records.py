"""A replay over a record itself tells the same as one over the tables that were made of it."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from meshbus.errors import LogError
from meshbus.log.packets.reader import list_recorders
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.spark.io.inputs import stored
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.records import replay_records
from meshbus.spark.replay.replay import replay_packets
from meshbus.spark.replay.tally import Chosen
from tests.spark.packets import gateway_of, random_policy, read_record, record
from tests.spark.replay.test_replay import expected, told
from tests.spark.world import RECORDERS as WORLD_RECORDERS
from tests.spark.world import World

RECORDERS = (7, 2**63 + 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two nodes recorded, each under its policy; the second one samples."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("record")
    for recorder, sampling in zip(RECORDERS, (1, 2), strict=True):
        record(folder, recorder, gateway_of(random_policy(rng)), rng, 3_000, sampling=sampling)
    return folder


def rows_of(folder: Path, recorder: int) -> pa.Table:
    return read_record(folder).filter((pc.field("recorder") == stored(recorder)) & pc.field("src").is_valid())


@pytest.mark.parametrize("recorder", RECORDERS)
def test_verdicts_are_those_of_the_kernel(folder: Path, recorder: int) -> None:
    policy = random_policy(np.random.default_rng(4))
    replay = replay_records(folder, policy, Chosen(recorder))
    assert told(replay) == expected(rows_of(folder, recorder), policy)
    assert replay.changed == sum(one.packets for one in replay.changes if one.recorded != one.proposed) > 0
    assert replay.packets == sum(one.packets for one in replay.changes)


def test_a_span_of_time(folder: Path) -> None:
    policy = random_policy(np.random.default_rng(4))
    rows = rows_of(folder, RECORDERS[0])
    middle = int(np.median(rows.column("ts_ns").to_numpy())) // 1000 * 1000
    at = datetime.fromtimestamp(middle / 1e9, UTC)
    parts = [
        told(replay_records(folder, policy, chosen))
        for chosen in (Chosen(RECORDERS[0], end=at), Chosen(RECORDERS[0], start=at))
    ]
    assert sum(parts, Counter()) == expected(rows, policy)
    assert all(parts)


def test_rules_by_prefix_apply_to_the_names_in_the_record(folder: Path) -> None:
    rows = rows_of(folder, RECORDERS[0])
    named = tuple(sorted(set(rows.column("channel").drop_null().to_pylist())))
    by_prefix = GatewayPolicy(local_subnet=0, prefixes=(ChannelPolicy("", Visibility.GLOBAL),))
    replay = replay_records(folder, by_prefix, Chosen(RECORDERS[0]))
    assert told(replay) == expected(rows, msgspec.structs.replace(by_prefix, names=named))


@pytest.mark.parametrize("by_prefix", [False, True])
def test_tables_of_the_record_tell_the_same(spark: SparkSession, world: World, by_prefix: bool) -> None:
    policy = random_policy(np.random.default_rng(99))
    if by_prefix:
        policy = msgspec.structs.replace(policy, channels=(), prefixes=(ChannelPolicy("", Visibility.GLOBAL),))
    recorder = WORLD_RECORDERS[0]
    (folder,) = [Path(log) for log in world.config.logs if recorder in list_recorders(log)]
    of_tables = replay_packets(spark, Store(world.tables), policy, recorder=recorder)
    of_record = replay_records(folder, policy, Chosen(recorder))
    assert of_record.changes == of_tables.changes
    assert (of_record.packets, of_record.changed) == (of_tables.packets, of_tables.changed)
    assert of_record.packets > 0


def test_nothing_was_recorded(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no packets were recorded"):
        replay_records(tmp_path, random_policy(np.random.default_rng(4)), Chosen(1))
