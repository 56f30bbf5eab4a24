"""What every test here is made of: real peers, meshbus nodes, and taps between them.

A real peer is a published net-mesh node in its own process. It answers a direct handshake only before it was started
and a routed one only after, and a node that joined by a routed one it cannot address by itself: its subscribe and its
announcement then fail with "unknown peer". So `join` is direct unless asked otherwise.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from meshbus.names.channel import ChannelName
from meshbus.node.channels.subscription import Subscription
from meshbus.node.node import Node
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.testing.realpeer import RealPeer
from tests.interop.tap import Seen, Tap
from tests.patience import PATIENCE_S

T = TypeVar("T")

PSK = bytes(range(32))
PROFILE = frozenset({0x0600, 0x0601, 0x0800, 0x0801})
PROFILE_FROM = 0x4D00
"""The ids that only meshbus nodes know; a plain peer would take their messages for events."""
EXPERIMENTAL_FROM = 0xF000


class Lab:
    """Makes peers and nodes, joins them, and puts everything away."""

    def __init__(self, packages: Path | None = None) -> None:
        """Make real peers of the version in a directory, or of the one that is installed."""
        self._packages = packages
        self.taps: list[Tap] = []
        self._peers: list[RealPeer] = []
        self._nodes: list[Node] = []

    def peer(self, **options: Any) -> RealPeer:
        """Make a real peer; it hears nothing before its `start`."""
        peer = RealPeer(**{"psk": PSK, "packages": self._packages, **options})
        self._peers.append(peer)
        return peer

    async def node(self, **settings: Any) -> Node:
        """Start a meshbus node."""
        if "identity" not in settings:
            settings["ephemeral"] = True
        node = Node.open(psk=PSK.hex(), **settings)
        await node.start()
        self._nodes.append(node)
        return node

    def tap(self, node: Node, address: str, peer_id: int = 0) -> Tap:
        """Stand between a node and an address, where a peer with this id is."""
        tap = Tap(node.address, address, peer_id)
        self.taps.append(tap)
        return tap

    async def join(self, node: Node, peer: RealPeer, *, start: bool = True) -> Tap:
        """Make a node begin a direct handshake with a peer that has not been started, and start it unless told not to."""
        tap = self.tap(node, peer.address, peer.node_id)
        accepting = asyncio.wrap_future(peer.begin("accept", node.node_id))
        await node.connect(tap.peer_address, node_id=peer.node_id, public_key=peer.public_key, routed=False)
        assert await accepting == tap.node_address
        if start:
            await asyncio.to_thread(peer.start)
        return tap

    async def join_running(self, node: Node, peer: RealPeer) -> Tap:
        """Make a node begin a routed handshake with a peer that runs."""
        tap = self.tap(node, peer.address, peer.node_id)
        await node.connect(tap.peer_address, node_id=peer.node_id, public_key=peer.public_key)
        return tap

    async def pair(
        self, peer_options: dict[str, Any] | None = None, node_settings: dict[str, Any] | None = None
    ) -> tuple[RealPeer, Node]:
        """Make a peer and a node that have joined."""
        peer, node = self.peer(**(peer_options or {})), await self.node(**(node_settings or {}))
        await self.join(node, peer)
        return peer, node

    async def close(self) -> None:
        """Put everything away."""
        for node in self._nodes:
            await node.close()
        for tap in self.taps:
            tap.close()
        for peer in self._peers:
            await asyncio.to_thread(peer.close)


def channel(name: str, **policy: Any) -> ChannelConfig:
    """Return the policy of a channel."""
    return ChannelConfig(name=ChannelName(name), **policy)


def registry(*configs: ChannelConfig) -> ChannelConfigRegistry:
    """Gather the policies of a node's channels."""
    channels = ChannelConfigRegistry()
    for config in configs:
        channels.insert(config)
    return channels


def profile_packets(tap: Tap) -> list[Seen]:
    """Return what a plain peer must never get; what it only passes on is not for it."""
    return [
        seen
        for seen in tap.seen
        if seen.outgoing
        and (not seen.routed or seen.dest_id == tap.peer_id)
        and (seen.subprotocol_id in PROFILE or PROFILE_FROM <= seen.subprotocol_id < EXPERIMENTAL_FROM)
    ]


async def eventually(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.005)


async def eventually_there(
    condition: Callable[..., Any], *arguments: Any, gives: Callable[[Any], bool], seconds: float = PATIENCE_S
) -> Any:
    """Ask a real peer until the answer is right, and give it."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not gives(answer := await asyncio.to_thread(condition, *arguments)):
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s; still {answer!r}"
        await asyncio.sleep(0.005)
    return answer


async def take(subscription: Subscription, count: int, seconds: float = PATIENCE_S) -> list[bytes]:
    """Take events from a subscription until there are so many."""
    payloads: list[bytes] = []
    async with asyncio.timeout(seconds):
        while len(payloads) < count:
            batch = await subscription.next_batch()
            assert batch is not None
            payloads += batch.payloads()
    return payloads


async def notice(node: Node, kind: type[T], seconds: float = PATIENCE_S) -> T:
    """Wait until something of a kind happens to a node."""
    async with asyncio.timeout(seconds):
        async for happened in node.notices():
            if isinstance(happened, kind):
                return happened
    raise AssertionError(f"the node ended before a {kind.__name__}")
