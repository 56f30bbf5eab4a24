"""A subscriber that stops reading under full-rate publishing: what each policy promises, and that memory stays bounded.

Both nodes live in this process, so its resident memory is the memory of both sides.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from meshbus import Node, SlowConsumer, WhenFull
from meshbus.node.channels.subscription import Subscription
from tests.node.test_node import PSK

CHANNEL = "sensors/lidar"
MAX_BYTES = 4 << 20
MAX_EVENTS = 16_384
WINDOW = 256 << 10
DRAIN = 512 << 10
"""Bytes that one look at the socket may bring."""
SIZE = 1024
CHUNK = 256
WARM_UP_S = 0.7
"""Kernels, buffers and the queue itself take their memory first."""
ROOM = 48 << 20
"""What may come on top: a window in flight on each side, and what the allocator keeps. An unbounded queue passes it in
a second: a node publishes hundreds of megabytes in that time."""


async def assert_memory_stays_bounded(policy: WhenFull, seconds: float) -> None:
    """Stop reading for so long, then read on; every event must be accounted for."""
    async with (
        Node.open(psk=PSK, ephemeral=True, window_bytes=WINDOW) as publisher,
        Node.open(psk=PSK, ephemeral=True, window_bytes=WINDOW) as subscriber,
    ):
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        queue = subscriber.subscribe(CHANNEL, when_full=policy, max_events=MAX_EVENTS, max_bytes=MAX_BYTES)
        async with queue as subscription:
            stop = asyncio.Event()
            publishing = asyncio.ensure_future(_publish(publisher, stop, wait_s=seconds + 30))
            await asyncio.sleep(WARM_UP_S)
            if policy is WhenFull.BLOCK:
                await _stopped(subscription)
            before, at_start = _resident(), subscription.stats.received
            await _watch(subscription, seconds, before)
            if policy is WhenFull.BLOCK:
                assert subscription.stats.received == at_start, "a full queue must hold the publisher back"
            elif policy is not WhenFull.FAIL:  # the publisher does not wait for this subscriber, else this never ends
                while (subscription.stats.received - at_start) * SIZE <= 2 * MAX_BYTES:
                    await _watch(subscription, 0.2, before)
            stop.set()
            await _account(policy, subscription, publishing)
            assert subscriber.counters["slow_consumer"] == {"subscription": 1}, "told once"


async def _publish(node: Node, stop: asyncio.Event, *, wait_s: float) -> int:
    publisher = node.publisher(CHANNEL, wait_s=wait_s)
    chunk = [bytes(SIZE)] * CHUNK
    sent = 0
    while not stop.is_set():
        report = await publisher.publish_batch(chunk)
        assert report.delivered == report.attempted
        sent += CHUNK
        await asyncio.sleep(0)
    return sent


async def _stopped(subscription: Subscription) -> None:
    """Wait until the queue is full and nothing arrives any more."""
    before = -1
    while subscription.stats.received != before or subscription.stats.pending_bytes < MAX_BYTES - WINDOW:
        before = subscription.stats.received
        await asyncio.sleep(0.5)


async def _watch(subscription: Subscription, seconds: float, before: int) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.05)
        stats = subscription.stats
        assert stats.pending_bytes <= MAX_BYTES + WINDOW + DRAIN, (
            f"{stats.pending_bytes} bytes: more than the queue and one window"
        )
        assert _resident() - before < ROOM


async def _account(policy: WhenFull, subscription: Subscription, publishing: asyncio.Future[int]) -> None:
    """Read on until everything is accounted for."""
    taken = 0
    failed: SlowConsumer | None = None
    try:
        while True:
            async with asyncio.timeout(1.0):
                batch = await subscription.next_batch()
            assert batch is not None
            taken += len(batch)
    except TimeoutError:
        pass
    except SlowConsumer as error:
        failed = error
    stats = subscription.stats
    assert taken == stats.delivered
    assert stats.received == stats.delivered + stats.dropped
    if policy is WhenFull.FAIL:
        assert failed is not None
        with suppress(asyncio.CancelledError):
            publishing.cancel()
            await publishing
        return
    assert failed is None
    assert stats.received == await publishing, "an event is neither lost nor doubled on the way"
    assert (stats.dropped == 0) == (policy is WhenFull.BLOCK)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
