"""Large events between live nodes: one event for the subscriber, one row in the logs, one event for whoever reads them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from meshbus.errors import LocalProtocolError
from meshbus.log.log import Redex
from meshbus.node.node import Node
from tests.node.replicas.replicatrio import CHANNEL as REPLICATED
from tests.node.replicas.replicatrio import replica_trio
from tests.node.test_node import QUICK, nodes, until
from tests.patience import PATIENCE_S

__all__ = ["nodes"]  # a fixture

CAMERA = "cameras/front"
LIMIT = 24 << 20
LOGGED: dict[str, Any] = {"name": CAMERA, "log": "both", "max_event_bytes": LIMIT, "reliable": True}


async def next_payload(subscription: Any) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        batch = await subscription.next_batch()
        assert len(batch) == 1
        assert batch.to_arrow().buffers()[2].address == batch.data.ctypes.data, "Arrow has the memory of the parts"
        payload: bytes = batch.data.tobytes()
        return payload


@pytest.mark.parametrize("reliable", [False, True])
async def test_a_frame_is_one_event(nodes: tuple[Node, Node], reliable: bool) -> None:
    publisher, subscriber = nodes
    frame = os.urandom(3 << 20)
    async with subscriber.subscribe(CAMERA) as subscription:
        sender = publisher.publisher(CAMERA, reliable=reliable)
        report = await sender.publish(frame)
        assert (report.attempted, report.delivered) == (1, 1)
        assert await next_payload(subscription) == frame
        assert (await sender.flush(PATIENCE_S)).acknowledged == 1, "it is acknowledged, whatever the channel is"


async def test_one_event_is_one_row_and_history_reads_it(tmp_path: Path) -> None:
    frame = os.urandom(LIMIT)
    async with (
        Node.open(log_dir=tmp_path / "a", channels=[LOGGED], **QUICK) as publisher,
        Node.open(log_dir=tmp_path / "b", channels=[LOGGED], **QUICK) as subscriber,
    ):
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        sender = publisher.publisher(CAMERA)
        async with subscriber.subscribe(CAMERA) as subscription:
            assert (await sender.publish(frame)).log_seq == 0
            assert (await sender.publish(b"small")).log_seq == 1
            got = [await next_payload(subscription), await next_payload(subscription)]
            assert got == [frame, b"small"]
        async with subscriber.subscribe(CAMERA, since=0) as history:
            assert await next_payload(history) == frame
            assert await next_payload(history) == b"small"
    for place, kind in (("a", "published"), ("b", "received")):
        with Redex(tmp_path / place / kind) as logs, logs.open(CAMERA) as log:
            rows = list(log.read_range(0, log.next_seq))
            assert [(row.pub_seq, len(row.payload)) for row in rows] == [(0, LIMIT), (1, 5)]


async def test_requests_and_replies_may_be_large(nodes: tuple[Node, Node]) -> None:
    responder, asker = nodes

    async def mirror(payload: bytes) -> bytes:
        return payload[::-1]

    question = os.urandom(1 << 20)
    async with responder.respond("planner/plan", mirror):
        answer = await asker.request(responder.node_id, "planner/plan", question, timeout_s=PATIENCE_S)
    assert answer == question[::-1]


async def test_what_cannot_be_replicated_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        publisher = next(iter(trio.nodes.values())).publisher(REPLICATED)
        assert publisher.max_event_bytes == 7971
        with pytest.raises(LocalProtocolError, match="the limit is 7971 bytes"):
            await publisher.publish(bytes(7972))


async def test_the_memory_of_frames_is_given_back(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe(CAMERA) as subscription:
        sender = publisher.publisher(CAMERA)
        for size in (9000, 200_000, 1 << 20):
            await sender.publish(bytes(size))
            assert len(await next_payload(subscription)) == size
    await until(lambda: not subscriber.live.engine.large.nbytes)
