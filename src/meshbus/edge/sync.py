"""Blocking twins of the edge endpoints, for scripts and notebooks. Each runs its own loop in a background thread.

    with Sub() as sub:
        sub.connect("tcp://127.0.0.1:5556")
        sub.subscribe("sensors/")
        topic, body = sub.receive(timeout_s=5)

A call crosses to that thread and back, which costs some 50 microseconds: where speed matters, publish and receive in
batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar, Unpack

from meshbus.background import BackgroundLoop
from meshbus.edge import pub as asynchronous_pub
from meshbus.edge import sub as asynchronous_sub
from meshbus.edge.connection import ConnectionInfo
from meshbus.edge.endpoint import Endpoint, EndpointOptions
from meshbus.edge.hub import HubStats
from meshbus.edge.pub import Part, PubOptions
from meshbus.edge.queue import HIGH_WATER
from meshbus.errors import Timeout

E = TypeVar("E", bound=Endpoint)


class _Twin(Generic[E]):
    """What both twins have in common."""

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
        """Listen at an address; gives it with the port it got."""
        return self._loop.run(self._endpoint.bind(address))

    def connect(self, address: str, *, timeout_s: float | None = None) -> None:
        """Connect to an address, and again whenever the connection ends; waits only with `timeout_s`."""
        self._loop.run(self._endpoint.connect(address, timeout_s=timeout_s))

    def disconnect(self, address: str) -> None:
        """End the connection to an address."""
        self._loop.run(self._endpoint.disconnect(address))

    def close(self) -> None:
        """Hang up and end the thread; closing twice is fine."""
        if self._running is not None:
            self._running.run(self._endpoint.close())
            self._running.stop()
            self._running = None

    @property
    def connections(self) -> list[ConnectionInfo]:
        """Who is connected, or about to be."""
        return self._loop.call(lambda: self._endpoint.connections)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """What was opened, closed, refused and ignored, by what and why."""
        return self._loop.call(lambda: self._endpoint.counters)

    @property
    def _loop(self) -> BackgroundLoop:
        if self._running is None:
            raise RuntimeError("the endpoint was closed")
        return self._running


class Pub(_Twin[asynchronous_pub.Pub]):
    """A ZeroMQ PUB socket, blocking; options as of meshbus.edge.Pub."""

    def __init__(self, **options: Unpack[PubOptions]) -> None:
        super().__init__(lambda: asynchronous_pub.Pub(**options))

    def publish(self, *parts: Part) -> int:
        """Send one message, its topic first; gives for how many subscribers it was queued."""
        return self._loop.call(lambda: self._endpoint.publish(*parts))

    def publish_batch(self, messages: Iterable[Sequence[Part]]) -> int:
        """Send many messages; gives how many deliveries were queued."""
        return self._loop.call(lambda: self._endpoint.publish_batch(messages))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that is queued has been handed to the system. Raises Timeout."""
        self._loop.run(self._endpoint.flush(timeout_s))

    def wait_subscribed(self, topic: Part, *, peers: int = 1, timeout_s: float | None = None) -> None:
        """Wait until so many subscribers would get a message of this topic. Raises Timeout."""
        self._loop.run(self._endpoint.wait_subscribed(topic, peers=peers, timeout_s=timeout_s))

    @property
    def stats(self) -> HubStats:
        """Count what was published and what became of it."""
        return self._loop.call(lambda: self._endpoint.stats)


class Sub(_Twin[asynchronous_sub.Sub]):
    """A ZeroMQ SUB socket, blocking; options as of meshbus.edge.Sub."""

    def __init__(self, *, high_water: int = HIGH_WATER, **options: Unpack[EndpointOptions]) -> None:
        super().__init__(lambda: asynchronous_sub.Sub(high_water=high_water, **options))
        self._taken: deque[tuple[bytes, ...]] = deque()
        """Fetched in one go, and handed out one by one."""

    def subscribe(self, prefix: Part = b"") -> None:
        """Ask for messages whose topic starts with these bytes."""
        self._loop.call(lambda: self._endpoint.subscribe(prefix))

    def unsubscribe(self, prefix: Part = b"") -> None:
        """Ask no longer for a prefix."""
        self._loop.call(lambda: self._endpoint.unsubscribe(prefix))

    def receive(self, timeout_s: float | None = None) -> tuple[bytes, ...]:
        """Wait for a message, and give its parts, the topic first. Raises Timeout."""
        if not self._taken:
            self._taken.extend(self.receive_batch(timeout_s))
        return self._taken.popleft()

    def receive_batch(self, timeout_s: float | None = None) -> list[tuple[bytes, ...]]:
        """Wait for a message, and give all that have arrived. Raises Timeout."""
        if self._taken:
            messages = list(self._taken)
            self._taken.clear()
            return messages
        try:
            return self._loop.run(self._endpoint.receive_batch(), timeout_s)
        except TimeoutError:
            raise Timeout("a message", timeout_s or 0.0) from None

    def __iter__(self) -> Iterator[tuple[bytes, ...]]:
        """Give messages as they come, without end."""
        while True:
            yield self.receive()
