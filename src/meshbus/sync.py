"""The blocking twin of the node, for scripts and notebooks: the same shape, without `await`.

    with meshbus.sync.Node.open(psk=...) as node:
        node.connect("10.0.0.7:9000", public_key=...)
        node.publisher("sensors/lidar").publish(b"...")
        with node.subscribe("sensors/lidar") as subscription:
            for event in subscription: ...

Each node runs on an event loop of its own in a background thread, so it works where a loop already runs, as in a
notebook. Calls may come from any thread. The asynchronous original is meshbus.Node; what it gives to look at while it
runs (`mesh`, `roster`) is looked at on its loop: `node.look(lambda node: node.mesh.routes)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from meshbus.background import BackgroundLoop, LoopStopped
from meshbus.config.node import NodeConfig
from meshbus.engine.base.batch import Event, EventBatch
from meshbus.engine.channels.publish import PublishConfig, PublishReport
from meshbus.node import node as asynchronous
from meshbus.node import publisher as asynchronous_publisher
from meshbus.node import subscription as asynchronous_subscription
from meshbus.node.info import PeerInfo
from meshbus.node.logs import Logs
from meshbus.node.noticelog import Notice
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.discovery import ScopeFilter
from meshbus.wire.messages.token import PermissionToken

T = TypeVar("T")


class Publisher:
    """Publishes on one channel, waiting for the outcome."""

    def __init__(self, loop: BackgroundLoop, publisher: asynchronous_publisher.ChannelPublisher) -> None:
        self._loop = loop
        self._publisher = publisher

    def publish(self, payload: bytes | bytearray | memoryview | str) -> PublishReport:
        """Send one event to every subscriber; tells who got it."""
        return self._loop.run(self._publisher.publish(payload))

    def publish_batch(self, events: Any) -> PublishReport:
        """Send many events at once: a list, or an Arrow binary or string array."""
        return self._loop.run(self._publisher.publish_batch(events))

    def publish_once(self, rows: Any, *, writer: str, batch: int) -> int:
        """Publish those rows of a numbered batch that the channel's log does not have yet; tells how many."""
        return self._loop.run(self._publisher.publish_once(rows, writer=writer, batch=batch))


