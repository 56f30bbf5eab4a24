"""Blocking twins of the edge endpoints, for scripts and notebooks. Each runs its own loop in a background thread.

    with Sub() as sub:
        sub.connect("tcp://127.0.0.1:5556")
        sub.subscribe("sensors/")
        topic, body = sub.receive(timeout_s=5)

A call crosses to that thread and back, which costs some 50 microseconds: where speed matters, publish and receive in
batches. The originals are edge/pub.py and edge/sub.py; signatures and docstrings here are held to them by
tests/edge/test_sync.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar, Unpack

from meshbus.background import BackgroundLoop, Intake
from meshbus.edge import pub as asynchronous_pub
from meshbus.edge import sub as asynchronous_sub
from meshbus.edge.connection import ConnectionInfo
from meshbus.edge.endpoint import Endpoint, EndpointOptions
from meshbus.edge.hub import HubStats
from meshbus.edge.pub import Part, PubOptions, Verbosity
from meshbus.edge.queue import HIGH_WATER, QUEUE_BYTES, QueueStats
from meshbus.edge.zmtp.protocol import Request
from meshbus.errors import Timeout

E = TypeVar("E", bound=Endpoint)
P = TypeVar("P", bound=asynchronous_pub.Pub)
T = TypeVar("T")
S = TypeVar("S", bound=asynchronous_sub.Sub)

CLOSED = "the endpoint was closed"


class _Twin(Generic[E]):
    """What all twins have in common."""

    def __init__(self, make: Callable[[], E]) -> None:
        loop = BackgroundLoop()
        try:
            self._endpoint = loop.call(make)
        except BaseException:
            loop.stop()
            raise
        self._running: BackgroundLoop | None = loop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def bind(self, address: str) -> str:
        """Listen on an address, such as `tcp://127.0.0.1:*` or `ipc:///run/app.sock`; return it with the actual port.

        Raises ConfigError if the address is not available, or if other machines would reach an unencrypted endpoint.
        """
        return self._loop.run(self._endpoint.bind(address))

    def connect(self, address: str, *, timeout_s: float | None = None) -> None:
        """Connect to an address, and reconnect whenever the connection ends.

        Returns at once; the peer may start later. With `timeout_s` it waits for the first connection, and raises
        HandshakeError if the peer refuses it, or Timeout if there is none in time; both end the attempt.
        """
        self._loop.run(self._endpoint.connect(address, timeout_s=timeout_s))

    def disconnect(self, address: str) -> None:
        """Close the connection to an address and stop reconnecting; an unknown address is ignored."""
        self._loop.run(self._endpoint.disconnect(address))

    def close(self) -> None:
        """Send queued messages for up to `linger_s`, then close all connections. Calling it again does nothing."""
        if self._running is not None:
            self._running.run(self._endpoint.close())
            self._running.stop()
            self._running = None

    @property
    def connections(self) -> list[ConnectionInfo]:
        """All connections, including those whose handshake is not done."""
        return self._loop.call(lambda: self._endpoint.connections)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Counts of connections, messages and drops, by kind and reason."""
        return self._loop.call(lambda: self._endpoint.counters)

    @property
    def _loop(self) -> BackgroundLoop:
        if self._running is None:
            raise RuntimeError(CLOSED)
        return self._running


