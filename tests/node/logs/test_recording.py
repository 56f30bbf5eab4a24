"""The flight recorder on live nodes: what was recorded, what was counted and what arrived are the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from meshbus.config.node import NodeConfig
from meshbus.config.spelling import DiskBytes
from meshbus.engine.routes.boundary import NOT_ASKED
from meshbus.engine.routes.tap import Decided, InColumns, Passed, Recorder
from meshbus.errors import ConfigError, LogError
from meshbus.log.packets.arrow import headers_of
from meshbus.log.packets.policies import load_policies
from meshbus.log.packets.reader import PacketReader, list_recorders
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.log.packets.store import LEAST_BYTES
from meshbus.log.schema import PACKETS, arrow_schema, unsigned
from meshbus.names.channel import ChannelName
from meshbus.names.identity import routing_id
from meshbus.names.subnet import SubnetId
from meshbus.node.logs import recording
from meshbus.node.logs.recording import Recording, sampling_seed
from meshbus.node.node import Node
from meshbus.policy.fate import Fate
from meshbus.policy.reason import BEFORE_GATEWAY, RECORDED, DropReason
from meshbus.policy.verdict import VERDICTS
from tests.engine.fleet import subscribed
from tests.engine.test_gateway_packets import CHANNELS, FINE, READERS, SPENT, WORN, Fleet, with_hops
from tests.patience import PATIENCE_S

PSK = bytes(32).hex()
OPEN, CLOSED = "fleet/open", "fleet/closed"
EVENTS = 600


def table_of(log_dir: Path, node_id: int) -> pa.Table:
    snapshot = PacketReader(log_dir, node_id).snapshot()
    return pa.Table.from_batches(snapshot.batches(), arrow_schema(PACKETS))


def u64(value: int) -> int:
    return value % 2**64


def judged_again(log_dir: Path, node_id: int) -> int:
    """Judge everything that a gateway judged anew, by the policy in force then; return how many packets that were."""
    policies = load_policies(PacketReader(log_dir, node_id).folder)
    count = 0
    for batch in PacketReader(log_dir, node_id).snapshot().batches():
        rows = batch.to_pylist()
        mine = [n for n, row in enumerate(rows) if row["verdict"] != Fate.DELIVERED and row["reason"] < VERDICTS]
        for version in {rows[n]["policy_version"] for n in mine}:
            chosen = [n for n in mine if rows[n]["policy_version"] == version]
            part = [rows[n] for n in chosen]
            source, dest = (unsigned(np.array([row[name] or 0 for row in part], np.int32)) for name in ("src", "dst"))
            verdicts = policies[version].judge_again(
                headers_of(batch)[chosen],
                source,
                dest,
                np.array([row["route_ttl"] for row in part], np.uint8),
                np.array([NOT_ASKED if row["guard"] is None else row["guard"] for row in part], np.uint8),
            )
            assert verdicts.tolist() == [row["reason"] for row in part]
            count += len(part)
    return count


class Both:
    """Pass what happens to two recorders."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def passed(self, told: Passed) -> None:
        for recorder in self._recorders:
            recorder.passed(told)

    def crossed(self, at: float, data: Any, begin: int, size: int, count: int, decided: Decided) -> None:
        for recorder in self._recorders:
            recorder.crossed(at, data, begin, size, count, decided)


BY_NAME = ({"name": OPEN, "visibility": "global"}, {"name": CLOSED, "visibility": "subnet-local"})
BY_PREFIX = ({"prefix": "fleet/o", "visibility": "global"}, {"prefix": "fleet/", "visibility": "subnet-local"})


def nodes(log_dir: Path, channels: tuple[dict[str, str], ...] = BY_NAME, **options: Any) -> list[Node]:
    """Make a publisher, a gateway and a subscriber, in three subnets, that all record."""
    rules = [{"match_tags": [f"at:{place}"], "target_subnet": place} for place in ("1", "2", "3")]
    common = {
        "psk": PSK, "ephemeral": True, "heartbeat_s": 0.05, "session_timeout_s": 5.0, "subnet_rules": rules,
        "log_dir": log_dir, "record_packets": True, **options,
    }  # fmt: skip
    return [
        Node.open(tags=["at:1"], subnet="1", **common),
        Node.open(tags=["at:2"], subnet="2", gateway=True, peer_subnets=["1", "3"], channels=channels, **common),
        Node.open(tags=["at:3"], subnet="3", **common),
    ]


