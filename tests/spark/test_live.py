"""What live nodes logged and recorded becomes true tables, and a replay says before what a fleet does after."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from meshbus.log.schema import PACKETS, arrow_schema
from meshbus.names.subnet import SubnetId
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.spark.io.inputs import recorded_policies
from meshbus.spark.lake.tables import Tables, tables
from meshbus.spark.lake.tableschema import DECISIONS
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.kernelgateway import Judge
from meshbus.spark.replay.replay import fate, replay_packets
from meshbus.spark.run.pipelineconfig import PipelineConfig, load_policy
from meshbus.spark.run.runner import run
from tests.spark import oracle
from tests.spark.live import FIRST, PROPOSED, READERS, Fleet, Rules, gateway_settings, run_fleet
from tests.spark.oracle import as_set, assert_alike, plain
from tests.spark.packets import read_record, said
from tests.spark.world import rows_of_logs

PUBLISHES = 8_000
"""Each is a packet for every reader."""
MANY_PUBLISHES = 34_000
"""Ten rounds of them are a million packets."""
SEED = 5
VISIBLE = {"plant/open", "plant/out", "plant/late", "plant/bosses"}
"""What the first rules let pass to the reader that logs; of the last one only what the boss says."""


class Lived(NamedTuple):
    """A fleet, and the tables of it."""

    folder: Path
    fleet: Fleet
    tables: Tables
    packets: pa.Table
    """What was recorded, read without Spark."""


def live(spark: SparkSession, folder: Path, *, publishes: int, rounds: int = 1) -> Lived:
    fleet = asyncio.run(run_fleet(folder, FIRST, name="log", publishes=publishes, seed=SEED, rounds=rounds))
    run(spark, PipelineConfig(tables=str(folder / "tables"), logs=(str(fleet.log_dir),)), once=True)
    return Lived(folder, fleet, tables(spark, folder / "tables"), read_record(fleet.log_dir))


@pytest.fixture(scope="module")
def lived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return live(spark, tmp_path_factory.mktemp("live"), publishes=PUBLISHES)


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


def test_events_are_what_was_published_and_what_the_log_holds(lived: Lived) -> None:
    rows = lived.tables["bronze.events"].toArrow().to_pylist()
    assert as_set(map(plain, rows)) == as_set(rows_of_logs(lived.fleet.log_dir))
    arrived = {channel: sorted(row["payload"] for row in rows if row["channel"] == channel) for channel in VISIBLE}
    expected = {channel: sorted(lived.fleet.published[channel]) for channel in VISIBLE}
    expected["plant/bosses"] = [payload for payload in expected["plant/bosses"] if payload.startswith(b"boss")]
    assert arrived == expected
    assert len(rows) == sum(map(len, expected.values()))
    silver = lived.tables["silver.events"].toArrow().to_pylist()
    assert as_set(map(plain, silver)) == as_set({**plain(row), "codec": None, "value": None} for row in rows)
    assert lived.tables["silver.quarantine"].count() == 0


def test_packets_are_what_the_nodes_recorded(lived: Lived) -> None:
    schema = arrow_schema(PACKETS, dictionaries=False).remove_metadata()
    found = lived.tables["bronze.packets"].toArrow().select(schema.names).cast(schema)
    assert in_order(found).equals(in_order(lived.packets.cast(schema)))
    sent = len(lived.packets.filter(lived.packets.column("src").is_valid()))
    assert sent == PUBLISHES * len(READERS)


def test_gold_equals_plain_python(lived: Lived) -> None:
    events, packets = lived.tables["silver.events"].toArrow().to_pylist(), lived.packets.to_pylist()
    read = {name: table.toArrow().to_pylist() for name, table in lived.tables.items() if name.startswith("gold.")}
    assert_alike(read["gold.channel_stats"], oracle.channel_stats(events, rows_of_logs(lived.fleet.log_dir)))
    assert as_set(read["gold.traffic_matrix"]) == as_set(oracle.traffic_matrix(events, packets))
    assert as_set(read["gold.denials"]) == as_set(oracle.denials(packets))
    assert as_set(read["gold.top_talkers"]) == as_set(oracle.top_talkers(events))
    assert as_set(read["gold.gaps"]) == as_set(oracle.gaps(rows_of_logs(lived.fleet.log_dir)))
    assert {row["missing"] for row in read["gold.gaps"] if row["kind"] == "log"} == {0}


def test_recomputed_verdicts_are_the_recorded_ones(lived: Lived) -> None:
    check_decisions(lived, PUBLISHES * len(READERS))
    schema = arrow_schema(DECISIONS, dictionaries=False).remove_metadata()
    schema = pa.schema([field for field in schema if field.name not in {"recomputed", "agrees"}])
    found = lived.tables["silver.decisions"].toArrow().select(schema.names).cast(schema)
    assert in_order(found).equals(in_order(lived.packets.select(schema.names).cast(schema)))


def check_decisions(lived: Lived, least: int) -> None:
    """The node, the kernel on recorded columns and Column expressions have said the same of every packet."""
    rows = lived.tables["silver.decisions"].select("verdict", "reason", "recomputed", "agrees").toArrow().to_pylist()
    assert len(rows) == len(lived.packets)
    for row in rows:
        assert row["recomputed"] == said(row)
        assert row["agrees"] is (None if said(row) is None else True)
    assert sum(row["agrees"] is True for row in rows) >= least
    assert {row["recomputed"] for row in rows} == {None, 0, 1, 2, 3, 4, 6}
    own = of_gateway(lived.packets, lived.fleet)
    for version in set(own.column("policy_version").to_pylist()):
        part = own.filter(pa.array(own.column("policy_version").to_numpy() == version))
        verdicts, meant = Judge(policy_of(lived.fleet, version)).judge_batch(part)
        by_kernel = [int(verdict) if mine else None for verdict, mine in zip(verdicts, meant, strict=True)]
        assert by_kernel == [said(row) for row in part.select(["verdict", "reason"]).to_pylist()]


def of_gateway(packets: pa.Table, fleet: Fleet) -> pa.Table:
    """What the gateway recorded."""
    return packets.filter(pa.array(packets.column("recorder").to_numpy().view(np.uint64) == fleet.gateway))


def policy_of(fleet: Fleet, version: int) -> GatewayPolicy:
    recorder = int(np.array([fleet.gateway], np.uint64).view(np.int64)[0])
    return recorded_policies(str(fleet.log_dir))[recorder, version]


def test_a_proposed_policy_does_what_the_replay_said(spark: SparkSession, lived: Lived) -> None:
    check_prediction(spark, lived, publishes=PUBLISHES)


def check_prediction(spark: SparkSession, lived: Lived, *, publishes: int, rounds: int = 1) -> None:
    """Replay a policy over what was recorded, then let the same nodes live under it and publish the same."""
    file = lived.folder / "proposed.toml"
    file.write_text(as_toml(PROPOSED, {"plant/late": [lived.fleet.origins["boss"]]}))
    proposed = load_policy(file)
    replay = replay_packets(spark, Store(lived.folder / "tables"), proposed, recorder=lived.fleet.gateway)
    after = asyncio.run(run_fleet(lived.folder, PROPOSED, name="after", publishes=publishes, seed=SEED, rounds=rounds))
    assert after.gateway == lived.fleet.gateway
    deployed = policy_of(after, 1)
    unlisted = [msgspec.structs.replace(rule, publishers=None) for rule in proposed.channels]
    assert deployed == msgspec.structs.replace(
        proposed,
        channels=tuple(sorted(unlisted, key=lambda rule: rule.name)),
        peer_subnets=tuple(sorted(proposed.peer_subnets)),
    )

    before, then = (
        of_gateway(packets, fleet)
        for packets, fleet in ((lived.packets, lived.fleet), (read_record(after.log_dir), after))
    )
    judged, meant = Judge(proposed).judge_batch(before)
    assert meant.any()
    predicted = by_packet(before, judged.tolist())
    recorded = by_packet(then, then.column("reason").to_pylist())
    assert predicted.total() == publishes * rounds * len(READERS)
    assert predicted == recorded
    assert {verdict for _, verdict in predicted} == {0, 1, 2, 3, 4, 6}

    told: Counter[tuple[Any, ...]] = Counter()
    for change in replay.changes:
        told[change.channel, change.src, change.dst, change.proposed] += change.packets
    seen = Counter(
        (row["channel"], *(str(SubnetId(row[name] % 2**32)) for name in ("src", "dst")), fate(row["reason"]))
        for row in then.select(["channel", "src", "dst", "reason"]).to_pylist()
        if row["src"] is not None
    )
    assert told == seen
    assert replay.changed > publishes


def by_packet(packets: pa.Table, verdicts: list[int]) -> Counter[tuple[Any, int]]:
    """Return the verdict on each publication, by who sent which packet of which channel to whom."""
    names = ["origin", "stream_id", "route_dst", "packet_seq", "src"]
    rows = zip(*(packets.column(name).to_pylist() for name in names), verdicts, strict=True)
    return Counter((tuple(key), verdict) for *key, src, verdict in rows if src is not None)


def as_toml(rules: Rules, publishers: dict[str, list[int]]) -> str:
    """Return the gateway's configuration as a file, with the publishers that a replay cannot know."""
    settings = gateway_settings(rules)
    lines = [f"{key} = {json.dumps(settings[key])}" for key in ("subnet", "gateway", "peer_subnets")]
    for entry in settings["exports"]:
        lines += ["[[exports]]", *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]
    for entry in settings["channels"]:
        lines += [
            "[[channels]]",
            f"name = {json.dumps(entry['name'])}",
            f"visibility = {json.dumps(entry['visibility'])}",
        ]
        if "publish_caps" in entry:
            lines.append(f"publish_caps = {{require_tags = {json.dumps(entry['publish_caps']['require_tags'])}}}")
        if entry["name"] in publishers:
            lines.append(f"publishers = {json.dumps([f'{origin:016x}' for origin in publishers[entry['name']]])}")
    return "\n".join(lines)


@pytest.mark.soak
def test_a_million_packets(spark: SparkSession, tmp_path: Path) -> None:
    lived = live(spark, tmp_path, publishes=MANY_PUBLISHES, rounds=10)
    check_decisions(lived, 1_000_000)
    check_prediction(spark, lived, publishes=MANY_PUBLISHES, rounds=10)
