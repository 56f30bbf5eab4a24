"""Relays between real nodes and ours: a real node between two of ours, and one of ours in front of a real node."""

import asyncio

from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from tests.interop.lab import Lab, eventually, take
from tests.interop.tap import Tap

THEIR_TIMES = {"heartbeat_interval_ms": 100, "session_timeout_ms": 1000}
OUR_TIMES = {"heartbeat_s": 0.1, "session_timeout_s": 1.0}


async def around(lab: Lab, count: int = 2) -> tuple[RealPeer, list[Node], list[Tap]]:
    """Return a running real node, and nodes of ours that know only it."""
    relay = lab.peer(permissive_channels=True, **THEIR_TIMES)
    nodes = [await lab.node(**OUR_TIMES) for _ in range(count)]
    taps = [await lab.join(node, relay, start=node is nodes[-1]) for node in nodes]
    return relay, nodes, taps


async def behind(lab: Lab) -> tuple[Node, Node, RealPeer, Tap]:
    """Return a node without the profile, a relay of ours, and a real node that only the relay knows, with their wire."""
    far = lab.peer(permissive_channels=True, **THEIR_TIMES)
    near, relay = await lab.node(profile=False, **OUR_TIMES), await lab.node(**OUR_TIMES)
    tap = await lab.join(relay, far)
    await near.connect(relay.address, public_key=relay.public_key)
    return near, relay, far, tap


async def find(node: Node, node_id: int) -> None:
    """Wait until a node is heard of."""
    await eventually(lambda: node_id in {route.node_id for route in node.mesh.routes}, "a route")


async def agreed(left: Node, right: Node) -> None:
    """Wait until two nodes of ours speak the profile with each other, end to end."""
    await eventually(
        lambda: all(
            peer.profile
            for node, other in ((left, right), (right, left))
            for peer in node.peers
            if peer.node_id == other.node_id
        ),
        "the profile, end to end",
    )


async def meet_around(lab: Lab) -> tuple[RealPeer, list[Node], list[Tap]]:
    """Return a real relay, and two nodes of ours that have a session through it."""
    relay, nodes, taps = await around(lab)
    left, right = nodes
    await find(left, right.node_id)
    await left.connect(public_key=right.public_key)
    await agreed(left, right)
    return relay, nodes, taps


async def publish_across(publisher: Node, subscriber: Node, events: list[bytes]) -> None:
    """Publish from one node of ours to another, over whatever is between them."""
    async with subscriber.subscribe("sensors/lidar", publisher=publisher.node_id) as subscription:
        await publisher.publisher("sensors/lidar", reliable=True).publish_batch(events)
        assert await take(subscription, len(events)) == events


async def meet_behind(lab: Lab) -> tuple[Node, Node, RealPeer, Tap]:
    """Return a node of ours and a real one that have a session through a relay of ours, with that relay."""
    near, relay, far, tap = await behind(lab)
    await find(near, far.node_id)
    await near.connect(node_id=far.node_id, public_key=far.public_key)
    return near, relay, far, tap


async def send_to_it(near: Node, far: RealPeer, events: list[bytes]) -> None:
    """Send events to a real node, and check that it has them."""
    near.send(far.node_id, *events)
    received = [event.raw.encode() for event in await asyncio.to_thread(far.collect, len(events), 10.0)]
    assert received == events, f"{len(received)} of {len(events)} events arrived"
