"""Publish messages of ZeroMQ applications as events, each on the channel of its topic and under that channel's policy.

Every channel has its own queue, so that a channel with slow subscribers does not delay the others. Each queue is
bounded in messages, all queues together in bytes; messages above the limits are dropped and counted. The other
direction is edge/egress.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from meshbus.edge.queue import HIGH_WATER
from meshbus.edge.refusals import Direction, Refusals
from meshbus.edge.topics import TopicMap
from meshbus.engine.base.counters import Counters
from meshbus.engine.channels.publish import OnFailure, PublishConfig, PublishReport
from meshbus.errors import ChannelError, ChannelFault, MeshError
from meshbus.names.channel import ChannelName
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.node import Node
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import MAX_EVENT

MAX_CHANNELS = 1024
"""Channels that one bridge publishes on; applications choose topics, so their number needs a limit."""
MAX_BYTES = 64 << 20
"""Bytes that may wait in all queues together; the same as the default queue of one peer."""
BATCH = 256
"""Events passed to the node at once: many fit one packet, and a batch is refused or sent as a whole."""

_CONFIG = PublishConfig(on_failure=OnFailure.COLLECT)

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Future[None]"]
"""Starts a task whose exceptions are logged."""


BOUNDS = (
    Bound(
        name="bridge_channels",
        what="channels that applications publish on through a bridge",
        by=By.OUTSIDER,
        per_node=MAX_CHANNELS,
        full="the message is refused",
        counter=Reason.REFUSE_PUBLISH_TOO_MANY_CHANNELS,
    ),
    Bound(
        name="bridge_queue",
        what="bytes of messages that wait for the mesh",
        by=By.OUTSIDER,
        per_node=MAX_BYTES,
        per={"channel, in messages": HIGH_WATER},
        unit="bytes",
        full="the message is refused",
        counter=Reason.REFUSE_PUBLISH_BEHIND,
    ),
)


class _ChannelQueue:
    """Queue of events for one channel."""

    __slots__ = ("publisher", "running", "topic", "waiting")

    def __init__(self, publisher: ChannelPublisher, topic: bytes) -> None:
        self.publisher = publisher
        self.topic = topic
        self.waiting: deque[bytes] = deque()
        self.running = False


class Ingress:
    """Publishes messages of applications on the mesh."""

    def __init__(self, node: Node, topics: TopicMap, counters: Counters, refusals: Refusals, spawn: Spawn) -> None:
        self._node = node
        self._topics = topics
        self._counters = counters
        self._refusals = refusals
        self._spawn = spawn
        self._queues: dict[bytes, _ChannelQueue] = {}
        self._bytes = 0

    def open(self, channel: ChannelName) -> None:
        """Announce a channel before anything is published on it. Raises MeshError."""
        topic = self._topics.topic_of(channel)
        self._queues[topic] = _ChannelQueue(self._node.publisher(channel, _CONFIG), topic)

    async def close(self) -> None:
        """Close the publishers, so that the mesh no longer counts their channels as published here."""
        for queue in self._queues.values():
            await queue.publisher.close()

    def take(self, message: tuple[bytes, ...]) -> None:
        """Queue one message of an application for publication, or refuse it."""
        topic = message[0]
        # docs/decisions/0018: more parts would become events that only bridges understand.
        if len(message) != 2:
            problem = f"a message must have 2 parts, topic and payload, got {len(message)}"
            self._refusals.add(topic, Reason.REFUSE_PUBLISH_PARTS, problem)
            return
        event = message[1]
        # Queues are found by topic, so that the channel name is checked once per topic and not per message.
        queue = self._queues.get(topic) or self._new_queue(topic)
        if queue is None:
            return
        # Few messages do not fit a packet; only for them it matters what the channel allows.
        if len(event) > MAX_EVENT and len(event) > (most := queue.publisher.max_event_bytes):
            problem = f"an event must have at most {most} bytes (max_event_bytes of the channel), got {len(event)}"
            self._refusals.add(topic, Reason.REFUSE_PUBLISH_TOO_LARGE, problem)
            return
        if len(queue.waiting) >= HIGH_WATER or self._bytes + len(event) > MAX_BYTES:
            problem = f"{len(queue.waiting)} messages already wait to be sent to the mesh; publish more slowly"
            self._refusals.add(topic, Reason.REFUSE_PUBLISH_BEHIND, problem)
            return
        queue.waiting.append(event)
        self._bytes += len(event)
        if not queue.running:  # one task per queue keeps the order of its events
            queue.running = True
            self._spawn(self._drain(queue))

    def _new_queue(self, topic: bytes) -> _ChannelQueue | None:
        try:
            channel = self._topics.channel_of(topic)
        except ChannelError as error:
            self._refusals.add(topic, Reason.REFUSE_PUBLISH_BAD_TOPIC, str(error))
            return None
        if not self._topics.takes(channel):
            problem = f"channel {str(channel)!r} is not in channels_in; add it there"
            self._refusals.add(topic, Reason.REFUSE_PUBLISH_NOT_EXPOSED, problem)
            return None
        if len(self._queues) >= MAX_CHANNELS:
            problem = f"the bridge already publishes on {MAX_CHANNELS} channels, the maximum; use fewer topics"
            self._refusals.add(topic, Reason.REFUSE_PUBLISH_TOO_MANY_CHANNELS, problem)
            return None
        try:
            self.open(channel)
        except MeshError as error:
            self._refusals.add_error(Direction.PUBLISH, topic, error)
        return self._queues.get(topic)

    async def _drain(self, queue: _ChannelQueue) -> None:
        try:
            while queue.waiting:
                events = _next_batch(queue.waiting)
                self._bytes -= sum(map(len, events))
                await self._publish(queue, events)
        finally:
            queue.running = False

    async def _publish(self, queue: _ChannelQueue, events: list[bytes]) -> None:
        try:
            report = await queue.publisher.publish_batch(events)
        except ChannelError as error:
            if error.fault is ChannelFault.RATE_LIMITED and len(events) > 1:
                for event in events:  # the rate limit may still allow some of them
                    await self._publish(queue, [event])
                return
            self._refusals.add_error(Direction.PUBLISH, queue.topic, error, len(events))
        except MeshError as error:
            self._refusals.add_error(Direction.PUBLISH, queue.topic, error, len(events))
        else:
            # No subscriber is not an error: a PUB socket drops such messages too.
            self._counters.add("publish", "nobody" if report.is_empty else "sent", len(events))
            self._report_losses(queue, report, len(events))

    def _report_losses(self, queue: _ChannelQueue, report: PublishReport, events: int) -> None:
        """Record which subscribers did not get the events, and why."""
        for node_id, why in report.filtered:
            problem = f"the policy of the channel does not allow subscriber {node_id:016x}"
            self._refusals.pass_on(Direction.PUBLISH, queue.topic, why, problem, events)
        for leg in report.errors:
            self._refusals.pass_on(Direction.PUBLISH, queue.topic, leg.code, leg.message, events)


def _next_batch(waiting: deque[bytes]) -> list[bytes]:
    """Take the next events; one that does not fit a packet goes alone, because it is sent in another way."""
    events = [waiting.popleft()]
    if len(events[0]) <= MAX_EVENT:
        while waiting and len(events) < BATCH and len(waiting[0]) <= MAX_EVENT:
            events.append(waiting.popleft())
    return events
