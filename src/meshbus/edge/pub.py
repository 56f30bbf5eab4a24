"""Publishers: one message to every subscriber that asked for a prefix of its topic.

The hub (edge/hub.py) decides who gets what and holds the queues; here bytes are moved. What is published within one
turn of the loop leaves together at its end, or earlier when there is much of it: publishing never waits, so a program
that publishes in a tight loop must not have to stop for its messages to leave.

A subscriber that does not keep up loses the newest messages beyond its high-water mark, alone, and it is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from enum import Enum
from itertools import chain
from typing import TypeAlias, Unpack

from meshbus.edge.connection import Connection
from meshbus.edge.endpoint import Endpoint, EndpointOptions
from meshbus.edge.hub import Change, HubLimits, HubStats, PubSubHub
from meshbus.edge.mailbox import Mailbox
from meshbus.edge.queue import HIGH_WATER, QUEUE_BYTES, QueueStats
from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.framing import message_buffers
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.edge.zmtp.protocol import Closed, Interest, Request, Upstream
from meshbus.errors import Timeout
from meshbus.policy.reason import Reason

Part: TypeAlias = bytes | bytearray | memoryview | str
"""A part of a message; text stands for its UTF-8 bytes."""

CHUNK_BYTES = 256 << 10
"""Taken from a queue for one write: about what the kernel accepts at once."""
CHUNKS_PER_TURN = 8
"""Writes to one peer before others get their turn."""
BURST = 512
BURST_BYTES = 128 << 10
"""Messages and bytes for which the end of a turn of the loop is not waited for. Nor is more than half a queue given to
the hub at once: a subscriber that keeps up loses nothing to a burst or a batch."""
MAX_EVENTS = 100_000
"""Events of an XPub that wait for the application."""
NO_LIMIT = 1 << 62
_ADDITIONS = frozenset({Change.FIRST, Change.ADDED})


class PubOptions(EndpointOptions, total=False):
    """What every publisher can be told."""

    high_water: int
    """Messages that may wait for each subscriber: 1000 when left out, 0 for no limit."""
    queue_bytes: int
    """Bytes that may wait for each subscriber: 64 MiB when left out, 0 for no limit."""
    max_subscriptions: int
    """Prefixes that each subscriber may hold."""
    max_prefix_bytes: int
    """The sum of their lengths."""
    linger_s: float
    """How long closing waits for messages to leave."""


class Pub(Endpoint):
    """A ZeroMQ PUB socket."""

    socket_type = SocketType.PUB
    default_message_bytes = 1 << 20
    max_control_bytes = 64 << 10

    def __init__(
        self,
        *,
        high_water: int = HIGH_WATER,
        queue_bytes: int = QUEUE_BYTES,
        max_subscriptions: int = 100_000,
        max_prefix_bytes: int = 16 << 20,
        linger_s: float = 1.0,
        **options: Unpack[EndpointOptions],
    ) -> None:
        """Prepare a publisher; the options are described in PubOptions."""
        super().__init__(**options)
        limits = HubLimits(
            high_water=high_water or NO_LIMIT,
            queue_bytes=queue_bytes or NO_LIMIT,
            subscriptions=max_subscriptions,
            prefix_bytes=max_prefix_bytes,
        )
        self._hub = PubSubHub(message_buffers, limits=limits, on_change=self._on_change)
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._burst: list[tuple[bytes, ...]] = []
        """Published in this turn of the loop: what follows each other and is for the same peers is joined."""
        self._burst_bytes = 0
        self._longest_burst = max(1, min(BURST, limits.high_water // 2))
        self._half_queue_bytes = limits.queue_bytes // 2
        self._most_burst_bytes = min(BURST_BYTES, self._half_queue_bytes)
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()

    def publish(self, *parts: Part) -> int:  # hot: bench_edge
        """Send one message, its topic first; gives how many subscribers it is for.

        It never waits. Where a subscriber's queue is full the message is lost for this one, and counted.
        """
        for part in parts:
            if type(part) is not bytes:
                parts = as_bytes(parts)
                break
        if not parts:
            return 0
        matched = self._hub.count_subscribers(parts[0])  # type: ignore[arg-type]  # all bytes now
        if not matched:
            self._hub.count_unmatched()
            return 0
        burst = self._burst
        if not burst:
            self._loop.call_soon(self._flush)
        burst.append(parts)  # type: ignore[arg-type]
        self._burst_bytes += len(parts[-1])
        if len(burst) >= self._longest_burst or self._burst_bytes >= self._most_burst_bytes:
            self._flush()
        return matched

    def publish_batch(self, messages: Iterable[Sequence[Part]]) -> int:  # hot: bench_edge
        """Send many messages, each a sequence of parts, in order; gives how many deliveries were queued."""
        batch = list(messages)
        if set(map(type, chain.from_iterable(batch))) != {bytes}:
            batch = [as_bytes(message) for message in batch]
        self._flush()
        largest = max(map(len, chain.from_iterable(batch)), default=0)
        step = max(1, min(self._longest_burst, self._half_queue_bytes // max(largest, 1)))
        queued = 0
        for start in range(0, len(batch), step):
            queued += self._hub.publish_batch(batch[start : start + step])  # type: ignore[arg-type]  # all bytes now
            self._flush()
        return queued

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that is queued has been handed to the system. Raises Timeout."""
        self._flush()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_drained():
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            raise Timeout("subscribers that do not read", timeout_s or 0.0) from None

    async def wait_subscribed(self, topic: Part, *, peers: int = 1, timeout_s: float | None = None) -> None:
        """Wait until so many subscribers would get a message of this topic. Raises Timeout."""
        wanted = as_bytes([topic])[0]
        try:
            async with asyncio.timeout(timeout_s):
                while self._hub.count_subscribers(wanted) < peers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Timeout(f"subscribers of {wanted!r}", timeout_s or 0.0) from None

    async def close(self) -> None:
        """Let what is queued leave, for a while, and hang up; closing twice is fine."""
        if not self._closed:
            try:
                await self.flush(self._linger_s)
            except Timeout:
                self._counters.add("flush", "lingered_in_vain")
        await super().close()

    @property
    def stats(self) -> HubStats:
        """Count what was published and what became of it."""
        self._flush()
        return self._hub.stats()

    def peer_stats(self, number: int) -> QueueStats | None:
        """Count what became of the messages for one connection, by its number in `connections`."""
        self._flush()
        return self._hub.peer_stats(number.to_bytes(8, "big"))

    # ── what connections tell ───────────────────────────────────────────────────────────────

    def on_ready(self, connection: Connection) -> None:
        """Give it a queue."""
        super().on_ready(connection)
        self._hub.peer_up(connection.routing_id, connection.number, generated=True)

    def on_requests(self, connection: Connection, requests: list[Request]) -> None:
        """Change what a subscriber gets."""
        self._flush()  # what was published before goes to those who had asked by then
        hub, routing_id, epoch = self._hub, connection.routing_id, connection.number
        for request in requests:
            if isinstance(request, Upstream):
                self._on_upstream(request)
            elif not request.subscribe:
                hub.unsubscribe(routing_id, epoch, request.prefix)
            elif hub.subscribe(routing_id, epoch, request.prefix) is Change.REFUSED:
                connection.close(CloseReason.TOO_MANY_SUBSCRIPTIONS, "it holds as many prefixes as it may")
                return

    def on_idle(self, connection: Connection) -> None:
        """Send more of its queue."""
        self._pump(connection)

    def on_closed(self, connection: Connection, closed: Closed) -> None:
        """Forget its subscriptions and its queue."""
        super().on_closed(connection, closed)
        if self._hub.epoch_of(connection.routing_id) is not None:
            self._hub.peer_down(connection.routing_id, connection.number)
        self._drained.set()

    def _on_upstream(self, _: Upstream) -> None:
        self._counters.count(Reason.IGNORE_UPSTREAM_MESSAGE)

    def _on_change(self, prefix: bytes, change: Change) -> None:  # noqa: ARG002 - XPub reads them
        if change in _ADDITIONS:
            self._changed.set()

    # ── moving bytes ────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        if self._burst:
            burst, self._burst, self._burst_bytes = self._burst, [], 0
            self._hub.publish_batch(burst)
        for routing_id, _ in self._hub.ready():
            connection = self._connections.get(routing_id)
            if connection is not None:
                self._pump(connection)

    def _pump(self, connection: Connection) -> None:  # hot: bench_edge
        """Move what waits for a peer into its stream, as long as that takes it."""
        for _ in range(CHUNKS_PER_TURN):
            if not connection.idle:
                return
            buffers = self._hub.take(connection.routing_id, connection.number, CHUNK_BYTES)
            if not buffers:
                self._drained.set()
                return
            connection.send(buffers)
        self._loop.call_soon(self._pump, connection)

    def _is_drained(self) -> bool:
        for connection in self._connections.values():
            stats = self._hub.peer_stats(connection.routing_id)
            if stats is not None and (stats.pending or not connection.idle):
                return False
        return True


