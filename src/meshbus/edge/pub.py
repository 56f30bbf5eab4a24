"""PUB and XPUB sockets: send each message to every subscriber of a prefix of its topic.

The hub (edge/hub.py) matches subscriptions and holds the queues; this module moves bytes from queues to connections.
Messages published in one iteration of the event loop are sent together at its end, or earlier if there are many:
`publish` never waits, so a program that publishes in a tight loop need not yield for its messages to be sent.

If a subscriber is too slow, new messages above its high-water mark are dropped for this subscriber only, and counted.
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
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

Part: TypeAlias = bytes | bytearray | memoryview | str
"""A part of a message; a str is sent as UTF-8."""

CHUNK_BYTES = 256 << 10
"""Bytes taken from a queue for one write: about what the kernel accepts at once."""
CHUNKS_PER_TURN = 8
"""Writes to one peer before the other peers get their turn."""
BURST = 512
BURST_BYTES = 128 << 10
"""Messages and bytes that are collected before they are sent without waiting for the end of the loop iteration. At most
half a queue is passed to the hub at once, so that a subscriber that keeps up loses nothing to a burst or a batch."""
MAX_EVENTS = 100_000
"""Events of an XPub that may wait for the application; they take about 10 MB."""
NO_LIMIT = 1 << 62
"""Stands for an option of 0; larger than any count."""
_ADDITIONS = frozenset({Change.FIRST, Change.ADDED})


BOUNDS = (
    Bound(
        name="zmq_events",
        what="events of an XPub that wait for the application",
        by=By.OUTSIDER,
        per_node=MAX_EVENTS,
        full="the new one is dropped",
        counter=Reason.EVENT_QUEUE_FULL,
    ),
)


class PubOptions(EndpointOptions, total=False):
    """Options of every publisher."""

    high_water: int
    """Messages that may wait for each subscriber; default 1000, 0 means no limit."""
    queue_bytes: int
    """Bytes that may wait for each subscriber; default 64 MiB, 0 means no limit."""
    max_subscriptions: int
    """Prefixes that each subscriber may subscribe to."""
    max_prefix_bytes: int
    """Total length of the prefixes of each subscriber."""
    linger_s: float
    """How long `close` waits for queued messages to be sent."""


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
        """Create a publisher; PubOptions describes the options."""
        super().__init__(**options)
        limits = HubLimits(
            high_water=high_water or NO_LIMIT,
            queue_bytes=queue_bytes or NO_LIMIT,
            subscriptions=max_subscriptions,
            prefix_bytes=max_prefix_bytes,
        )
        self._hub = PubSubHub(message_buffers, limits=limits)
        self._awaited: list[bytes] = []
        """Topics for whose subscribers `wait_subscribed` waits."""
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._burst: list[tuple[bytes, ...]] = []
        """Messages published in this iteration of the loop; the hub joins consecutive ones for the same peers."""
        self._burst_bytes = 0
        self._longest_burst = max(1, min(BURST, limits.high_water // 2))
        self._half_queue_bytes = limits.queue_bytes // 2
        self._most_burst_bytes = min(BURST_BYTES, self._half_queue_bytes)
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()

    def publish(self, *parts: Part) -> int:  # hot: bench_edge
        """Send one message, the topic first; return the number of matching subscribers.

        It never waits. If a subscriber's queue is full, the message is dropped for this subscriber and counted.
        """
        # A loop rather than all(): most messages are bytes already, and a generator would cost more than the check.
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
        if not burst:  # the first message of this iteration schedules the flush for all of them
            self._loop.call_soon(self._flush)
        burst.append(parts)  # type: ignore[arg-type]
        # An estimate by the body alone, because topics are usually short.
        self._burst_bytes += len(parts[-1])
        if len(burst) >= self._longest_burst or self._burst_bytes >= self._most_burst_bytes:
            self._flush()
        return matched

    def publish_batch(self, messages: Iterable[Sequence[Part]]) -> int:  # hot: bench_edge
        """Send many messages in order, each a sequence of parts; return the number of deliveries queued."""
        batch = list(messages)
        if set(map(type, chain.from_iterable(batch))) != {bytes}:
            batch = [as_bytes(message) for message in batch]
        self._flush()  # keep the order: messages published before the batch go first
        largest = max(map(len, chain.from_iterable(batch)), default=0)
        # Steps of at most half a queue, with a write after each: a peer that reads gets room before the next step.
        step = max(1, min(self._longest_burst, self._half_queue_bytes // max(largest, 1)))
        queued = 0
        for start in range(0, len(batch), step):
            queued += self._hub.publish_batch(batch[start : start + step])  # type: ignore[arg-type]  # all bytes now
            self._flush()
        return queued

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all queued messages were passed to the kernel. Raises Timeout."""
        self._flush()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_drained():
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            raise Timeout("waiting for subscribers to read", timeout_s or 0.0) from None

    async def wait_subscribed(self, topic: Part, *, peers: int = 1, timeout_s: float | None = None) -> None:
        """Wait until at least `peers` subscribers match a topic. Raises Timeout."""
        wanted = as_bytes([topic])[0]
        self._awaited.append(wanted)
        try:
            async with asyncio.timeout(timeout_s):
                while self._hub.count_subscribers(wanted) < peers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Timeout(f"waiting for {peers} subscribers of {wanted!r}", timeout_s or 0.0) from None
        finally:
            self._awaited.remove(wanted)

    async def close(self) -> None:
        """Send queued messages for up to `linger_s`, then close all connections. Calling it again does nothing."""
        if not self._closed:
            try:
                await self.flush(self._linger_s)
            except Timeout:
                self._counters.add("flush", "lingered_in_vain")
        await super().close()

    @property
    def stats(self) -> HubStats:
        """Sizes and message counts of the hub."""
        self._flush()
        return self._hub.stats()

    def peer_stats(self, number: int) -> QueueStats | None:
        """Return the message counts of one connection, given its number in `connections`, or None."""
        self._flush()
        return self._hub.peer_stats(number.to_bytes(8, "big"))

    # ── callbacks of connections ────────────────────────────────────────────────────────────

    def on_ready(self, connection: Connection) -> None:
        """Create a queue for the subscriber."""
        super().on_ready(connection)
        self._hub.peer_up(connection.routing_id, connection.number, generated=True)

    def on_requests(self, connection: Connection, requests: list[Request]) -> None:  # hot: bench_edge
        """Add and remove subscriptions."""
        self._flush()  # messages published before this go to the earlier subscribers only
        if not self._take_requests(connection, requests):
            problem = "the peer exceeds max_subscriptions or max_prefix_bytes"
            connection.close(CloseReason.TOO_MANY_SUBSCRIPTIONS, problem)

    def on_idle(self, connection: Connection) -> None:
        """Send more messages from the subscriber's queue."""
        self._pump(connection)

    def on_closed(self, connection: Connection, closed: Closed) -> None:
        """Remove the subscriptions and the queue of the subscriber."""
        super().on_closed(connection, closed)
        if self._hub.epoch_of(connection.routing_id) is not None:
            self._hub.peer_down(connection.routing_id, connection.number)
        self._drained.set()

    def _take_requests(self, connection: Connection, requests: list[Request]) -> bool:
        """Handle requests of a subscriber; return False if it exceeds a limit."""
        wanted: dict[bytes, bool] = {}
        for request in requests:
            if type(request) is Interest:
                wanted[request.prefix] = request.subscribe  # nobody is told of changes, so only the last one counts
            else:
                self._counters.count(Reason.IGNORE_UPSTREAM_MESSAGE)
        self._wake_for(wanted)
        return self._hub.change(connection.routing_id, connection.number, wanted)

    def _wake_for(self, prefixes: Iterable[bytes]) -> None:
        """Let `wait_subscribed` look again if subscriptions changed that match a topic that it waits for."""
        if any(any(map(topic.startswith, prefixes)) for topic in self._awaited):
            self._changed.set()

    # ── moving bytes ────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        if self._burst:
            burst, self._burst, self._burst_bytes = self._burst, [], 0
            self._hub.publish_batch(burst)
        for routing_id, _ in self._hub.ready():
            # A busy connection sends the rest of its queue from on_idle.
            connection = self._connections.get(routing_id)
            if connection is not None:
                self._pump(connection)

    def _pump(self, connection: Connection) -> None:  # hot: bench_edge
        """Write queued messages to the stream of a peer until it is busy or the queue is empty."""
        for _ in range(CHUNKS_PER_TURN):
            if not connection.idle:
                return
            buffers = self._hub.take(connection.routing_id, connection.number, CHUNK_BYTES)
            if not buffers:
                self._drained.set()
                return
            connection.send(buffers)
        # This peer accepts more, but the others must get their turn.
        self._loop.call_soon(self._pump, connection)

    def _is_drained(self) -> bool:
        for connection in self._connections.values():
            stats = self._hub.peer_stats(connection.routing_id)
            if stats is not None and (stats.pending or not connection.idle):
                return False
        return True