async def cross(left: Node, middle: Node, right: Node, *, padding: int = 100) -> list[bytes]:
    """Publish on a channel that may cross and on one that may not; return what arrived."""
    for outer in (left, right):
        await outer.connect(middle.address, public_key=middle.public_key)
    async with asyncio.timeout(PATIENCE_S):
        while right.node_id not in {route.node_id for route in left.mesh.routes}:  # noqa: ASYNC110 - pingwaves tell
            await asyncio.sleep(0.01)
    await left.connect(public_key=right.public_key)
    arrived: list[bytes] = []
    async with (
        right.subscribe(OPEN, publisher=left.node_id) as subscription,
        right.subscribe(CLOSED, publisher=left.node_id) as nothing,
    ):
        async with asyncio.timeout(PATIENCE_S):  # announcements tell the gateway who is where
            while not arrived:
                await left.publisher(OPEN).publish(b"first")
                await asyncio.sleep(0.02)
                while subscription.stats.pending:
                    batch = await subscription.next_batch()
                    arrived += [] if batch is None else batch.payloads()
        await left.publisher(CLOSED).publish_batch([b"stays"] * 50)
        due = len(arrived) + EVENTS
        await left.publisher(OPEN).publish_batch([b"%d" % n + b"." * padding for n in range(EVENTS)])
        async with asyncio.timeout(PATIENCE_S):
            while len(arrived) < due:
                batch = await subscription.next_batch()
                assert batch is not None
                arrived += batch.payloads()
        assert nothing.stats.pending == 0
    return arrived


async def test_three_nodes_in_a_line_record_their_packets(tmp_path: Path) -> None:
    left, middle, right = nodes(tmp_path)
    async with left, middle, right:
        ids = [node.node_id for node in (left, middle, right)]
        arrived = await cross(left, middle, right)
        for node in (
            right,
            middle,
        ):  # so that counters and record end with the same packet, first at the end of the line
            assert node._opened.recording is not None
            node._opened.recording.close()
        counters, stats = middle.counters, middle.mesh.gateway
    assert sorted(list_recorders(tmp_path)) == sorted(ids)
    left_id, middle_id, right_id = ids
    at_middle, at_right = (table_of(tmp_path, node_id).to_pylist() for node_id in (middle_id, right_id))

    # What was counted is what was recorded.
    verdicts = Counter((row["verdict"], row["reason"]) for row in at_middle if row["route_dst"] is not None)
    assert verdicts[Fate.FORWARDED, 0] == counters["transit"]["forwarded"] == stats.forwarded
    for (verdict, reason), count in verdicts.items():
        assert verdict != Fate.DROPPED or counters["drop"][RECORDED[reason].why] == count
    assert sum(stats.drops.values()) == sum(count for (_, reason), count in verdicts.items() if 0 < reason < VERDICTS)
    assert counters["record"]["taken"] == len(at_middle)

    # What arrived is what was recorded.
    channel = ChannelName(OPEN)
    delivered = [row for row in at_right if row["channel"] == OPEN and row["verdict"] == Fate.DELIVERED]
    assert sum(row["event_count"] for row in delivered) == len(arrived) > EVENTS
    assert {u64(row["chash64"]) for row in delivered} == {channel.hash}
    assert {u64(row["stream_id"]) for row in delivered} == {channel.stream_id}

    # A packet is the same packet at the gateway and at the subscriber, one hop later.
    def key(row: dict[str, Any]) -> tuple[int, int, int]:
        return row["session_id"], row["nonce_prefix"], row["counter"]

    before = {key(row): row for row in at_middle if row["next_hop"] is not None and u64(row["next_hop"]) == right_id}
    after = {key(row): row for row in at_right if row["route_dst"] is not None}
    assert after
    assert set(after) <= set(before)
    changed = {"recorder", "ts", "ts_ns", "previous_hop", "next_hop", "route_ttl", "route_hops", "hops", "verdict"}
    own = {"policy_version", "channel", "chash64", "src", "dst", "guard"}
    for which, row in after.items():
        earlier = before[which]
        same = set(row) - changed - own
        assert {name: row[name] for name in same} == {name: earlier[name] for name in same}
        assert (row["route_ttl"], row["route_hops"]) == (earlier["route_ttl"] - 1, earlier["route_hops"] + 1)
        assert row["hops"] == earlier["hops"] + (1 if row["ttl"] else 0)
        assert (u64(earlier["previous_hop"]), u64(row["previous_hop"])) == (left_id, middle_id)
        assert row["route_src"] % 2**32 == routing_id(left_id)
        assert u64(row["route_dst"]) == right_id
        assert earlier["ts_ns"] <= row["ts_ns"]

    # The gateway wrote down what it went by.
    refused = [row for row in at_middle if row["channel"] == CLOSED and row["route_dst"] is not None]
    assert {(row["verdict"], RECORDED[row["reason"]].word, row["next_hop"]) for row in refused} == {
        (Fate.DROPPED, "subnet_local", None)
    }
    assert {(row["src"], row["dst"]) for row in refused} == {(int(SubnetId.parse("1")), int(SubnetId.parse("3")))}
    assert judged_again(tmp_path, middle_id) == stats.forwarded + sum(stats.drops.values())


async def test_every_node_samples_the_same_packets(tmp_path: Path) -> None:
    line = nodes(tmp_path, record_sampling=3)
    left, middle, right = line
    async with left, middle, right:
        await cross(left, middle, right, padding=1_000)  # so many packets that chance has no say in what follows
        counters = right.counters["record"]
    at_middle, at_right = (table_of(tmp_path, node.node_id).to_pylist() for node in (middle, right))
    assert {row["sampling_rate"] for row in at_middle + at_right} == {3}
    seen = {(row["session_id"], row["counter"]) for row in at_middle}
    relayed = [(row["session_id"], row["counter"]) for row in at_right if row["route_dst"] is not None]
    assert relayed
    assert set(relayed) <= seen
    assert counters["unsampled"] > 0
    assert counters["taken"] > 0


