"""A relay dies, and the way goes over another; it comes back, and so does the way."""

import asyncio

from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from tests.interop.lab import Lab, eventually, take

TIMEOUT_S = 0.6
THEIR_TIMES = {"heartbeat_interval_ms": 100, "session_timeout_ms": int(TIMEOUT_S * 1000)}
OUR_TIMES = {"heartbeat_s": 0.1, "session_timeout_s": TIMEOUT_S}


async def between_two(lab: Lab) -> tuple[Node, Node, list[RealPeer], list[str]]:
    """Return two nodes of ours that share no link, two real relays between them, and the relays' addresses at the first."""
    left, right = [await lab.node(**OUR_TIMES) for _ in range(2)]
    relays, addresses = [], []
    for _ in range(2):
        relay = lab.peer(**THEIR_TIMES)
        tap = await lab.join(left, relay, start=False)
        await lab.join(right, relay)
        relays.append(relay)
        addresses.append(tap.peer_address)
    await eventually(lambda: right.node_id in {route.node_id for route in left.mesh.routes}, "a route")
    await left.connect(public_key=right.public_key)
    await eventually(
        lambda: all(p.profile for n, o in ((left, right), (right, left)) for p in n.peers if p.node_id == o.node_id),
        "the profile",
    )
    return left, right, relays, addresses


def way(node: Node, to: Node) -> str:
    """Return the address that packets for a node are sent to."""
    address = next(peer.address for peer in node.peers if peer.node_id == to.node_id)
    assert isinstance(address, tuple)
    return "{}:{}".format(*address)


async def test_events_go_around_a_dead_relay_and_back_through_it_when_it_lives_again(lab: Lab) -> None:
    left, right, relays, addresses = await between_two(lab)
    first = addresses.index(way(left, right))
    async with right.subscribe("sensors/lidar", publisher=left.node_id) as subscription:
        publisher = left.publisher("sensors/lidar", reliable=True)
        await publisher.publish(b"before")
        assert await take(subscription, 1) == [b"before"]
        relays[first].pause()
        await eventually(lambda: way(left, right) == addresses[1 - first], "the other relay")
        await publisher.publish(b"around")
        assert await take(subscription, 1) == [b"around"]
        relays[first].resume()
        await eventually(lambda: way(left, right) == addresses[first], "the first relay again")
        await publisher.publish(b"back")
        assert await take(subscription, 1) == [b"back"]


async def test_a_killed_relay_is_gone_around_for_good(lab: Lab) -> None:
    left, right, relays, addresses = await between_two(lab)
    first = addresses.index(way(left, right))
    async with left.subscribe("status", publisher=right.node_id) as subscription:
        await asyncio.to_thread(relays[first].kill)
        await eventually(lambda: addresses[first] != way(left, right), "the other relay")
        await right.publisher("status", reliable=True).publish(b"still here")
        assert await take(subscription, 1) == [b"still here"]
        await eventually(
            lambda: relays[first].node_id not in {route.node_id for route in left.mesh.routes}, "its route is gone"
        )