class Verbosity(Enum):
    """Which changes of subscriptions an XPub reports to its application."""

    DISTINCT = frozenset({Change.FIRST, Change.LAST})
    """The first subscription to a prefix and the end of the last one; libzmq's default."""
    VERBOSE = frozenset({Change.FIRST, Change.ADDED, Change.KNOWN, Change.LAST})
    """Every subscription to a prefix, and the end of the last one."""
    VERBOSER = frozenset({Change.FIRST, Change.ADDED, Change.KNOWN, Change.REMOVED, Change.LAST})
    """Every subscription and every end of one."""


class XPub(Pub):
    """A ZeroMQ XPUB socket: a publisher that also receives subscriptions, and messages of XSUB sockets."""

    socket_type = SocketType.XPUB

    def __init__(self, *, verbosity: Verbosity = Verbosity.DISTINCT, **options: Unpack[PubOptions]) -> None:
        """Create a publisher; `verbosity` selects the subscription changes that it reports."""
        super().__init__(**options)
        self._told = verbosity.value
        self._events: Mailbox[Request] = Mailbox()
        self._hub.on_change = self._on_change

    async def next_event(self) -> Request:
        """Wait for an `Interest` (a prefix was subscribed, or cancelled) or an `Upstream` message."""
        return await self._events.take()

    async def events(self) -> AsyncIterator[Request]:
        """Yield events until the endpoint is closed."""
        while batch := await self._events.take_all():
            for event in batch:
                yield event

    async def close(self) -> None:
        """Send queued messages for up to `linger_s`, then close all connections. Calling it again does nothing."""
        await super().close()
        self._events.close()

    def _take_requests(self, connection: Connection, requests: list[Request]) -> bool:
        """Handle requests one by one, because the application is told of each."""
        hub, routing_id, epoch = self._hub, connection.routing_id, connection.number
        self._wake_for([request.prefix for request in requests if isinstance(request, Interest)])
        for request in requests:
            if isinstance(request, Upstream):
                self._note_event(request)
            elif not request.subscribe:
                hub.unsubscribe(routing_id, epoch, request.prefix)
            elif hub.subscribe(routing_id, epoch, request.prefix) is Change.REFUSED:
                return False
        return True

    def _on_change(self, prefix: bytes, change: Change) -> None:
        if change in self._told:
            self._note_event(Interest(prefix, subscribe=change in _ADDITIONS or change is Change.KNOWN))

    def _note_event(self, event: Request) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.put((event,))
        else:
            self._counters.count(Reason.EVENT_QUEUE_FULL)


def as_bytes(parts: Sequence[Part]) -> tuple[bytes, ...]:
    """Return the parts as bytes, so that later changes of a buffer have no effect."""
    return tuple(part.encode() if isinstance(part, str) else bytes(part) for part in parts)
