"""Nodes that move daemons among themselves, real ones and ours, with a spy on every line."""

import asyncio
import os

from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from tests.eavesdrop import End
from tests.interop.lab import PSK, Lab
from tests.interop.spy import Spy
from tests.interop.tap import Tap

SIZES = (8, 20_000)
MOVE_S = 10.0


def compute_peer(lab: Lab) -> RealPeer:
    """Make a real peer that can run daemons, once it was started."""
    peer = lab.peer()
    peer.call("open_daemons")
    return peer


def go(*peers: RealPeer) -> None:
    """Start peers and their daemons; a real node announces only what its application tells it (compute.md §0)."""
    for peer in peers:
        peer.start()
        peer.call("start_daemons")
        peer.announce_capabilities({"tags": ["subprotocol:0x0500"]})


async def wire(lab: Lab, initiator: Node | RealPeer, responder: Node | RealPeer) -> Spy:
    """Connect two nodes, of which a real one was not started, and listen between them; outgoing is the initiator's."""
    tap = Tap(initiator.address, responder.address, responder.node_id)
    lab.taps.append(tap)
    spy = Spy(tap, PSK, end(initiator), end(responder))
    accepting = None
    if isinstance(responder, Node):
        responder.accept(initiator.node_id)
    else:
        accepting = asyncio.wrap_future(responder.begin("accept", initiator.node_id))
    there, key = tap.peer_address, end(responder).public_key
    if isinstance(initiator, Node):
        await initiator.connect(there, node_id=responder.node_id, public_key=key, routed=False)
    else:
        await asyncio.to_thread(initiator.connect, there, key, responder.node_id)
    if accepting is not None:
        await accepting
    return spy


def end(node: Node | RealPeer) -> End:
    """Return how others know a node."""
    return End(node.node_id, node.noise_public_key if isinstance(node, Node) else node.public_key)


async def move(
    peer: RealPeer, origin: int, source: int, target: int, *, envelope: bool, seconds: float = MOVE_S
) -> dict[str, object]:
    """Let a real peer move a daemon, and wait."""
    call = peer.begin("move", origin, source, target, envelope=envelope, seconds=seconds)
    moved: dict[str, object] = await asyncio.wrap_future(call)
    return moved


async def ask(peer: RealPeer, command: str, *arguments: object) -> object:
    """Call a real peer without blocking the loop, on which taps run."""
    return await asyncio.wrap_future(peer.begin(command, *arguments))


async def spawn(peer: RealPeer, size: int, kind: str = "counter") -> tuple[bytes, int]:
    """Start a daemon at a real peer, give it one event, and return its seed and origin hash."""
    seed = os.urandom(32)
    origin = await ask(peer, "spawn", kind, seed, size)
    assert isinstance(origin, int)
    assert await ask(peer, "deliver", origin, 7, 1, b"first") == [b"1"]
    return seed, origin


async def expect(peer: RealPeer, seed: bytes, origin: int, *, envelope: bool, kind: str = "counter") -> None:
    """Make a real peer ready to take a daemon."""
    await (ask(peer, "expect", kind, origin) if envelope else ask(peer, "expect_identity", kind, seed))
