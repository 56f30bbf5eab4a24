"""meshbus: two nodes on loopback, one channel, encrypted UDP.

Modes: `plain` publishes Arrow columns, one window per call, to a stream with credit; `reliable` does the same on an
acknowledged stream. The consumer takes each batch as an Arrow array; with the option `objects` it converts every event to
bytes, as the peers do. `single` publishes one event per call, repeatedly, without sleeping; `send` does so
without waiting for the outcome, and flushes when its queue is full.

The option `window` is the byte credit of a stream (0 is unlimited), `chunk` the bytes per call. Connecting, subscribing,
profile negotiation and compiling kernels are done before anything is timed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import Any

import pyarrow as pa

from bench.peers.task import FRAME_BYTES, STAMP_BYTES, Link, Meter, Task
from meshbus.engine.base.notices import Negotiated
from meshbus.errors import Backpressure
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node

PSK = "42" * 32
CHANNEL = "bench/events"
CHUNK_BYTES = 512 * 1024
"""Bytes of payload and frames per call: the default window."""
LOOK_S = 0.5
"""Seconds between checks of a waiting consumer whether the rest is lost."""


def consume(link: Link, task: Task, meter: Meter) -> None:
    """Subscribe at the producer, and receive batches."""
    warm()
    asyncio.run(_consume(link, task, meter))


def produce(link: Link, task: Task, meter: Meter) -> int:
    """Publish."""
    warm()
    return asyncio.run(_produce(link, task, meter))


async def _consume(link: Link, task: Task, meter: Meter) -> None:
    address, public_key = await asyncio.to_thread(link.hear)
    async with _node(task) as node:
        await node.connect(address, public_key=public_key)
        async with node.subscribe(CHANNEL) as subscription:
            await _profile_agreed(node)
            link.tell("ready")
            watch = asyncio.ensure_future(_end_when_lost(subscription, meter))
            await _take(subscription, task, meter)
            watch.cancel()
            link.tell("finished")


async def _take(subscription: Subscription, task: Task, meter: Meter) -> None:
    objects = task.gap_s or task.mode in {"single", "send"} or task.options.get("objects", False)
    async for batch in subscription.batches():
        if objects:
            meter.add(batch.payloads())
        else:
            array = batch.to_arrow()
            meter.count(len(array), batch.nbytes)
        if meter.done:
            return


async def _end_when_lost(subscription: Subscription, meter: Meter) -> None:
    while not meter.done:  # noqa: ASYNC110 - the meter counts in another task without an event
        await asyncio.sleep(LOOK_S)
    await subscription.close()


async def _produce(link: Link, task: Task, meter: Meter) -> int:
    async with _node(task) as node:
        link.tell((node.address, node.public_key))
        publisher = node.publisher(CHANNEL, reliable=task.mode == "reliable")
        await asyncio.to_thread(link.hear)
        await _profile_agreed(node)
        if task.gap_s:
            meter.begin()
            for _ in range(task.events):
                await publisher.publish(_stamped(task))
                await asyncio.sleep(task.gap_s)
        elif task.mode == "single":
            events = list(task.pool())
            meter.begin()
            for event in islice(cycle(events), task.events):
                await publisher.publish(event)
        elif task.mode == "send":
            events = list(task.pool())
            meter.begin()
            await _send(publisher, islice(cycle(events), task.events))
        else:
            chunks = list(_chunks(task))
            meter.begin()
            for chunk in chunks:
                await publisher.publish_batch(chunk)
        await asyncio.to_thread(link.hear)  # keep answering until the consumer has everything
        return task.events


async def _send(publisher: ChannelPublisher, events: Iterable[bytes]) -> None:
    for event in events:
        try:
            publisher.send(event)
        except Backpressure:
            await publisher.flush()
            publisher.send(event)
    await publisher.flush()


def _node(task: Task) -> Node:
    options = {key: task.options[key] for key in ("window_bytes", "poll_us") if key in task.options}
    return Node.open(psk=PSK, ephemeral=True, **options)


async def _profile_agreed(node: Node) -> None:
    if any(peer.profile for peer in node.peers):
        return
    async for notice in node.notices():
        if isinstance(notice, Negotiated):
            return


def _chunks(task: Task) -> Iterator[Any]:
    """Return slices of one Arrow column of about a window each; prepared and shared, as for the other peers."""
    pool = task.pool()
    mean = sum(map(len, pool)) / len(pool) + FRAME_BYTES
    size = max(1, int(task.options.get("chunk", CHUNK_BYTES) / mean))
    size = size if len(pool) == 1 else max(1, round(size / len(pool))) * len(pool)
    column = pa.array(islice(cycle(pool), size), pa.binary())
    left = task.events
    while left:
        yield column.slice(0, min(size, left))
        left -= min(size, left)


def _stamped(task: Task) -> bytes:
    return b"%016x" % time.monotonic_ns() + bytes(max(task.least - STAMP_BYTES, 0))