class Subscription:
    """Events of one channel, as a blocking iterator; use it as a context manager."""

    def __init__(self, loop: BackgroundLoop, subscription: asynchronous_subscription.Subscription) -> None:
        self._loop = loop
        self._subscription = subscription

    def __enter__(self) -> Self:
        self._loop.run(self._subscription.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription, if its node was not closed before; closing twice is fine."""
        with suppress(LoopStopped):
            self._loop.run(self._subscription.close())

    @property
    def stats(self) -> asynchronous_subscription.SubscriptionStats:
        """Count what happened so far."""
        return self._subscription.stats

    def next_batch(self, timeout_s: float | None = None) -> EventBatch | None:
        """Wait for events and give them; None when the subscription was closed. Raises TimeoutError."""
        with suppress(LoopStopped):
            return self._loop.run(self._subscription.next_batch(), timeout_s)
        return None

    def batches(self) -> Iterator[EventBatch]:
        """Give the events in the batches they came in; ends when the subscription is closed."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def __iter__(self) -> Iterator[Event]:
        for batch in self.batches():
            yield from batch


class Node:
    """One node of the mesh, blocking."""

    def __init__(self, node: asynchronous.Node, loop: BackgroundLoop) -> None:
        self._node = node
        self._loop: BackgroundLoop | None = loop

    @classmethod
    def open(cls, config: NodeConfig | Path | str | None = None, **arguments: Any) -> Node:
        """Prepare a node, as meshbus.Node.open does; it starts with `with`."""
        loop = BackgroundLoop()
        try:
            return cls(loop.call(lambda: asynchronous.Node.open(config, **arguments)), loop)
        except BaseException:
            loop.stop()
            raise

    def __enter__(self) -> Self:
        try:
            self._running.run(self._node.start())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the node and its thread; closing twice is fine."""
        if self._loop is not None:
            self._loop.run(self._node.close())
            self._loop.stop()
            self._loop = None

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self._node.node_id

    @property
    def public_key(self) -> bytes:
        """The one key another meshbus node needs to connect to us."""
        return self._node.public_key

    @property
    def noise_public_key(self) -> bytes:
        """The key a net-mesh 0.23 node needs to connect to us."""
        return self._node.noise_public_key

    @property
    def address(self) -> str:
        """Where this node listens, as `host:port`."""
        return self._node.address

    @property
    def peers(self) -> list[PeerInfo]:
        """The nodes we have a session with."""
        return self._running.call(lambda: self._node.peers)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Everything that was dropped, refused, retried or failed, by what and why."""
        return self._running.call(lambda: self._node.counters)

    @property
    def logs(self) -> Logs:
        """The logs of what this node published and received."""
        return self._node.logs

    def look(self, function: Callable[[asynchronous.Node], T]) -> T:
        """Call a function with the asynchronous node on its loop, and give what it gives; it must not take long."""
        return self._running.call(lambda: function(self._node))

    def notices(self) -> Iterator[Notice]:
        """Give what happens to this node, waiting for more; ends when the node is closed."""
        loop, following = self._running, self._node.notices()

        async def following_one() -> Notice | None:
            return await anext(following, None)

        with suppress(LoopStopped):
            while (notice := loop.run(following_one())) is not None:
                yield notice

    def watch(self, listener: Callable[[Notice], None]) -> Callable[[], None]:
        """Call a listener with every notice as it happens, on the node's thread; gives what ends that."""
        loop = self._running
        end = loop.call(lambda: self._node.watch(listener))

        def end_it() -> None:
            with suppress(LoopStopped):
                loop.call(end)

        return end_it

    def connect(self, address: str | None = None, **options: Any) -> PeerInfo:
        """Connect to a node, and wait until the session is up; options as in meshbus.Node.connect."""
        return self._running.run(self._node.connect(address, **options))

    def connect_direct(self, node_id: int, **options: Any) -> PeerInfo:
        """Connect to a node past the NATs on both sides; options as in meshbus.Node.connect_direct."""
        return self._running.run(self._node.connect_direct(node_id, **options))

    def accept(self, node_id: int) -> None:
        """Allow a node to begin a direct handshake with us."""
        self._running.call(lambda: self._node.accept(node_id))

    def disconnect(self, node_id: int) -> None:
        """Forget a peer; it notices by our silence."""
        self._running.call(lambda: self._node.disconnect(node_id))

    def send(self, node_id: int, *events: bytes) -> None:
        """Send events to one peer's inbox; nothing tells whether they arrive."""
        self._running.call(lambda: self._node.send(node_id, *events))

    def announce(self, capabilities: CapabilitySet) -> None:
        """Tell every peer what this node can do."""
        self._running.call(lambda: self._node.announce(capabilities))

    def find_nodes(
        self, capability_filter: CapabilityFilter | None = None, *, scope: ScopeFilter | None = None
    ) -> list[int]:
        """Give the nodes that announced capabilities matching the filter."""
        return self._running.call(lambda: self._node.find_nodes(capability_filter, scope=scope))

    def set_channel_configs(self, registry: ChannelConfigRegistry | None) -> None:
        """Install the policy of our channels."""
        self._running.call(lambda: self._node.set_channel_configs(registry))

    def add_token(self, token: PermissionToken | Iterable[PermissionToken]) -> None:
        """Keep a permission, to present where a channel asks for one."""
        self._running.call(lambda: self._node.add_token(token))

    def revoke_tokens(self, issuer: bytes, generation: int) -> None:
        """Stop believing an issuer's tokens of lower generations; whoever subscribed by one is out at once."""
        self._running.call(lambda: self._node.revoke_tokens(issuer, generation))

    def publisher(self, channel: str, config: PublishConfig | None = None, **options: Any) -> Publisher:
        """Give a publisher for a channel; options are the fields of PublishConfig."""
        loop = self._running
        return Publisher(loop, loop.call(lambda: self._node.publisher(channel, config, **options)))

    def subscribe(self, channel: str, **options: Any) -> Subscription:
        """Prepare a subscription to a channel; options as in meshbus.Node.subscribe."""
        loop = self._running
        return Subscription(loop, loop.call(lambda: self._node.subscribe(channel, **options)))

    def inbox(self, **options: Any) -> Subscription:
        """Prepare a subscription to events that were sent to this node without a channel; options as in meshbus.Node.inbox."""
        loop = self._running
        return Subscription(loop, loop.call(lambda: self._node.inbox(**options)))

    def subscribe_channel(self, publisher: int, channel: str, **options: Any) -> None:
        """Subscribe to one channel of one peer: one message, and its answer."""
        self._running.run(self._node.subscribe_channel(publisher, channel, **options))

    def unsubscribe_channel(self, publisher: int, channel: str) -> None:
        """End a subscription to one channel of one peer."""
        self._running.run(self._node.unsubscribe_channel(publisher, channel))

    def request(self, publisher: int, channel: str, payload: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Ask a peer's responder on a channel, and give its answer."""
        return self._running.run(self._node.request(publisher, channel, payload, timeout_s=timeout_s))

    @contextmanager
    def respond(self, channel: str, handler: Callable[[bytes], bytes]) -> Iterator[None]:
        """Answer the requests of peers on a channel, for as long as the `with` block lasts.

        `handler` is a plain function from question to answer. It is called in a thread of its own, and for several questions
        at once when they come so; what it raises is told to the requester.
        """

        async def answer(question: bytes) -> bytes:
            return await asyncio.to_thread(handler, question)

        loop, serving = self._running, self._node.respond(channel, answer)
        loop.run(serving.__aenter__())
        try:
            yield
        finally:
            with suppress(LoopStopped):
                loop.run(serving.__aexit__(None, None, None))

    @property
    def _running(self) -> BackgroundLoop:
        if self._loop is None:
            raise RuntimeError("the node was closed")
        return self._loop
