"""Publishing on a replicated channel."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from meshbus import Node, NodeConfig
from meshbus.errors import AuthError, LocalProtocolError
from meshbus.node.replicas.replicapublish import MAX_PAYLOAD
from tests.node.replicas.replicatrio import CHANNEL, replica_trio, until


async def test_every_form_of_publishing_from_every_member(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        expected: list[bytes] = []
        for name, node in trio.nodes.items():
            async with node.publisher(CHANNEL) as publisher:
                assert (await publisher.publish(f"{name}.a")).log_seq == len(expected)
                report = await publisher.publish_batch(pa.array([b"b", b"c"]))
                assert report.log_seq == len(expected) + 1
                await publisher.publish_batch([])
                assert (await publisher.flush()).attempted == 0
                expected += [f"{name}.a".encode(), b"b", b"c"]
        await trio.settled()
        assert [trio.payloads(name) for name in trio.nodes] == [expected] * 3


async def test_publishes_at_the_same_time_keep_their_order(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        publisher = trio.nodes[trio.follower()].publisher(CHANNEL)
        reports = await asyncio.gather(*(publisher.publish(str(number)) for number in range(200)))
        assert [report.log_seq for report in reports] == list(range(200))
        await trio.settled()
        assert trio.payloads("n0") == [str(number).encode() for number in range(200)]


async def test_the_largest_event_is_replicated_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        publisher = trio.nodes[trio.follower()].publisher(CHANNEL)
        await publisher.publish(bytes(MAX_PAYLOAD))
        with pytest.raises(LocalProtocolError, match=r"7972 bytes.*the limit is 7971 bytes"):
            await publisher.publish(bytes(MAX_PAYLOAD + 1))
        await trio.settled()
        assert trio.payloads("n2") == [bytes(MAX_PAYLOAD)]


async def test_a_batch_is_published_once_across_a_change_of_the_leader(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        table = pa.table({"payload": [str(row).encode() for row in range(10)], "ts_ns": list(range(10))})
        first = await trio.led()
        node = trio.nodes[trio.follower()]
        publisher = node.publisher(CHANNEL)
        assert await publisher.publish_once(table.slice(0, 4), writer="w", batch=1) == 4
        await trio.nodes[first].replica_transfer(CHANNEL, node.node_id)
        assert await publisher.publish_once(table, writer="w", batch=1) == 6
        await trio.nodes[node.config.name or ""].replica_transfer(CHANNEL, first)
        assert await publisher.publish_once(table, writer="w", batch=1) == 0
        await trio.settled()
        await until(lambda: trio.payloads(first) == table.column("payload").to_pylist())
        log = trio.member(first).disk.log.committed
        assert [event.ts_ns for event in log.read_range(0, 10)] == list(range(10))


async def test_a_node_without_permission_does_not_publish(tmp_path: Path) -> None:
    entry = {"name": CHANNEL, "replicas": ["alone"], "publish_caps": {"require_tags": ["boss"]}}
    config = NodeConfig.load(env={}, name="alone", psk="00" * 32, ephemeral=True, log_dir=tmp_path, channels=[entry])
    async with Node(config) as node:
        with pytest.raises(AuthError, match="may not publish on 'alarms'"):
            await node.publisher(CHANNEL).publish(b"x")