class Verbosity(Enum):
    """Which subscriptions an XPub tells its application about."""

    DISTINCT = frozenset({Change.FIRST, Change.LAST})
    """The first that holds a prefix, and the end of the last; libzmq's default."""
    VERBOSE = frozenset({Change.FIRST, Change.ADDED, Change.KNOWN, Change.LAST})
    """Every request for a prefix, and the end of the last."""
    VERBOSER = frozenset({Change.FIRST, Change.ADDED, Change.KNOWN, Change.REMOVED, Change.LAST})
    """Every request and every end."""


class XPub(Pub):
    """A ZeroMQ XPUB socket: a publisher that also hears who subscribes, and messages that XSUB sockets send."""

    socket_type = SocketType.XPUB

    def __init__(self, *, verbosity: Verbosity = Verbosity.DISTINCT, **options: Unpack[PubOptions]) -> None:
        """Prepare a publisher that tells what `verbosity` says."""
        super().__init__(**options)
        self._told = verbosity.value
        self._events: Mailbox[Request] = Mailbox()

    async def next_event(self) -> Request:
        """Wait for an `Interest` (a prefix was subscribed, or cancelled) or an `Upstream` message."""
        return await self._events.take()

    async def events(self) -> AsyncIterator[Request]:
        """Give events as they come; ends when the endpoint is closed."""
        while batch := await self._events.take_all():
            for event in batch:
                yield event

    async def close(self) -> None:
        """Let what is queued leave, for a while, and hang up; closing twice is fine."""
        await super().close()
        self._events.close()

    def _on_upstream(self, message: Upstream) -> None:
        self._note_event(message)

    def _on_change(self, prefix: bytes, change: Change) -> None:
        super()._on_change(prefix, change)
        if change in self._told:
            self._note_event(Interest(prefix, subscribe=change in _ADDITIONS or change is Change.KNOWN))

    def _note_event(self, event: Request) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.put((event,))
        else:
            self._counters.count(Reason.EVENT_QUEUE_FULL)


def as_bytes(parts: Sequence[Part]) -> tuple[bytes, ...]:
    """Give parts that nobody can change any more."""
    return tuple(part.encode() if isinstance(part, str) else bytes(part) for part in parts)
