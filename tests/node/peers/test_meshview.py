"""What a live node tells about the mesh around it."""

from __future__ import annotations

import asyncio

import pytest

from meshbus.engine.routes.tap import Passed
from meshbus.errors import PeerError
from meshbus.node.node import Node
from meshbus.policy.fate import Fate
from tests.patience import PATIENCE_S

PSK = bytes(32).hex()


async def test_a_chain_of_nodes_is_seen_from_its_end_and_crossed() -> None:
    """Three live nodes; the outer ones know only the middle one."""
    left, middle, right = (
        Node.open(psk=PSK, ephemeral=True, heartbeat_s=0.05, session_timeout_s=2.0) for _ in range(3)
    )
    passed: list[Passed] = []
    async with left, middle, right:
        middle.mesh.record(passed.append)
        for outer in (left, right):
            await outer.connect(middle.address, public_key=middle.public_key)
        await left.connect(public_key=right.public_key)
        async with right.subscribe("sensors/lidar", publisher=left.node_id) as subscription:
            await left.publisher("sensors/lidar", reliable=True).publish_batch([b"over", b"the", b"middle"])
            events: list[bytes] = []
            async with asyncio.timeout(PATIENCE_S):
                while len(events) < 3:
                    batch = await subscription.next_batch()
                    assert batch is not None
                    events += batch.payloads()
        assert events == [b"over", b"the", b"middle"]
        async with right.inbox() as inbox:
            left.send(right.node_id, b"straight to you")
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(aiter(inbox))).payload == b"straight to you"
        assert [node.node_id for node in left.mesh.nodes if node.hops == 2] == [right.node_id]
        assert {route.metric for route in left.mesh.routes} == {1}
        forwarded = sum(len(batch.headers) for batch in passed if batch.fates.item(0) == Fate.FORWARDED)
        assert middle.mesh.gateway.forwarded == forwarded == middle.counters["transit"]["forwarded"]
        middle.mesh.record(None)


async def test_an_unknown_node_is_unreachable_after_the_timeout() -> None:
    async with (
        Node.open(psk=PSK, ephemeral=True, handshake_timeout_s=0.1) as node,
        Node.open(psk=PSK, ephemeral=True) as stranger,
    ):
        with pytest.raises(PeerError, match="no route: it is down"):
            await node.connect(public_key=stranger.public_key)