async def test_rules_by_prefix_are_recorded_with_the_names_that_were_learned(tmp_path: Path) -> None:
    left, middle, right = nodes(tmp_path, BY_PREFIX)
    async with left, middle, right:
        gateway = middle.node_id
        assert len(await cross(left, middle, right)) > EVENTS
        drops = middle.mesh.gateway.drops
    rows = table_of(tmp_path, gateway).to_pylist()
    assert any(row["channel"] == OPEN and row["verdict"] == Fate.FORWARDED for row in rows)
    # Whether the second name was announced in time or not, its events did not cross.
    assert drops[DropReason.UNRESOLVED_CHANNEL] + drops[DropReason.SUBNET_LOCAL] > 0
    policies = load_policies(PacketReader(tmp_path, gateway).folder).values()
    assert OPEN in {name for policy in policies for name in policy.names}
    assert judged_again(tmp_path, gateway) > 0


@pytest.mark.parametrize("publisher_known", [True, False])
def test_the_decision_table_is_recorded_and_judged_again(tmp_path: Path, publisher_known: bool) -> None:
    fleet = Fleet(publisher_known=publisher_known)
    engine = fleet.gateway.engine
    packets = []
    for channel in CHANNELS:
        for reader in READERS:
            subscribed(fleet.readers[reader], fleet.publisher, channel)
            sealed = fleet.sealed(channel, reader)
            packets += [with_hops(sealed, ttl) for ttl in (FINE, SPENT, WORN)]
    before = engine.mesh.boundary.gateway.stats
    tap, takes = engine.mesh.tap, []
    for folder in (tmp_path, tmp_path / "columns"):
        recording = Recording(engine, PacketRecorder(folder, engine.node_id, background=False))
        assert tap.recorder is recording
        takes.append(recording)
    recording, in_two_steps = takes
    tap.recorder = Both(recording, InColumns(in_two_steps.passed))
    for packet in packets:
        fleet.net.inject("publisher", "gateway", packet)
    fleet.net.run(for_s=0.05)
    for one in (recording, in_two_steps):
        one.close()
    after = engine.mesh.boundary.gateway.stats
    rows = table_of(tmp_path, engine.node_id).to_pylist()
    judged = [row for row in rows if row["route_dst"] is not None and row["reason"] not in BEFORE_GATEWAY]
    counted = Counter(row["reason"] for row in judged)
    assert counted[0] == after.forwarded - before.forwarded
    assert {reason: counted[reason] for reason in after.drops} == {
        reason: count - before.drops[reason] for reason, count in after.drops.items()
    }
    assert judged_again(tmp_path, engine.node_id) == len(judged) >= len(packets)
    both = [
        table_of(folder, engine.node_id).drop_columns(["ts", "ts_ns"]) for folder in (tmp_path, tmp_path / "columns")
    ]
    assert both[0].equals(both[1]), "from the receive buffer, the rows are those of the columns"
    names = {row["channel"] for row in judged}
    assert names == {None, *(name for name, config in CHANNELS.items() if config is not None)}


async def test_nothing_is_recorded_without_the_setting(tmp_path: Path) -> None:
    async with Node.open(psk=PSK, ephemeral=True, log_dir=tmp_path) as node:
        assert node._opened.recording is None
        assert "record" not in node.counters
        assert node.live.engine.mesh.tap.recorder is None
    assert list_recorders(tmp_path) == []


async def test_a_record_that_another_process_writes_is_refused_at_start(tmp_path: Path) -> None:
    node = Node.open(psk=PSK, ephemeral=True, log_dir=tmp_path, record_packets=True)
    other = PacketRecorder(tmp_path, node.node_id, background=False)
    with pytest.raises(LogError, match="another node with this identity"):
        await node.start()
    other.close()
    async with node:
        pass


def test_the_error_names_a_missing_or_bad_setting_of_the_recorder() -> None:
    with pytest.raises(ConfigError, match="log_dir"):
        NodeConfig.load(env={}, record_packets=True)
    with pytest.raises(ConfigError, match="record_retain_bytes"):
        NodeConfig.load(env={}, record_retain_bytes=LEAST_BYTES - 1)
    assert DiskBytes.__metadata__[0].ge == LEAST_BYTES  # type: ignore[attr-defined]


def test_the_sampling_seed_is_the_same_in_a_mesh_and_does_not_reveal_its_key() -> None:
    seeds = {sampling_seed(bytes([number]) * 32) for number in range(100)}
    assert len(seeds) == 100
    assert sampling_seed(bytes(32)) == sampling_seed(bytes(32)) < 2**64


async def test_models_are_made_again_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_MODELS", 1)
    left, middle, right = nodes(tmp_path)
    async with left, middle, right:
        arrived = await cross(left, middle, right)
        kept = middle._opened.recording
        assert kept is not None
        assert len(kept._models) <= 1
        assert middle.counters["forget"]["record_models"] > 0
    assert len(arrived) > EVENTS