class _PubTwin(_Twin[P]):
    """What the twins of publishers have in common."""

    def publish(self, *parts: Part) -> int:
        """Send one message, the topic first; return the number of matching subscribers.

        It never waits. If a subscriber's queue is full, the message is dropped for this subscriber and counted.
        """
        return self._loop.call(lambda: self._endpoint.publish(*parts))

    def publish_batch(self, messages: Iterable[Sequence[Part]]) -> int:
        """Send many messages in order, each a sequence of parts; return the number of deliveries queued."""
        return self._loop.call(lambda: self._endpoint.publish_batch(messages))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all queued messages were passed to the kernel. Raises Timeout."""
        self._loop.run(self._endpoint.flush(timeout_s))

    def wait_subscribed(self, topic: Part, *, peers: int = 1, timeout_s: float | None = None) -> None:
        """Wait until at least `peers` subscribers match a topic. Raises Timeout."""
        self._loop.run(self._endpoint.wait_subscribed(topic, peers=peers, timeout_s=timeout_s))

    @property
    def stats(self) -> HubStats:
        """Sizes and message counts of the hub."""
        return self._loop.call(lambda: self._endpoint.stats)

    def peer_stats(self, number: int) -> QueueStats | None:
        """Return the message counts of one connection, given its number in `connections`, or None."""
        return self._loop.call(lambda: self._endpoint.peer_stats(number))


class Pub(_PubTwin[asynchronous_pub.Pub]):
    """A ZeroMQ PUB socket."""

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
        super().__init__(
            lambda: asynchronous_pub.Pub(
                high_water=high_water,
                queue_bytes=queue_bytes,
                max_subscriptions=max_subscriptions,
                max_prefix_bytes=max_prefix_bytes,
                linger_s=linger_s,
                **options,
            )
        )


class XPub(_PubTwin[asynchronous_pub.XPub]):
    """A ZeroMQ XPUB socket: a publisher that also receives subscriptions, and messages of XSUB sockets."""

    def __init__(self, *, verbosity: Verbosity = Verbosity.DISTINCT, **options: Unpack[PubOptions]) -> None:
        """Create a publisher; `verbosity` selects the subscription changes that it reports."""
        super().__init__(lambda: asynchronous_pub.XPub(verbosity=verbosity, **options))
        self._intake = Intake(self._loop, self._take)

    def next_event(self, timeout_s: float | None = None) -> Request:
        """Wait for an `Interest` (a prefix was subscribed, or cancelled) or an `Upstream` message. Raises Timeout."""
        event = _next(self._intake, "an event", timeout_s)
        if event is None:
            raise RuntimeError(CLOSED)
        return event

    def events(self) -> Iterator[Request]:
        """Yield events until the endpoint is closed."""
        while (event := self._intake.next()) is not None:
            yield event

    async def _take(self) -> Sequence[Request]:
        try:
            return (await self._endpoint.next_event(),)
        except RuntimeError:  # the endpoint was closed
            return ()


class _SubTwin(_Twin[S]):
    """What the twins of subscribers have in common."""

    def __init__(self, make: Callable[[], S]) -> None:
        super().__init__(make)
        self._intake = Intake(self._loop, self._endpoint.receive_batch)

    def subscribe(self, prefix: Part = b"") -> None:
        """Subscribe to all topics that start with a prefix; the empty prefix matches every topic.

        A prefix that was subscribed twice must be unsubscribed twice.
        """
        self._loop.call(lambda: self._endpoint.subscribe(prefix))

    def unsubscribe(self, prefix: Part = b"") -> None:
        """Unsubscribe from a prefix; a prefix that is not subscribed is ignored."""
        self._loop.call(lambda: self._endpoint.unsubscribe(prefix))

    def receive(self, timeout_s: float | None = None) -> tuple[bytes, ...]:
        """Wait for a message and return its parts, the topic first. Raises RuntimeError after `close`. Raises Timeout."""
        message = _next(self._intake, "a message", timeout_s)
        if message is None:
            raise RuntimeError(CLOSED)
        return message

    def receive_batch(self, timeout_s: float | None = None) -> list[tuple[bytes, ...]]:
        """Wait for a message and return all that have arrived; an empty list after `close`. Raises Timeout."""
        message = _next(self._intake, "a message", timeout_s)
        return [] if message is None else [message, *self._intake.rest()]

    def __iter__(self) -> Iterator[tuple[bytes, ...]]:
        """Yield messages until the endpoint is closed."""
        while (message := self._intake.next()) is not None:
            yield message

    @property
    def pending(self) -> int:
        """Messages that wait for the application."""
        return len(tuple(self._intake)) + self._endpoint.pending


class Sub(_SubTwin[asynchronous_sub.Sub]):
    """A ZeroMQ SUB socket."""

    def __init__(self, *, high_water: int = HIGH_WATER, **options: Unpack[EndpointOptions]) -> None:
        """Create a subscriber; reading stops while `high_water` messages wait, 0 means no limit."""
        super().__init__(lambda: asynchronous_sub.Sub(high_water=high_water, **options))


class XSub(_SubTwin[asynchronous_sub.XSub]):
    """A ZeroMQ XSUB socket: a subscriber that can also send messages to XPUB sockets.

    Like libzmq's it delivers every message that arrives: an XPUB may send other topics than were subscribed to.
    """

    def __init__(self, *, high_water: int = HIGH_WATER, **options: Unpack[EndpointOptions]) -> None:
        """Create a subscriber; reading stops while `high_water` messages wait, 0 means no limit."""
        super().__init__(lambda: asynchronous_sub.XSub(high_water=high_water, **options))

    def send(self, *parts: Part) -> int:
        """Send one message to all connected publishers; return their number.

        A part whose first byte is 0 or 1 is taken for a subscription, as in ZeroMQ; begin it with another byte.
        """
        return self._loop.call(lambda: self._endpoint.send(*parts))


def _next(intake: Intake[T], what: str, timeout_s: float | None) -> T | None:
    try:
        return intake.next(timeout_s)
    except TimeoutError:
        raise Timeout(what, timeout_s or 0.0) from None
