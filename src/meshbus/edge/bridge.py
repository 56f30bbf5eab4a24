"""Bridge between ZeroMQ applications and the channels of a node.

    async with Node.open("node.toml") as node, Bridge(node, node.config.edge[0]) as bridge:
        ...

Applications, in any language, connect their PUB sockets to one address and their SUB sockets to another. The node
publishes what they publish, and subscribes to what they subscribe to: peers see the node's identity, capabilities and
tokens, and authorize these. The security settings of the endpoints decide which applications may connect. This module
owns the endpoints and tasks; edge/ingress.py and edge/egress.py are the two directions, edge/refusals.py reports what
was refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from meshbus.config.edge import EdgeEntry, EdgeSecurity, is_prefix
from meshbus.edge.egress import Egress
from meshbus.edge.ingress import Ingress
from meshbus.edge.pub import Pub, XPub
from meshbus.edge.refusals import Refusal, Refusals
from meshbus.edge.security import CurveServer, Null, PlainServer, Security, known_keys, passwords
from meshbus.edge.sub import Sub
from meshbus.edge.topics import TopicMap
from meshbus.edge.zmtp.protocol import Interest
from meshbus.engine.base.counters import Counters
from meshbus.errors import ConfigError
from meshbus.keyfile import load_curve_secret, load_passwords
from meshbus.names.channel import ChannelName
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.node import Node
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import DEFAULT_LARGE_EVENT

MAX_PREFIXES = 4096
"""Subscriptions of one application; far more than programs use, and too few to exhaust memory."""
MAX_PREFIX_BYTES = 1 << 20
"""Total length of the prefixes of one application: 256 bytes each, as long as a channel name can be."""
MAX_MESSAGE_BYTES = DEFAULT_LARGE_EVENT + (64 << 10)
"""Bytes of one message of an application: the largest event of a channel that is not configured, and its topic."""

_log = logging.getLogger("meshbus.edge")

E = TypeVar("E", Pub, XPub, Sub)


BOUNDS = (
    Bound(
        name="zmq_prefixes",
        what="prefixes of a ZeroMQ application at a bridge",
        by=By.OUTSIDER,
        per_node=None,
        per={"connection": MAX_PREFIXES, "connection, in bytes": MAX_PREFIX_BYTES},
        full="the new one is ignored",
        counter="ignored of the hub",
    ),
)


class Bridge:
    """Connects ZeroMQ applications to a node; use it as an async context manager, inside that of the node."""

    def __init__(self, node: Node, entry: EdgeEntry, on_refusal: Callable[[Refusal], None] | None = None) -> None:
        """Create a bridge; `on_refusal` is called for each refusal that is reported."""
        self.entry = entry
        self.publishers: str | None = None
        """Address for PUB sockets of applications, with the actual port."""
        self.subscribers: str | None = None
        """Address for SUB sockets of applications, with the actual port."""
        self.notices: str | None = None
        """Address at which refusals are published as JSON; the topic is `publish/` or `subscribe/` and their topic."""
        self._node = node
        self._on_refusal = on_refusal
        self._counters = Counters()
        self._refusals = Refusals(self._counters, self._tell)
        self._topics = TopicMap(entry)
        self._tasks = TaskOwner("a part of the bridge", _log, on_failure=lambda: self._counters.add("fail", "task"))
        self._endpoints: list[Pub | Sub] = []
        self._notice_pub: Pub | None = None
        self._egress: Egress | None = None
        self._ingress: Ingress | None = None
        self._unwatch: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections and end the subscriptions. Calling it again does nothing."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        # Tasks first, so that nothing publishes or subscribes while the endpoints close.
        await self._tasks.close()
        if self._ingress is not None:
            await self._ingress.close()
        while self._endpoints:
            await self._endpoints.pop().close()

    @property
    def wishes(self) -> list[str]:
        """Channels, and prefixes that end in `/`, that the node subscribes to for applications."""
        return [] if self._egress is None else self._egress.demands

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Counts of published, delivered, refused and dropped messages, by kind and reason; those of endpoints too."""
        result = self._counters.snapshot()
        for endpoint in self._endpoints:
            side = str(endpoint.socket_type).lower()
            for what, counts in endpoint.counters.items():
                result[f"{side}_{what}"] = counts
            if isinstance(endpoint, XPub):
                result["xpub_dropped"] = {str(loss): lost for loss, lost in endpoint.stats.dropped.items() if lost}
        return result

    async def _start(self) -> None:
        security = security_of(self.entry)
        if self.entry.notices is not None:
            self._notice_pub = self._add(Pub(security=security, max_subscriptions=MAX_PREFIXES))
            self.notices = await self._notice_pub.bind(self.entry.notices)
        if self.entry.subscribers is not None:
            await self._start_egress(self.entry.subscribers, security)
        if self.entry.publishers is not None:
            await self._start_ingress(self.entry.publishers, security)

    async def _start_egress(self, address: str, security: Security) -> None:
        endpoint = self._add(XPub(security=security, max_subscriptions=MAX_PREFIXES, max_prefix_bytes=MAX_PREFIX_BYTES))
        egress = Egress(self._node, self._topics, self._counters, self._refusals, self._tasks.start, endpoint)
        self._egress = egress
        # Before the endpoint listens: no refusal of a publisher may be missed.
        self._unwatch = self._node.watch(egress.on_notice)

        async def follow_demand() -> None:
            async for event in endpoint.events():
                if isinstance(event, Interest):
                    await egress.change(event)
                else:
                    self._counters.count(Reason.IGNORE_UPSTREAM_MESSAGE)

        self._tasks.start(follow_demand())
        self.subscribers = await endpoint.bind(address)

    async def _start_ingress(self, address: str, security: Security) -> None:
        # Subscribe to everything, so that messages that are not allowed arrive here and their refusal is reported.
        # Below the 64 MiB that a Sub accepts by default: that is more than a channel takes unless it is configured so.
        endpoint = self._add(Sub(security=security, max_message_bytes=MAX_MESSAGE_BYTES))
        endpoint.subscribe()
        ingress = Ingress(self._node, self._topics, self._counters, self._refusals, self._tasks.start)
        self._ingress = ingress
        for channel in self.entry.channels_in:
            # Peers find a channel only once it is announced. Below a prefix, the first message opens it.
            if not is_prefix(channel):
                ingress.open(ChannelName(channel))

        async def take_messages() -> None:
            while messages := await endpoint.receive_batch():
                for message in messages:
                    ingress.take(message)
                await asyncio.sleep(0)  # let the channels publish between two batches, however fast these arrive

        self._tasks.start(take_messages())
        self.publishers = await endpoint.bind(address)

    def _add(self, endpoint: E) -> E:
        self._endpoints.append(endpoint)
        return endpoint

    def _tell(self, refusal: Refusal) -> None:
        if self._notice_pub is not None:
            self._notice_pub.publish(f"{refusal.direction}/{refusal.topic}", msgspec.json.encode(refusal))
        if self._on_refusal is not None:
            self._on_refusal(refusal)


def security_of(entry: EdgeEntry) -> Security:
    """Return the security of the endpoints, reading the files that the entry names. Raises ConfigError."""
    if entry.security is EdgeSecurity.PLAIN and entry.passwords_file is not None:
        return PlainServer(passwords(load_passwords(entry.passwords_file)))
    if entry.security is EdgeSecurity.CURVE and entry.curve_secret_file is not None:
        try:
            known = known_keys(entry.curve_clients)
        except ConfigError as error:
            raise ConfigError("curve_clients", error.problem) from None
        return CurveServer(load_curve_secret(entry.curve_secret_file), known)
    return Null()
