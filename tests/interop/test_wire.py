"""What passes on the wire, packet by packet: nothing that 0.23 does not know, and nothing that nobody asked for.

The tap reads the headers, which are in clear. Every other test here ends with the same look at what was sent.
"""

import asyncio

import pytest

from meshbus.engine.channels.publish import OnFailure
from meshbus.errors import ChannelError, PartialDelivery, PeerError
from meshbus.names.channel import ChannelName
from meshbus.policy.capability import CapabilitySet
from tests.interop.lab import Lab, eventually, eventually_there, profile_packets, take
from tests.interop.tap import Tap

PLAIN = {0x0000, 0x0A00, 0x0B00, 0x0C00, 0x0D00}
"""Events, membership, credit, announcements, and the question where we are seen."""
CHANNEL = "wire/ours"


async def test_n_subscribers_are_n_packets_and_the_others_get_none(lab: Lab) -> None:
    node = await lab.node()
    peers = [lab.peer() for _ in range(4)]
    taps = [await lab.join(node, peer) for peer in peers]
    *subscribers, bystander = peers
    for peer in subscribers:
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, CHANNEL)
    publisher = node.publisher(CHANNEL)
    for number in range(5):
        report = await publisher.publish(str(number))
        assert (report.attempted, report.delivered) == (3, 3)
    assert (await publisher.publish_batch([str(number) for number in range(5, 105)])).delivered == 3
    for peer in subscribers:
        arrived = await asyncio.to_thread(peer.collect, 105)
        assert [event.raw for event in arrived] == [str(number) for number in range(105)]
    assert [[seen.event_count for seen in tap.data()] for tap in taps] == [[1, 1, 1, 1, 1, 100]] * 3 + [[]]
    name = ChannelName(CHANNEL)
    for tap in taps[:3]:
        assert [seen.sequence for seen in tap.data()] == list(range(6))
        for seen in tap.data():
            assert (seen.routed, seen.flags, seen.subprotocol_id) == (False, 0, 0)
            assert (seen.channel_hash, seen.stream_id) == (name.wire_hash, name.stream_id)
            assert seen.origin_hash == node.identity.origin_hash
    assert await asyncio.to_thread(bystander.poll) == []


async def test_a_large_event_is_for_meshbus_nodes_and_refused_for_others_with_a_sentence(lab: Lab) -> None:
    node, ours, peer = await lab.node(), await lab.node(), lab.peer(permissive_channels=True)
    tap = await lab.join(node, peer)
    await ours.connect(node.address, public_key=node.public_key)
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, CHANNEL)
    frame, publisher = bytes(1 << 20), node.publisher(CHANNEL)
    async with ours.subscribe(CHANNEL) as subscription:
        for reliable in (False, True):
            report = await node.publisher(CHANNEL, reliable=reliable).publish(frame)
            (error,) = report.errors
            assert (report.attempted, report.delivered, error.node_id) == (2, 1, peer.node_id)
            assert "takes events of at most 8104 bytes" in error.message
        await publisher.publish("small")
        assert await take(subscription, 3) == [frame, frame, b"small"]
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 1)] == ["small"]
    assert [seen.event_count for seen in tap.data()] == [1], "no part, which counts no event"
    assert not profile_packets(tap)


async def test_a_late_subscriber_gets_no_earlier_event(lab: Lab) -> None:
    node, early, late = await lab.node(), lab.peer(permissive_channels=True), lab.peer(permissive_channels=True)
    await lab.join(node, early)
    await lab.join(node, late)
    publisher = node.publisher(CHANNEL)
    await asyncio.to_thread(early.subscribe_channel, node.node_id, CHANNEL)
    await publisher.publish("before")
    await asyncio.to_thread(late.subscribe_channel, node.node_id, CHANNEL)
    await publisher.publish("after")
    assert [event.raw for event in await asyncio.to_thread(early.collect, 2)] == ["before", "after"]
    assert [event.raw for event in await asyncio.to_thread(late.collect, 2, 0.2)] == ["after"]
    await asyncio.to_thread(early.publish, "wire/theirs", b"before")
    async with node.subscribe("wire/theirs", publisher=early.node_id) as subscription:
        await asyncio.to_thread(early.publish, "wire/theirs", b"after")
        assert await take(subscription, 1) == [b"after"]


async def test_partial_delivery_is_reported_leg_by_leg(lab: Lab) -> None:
    node, reads, frozen = await lab.node(), lab.peer(), lab.peer()
    for peer in (reads, frozen):
        await lab.join(node, peer)
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, CHANNEL)
    frozen.pause()
    full = "x" * 8000
    collect = node.publisher(CHANNEL, wait_s=0, on_failure=OnFailure.COLLECT)
    reports = []
    for _ in range(9):
        reports.append(await collect.publish(full))
        await asyncio.to_thread(reads.collect, 1)
    assert [(report.attempted, report.delivered) for report in reports] == [(2, 2)] * 8 + [(2, 1)]
    [error] = reports[-1].errors
    assert (error.node_id, error.code) == (frozen.node_id, "backpressure")
    best_effort = await node.publisher(CHANNEL, wait_s=0).publish(full)
    assert (best_effort.delivered, [error.node_id for error in best_effort.errors]) == (1, [frozen.node_id])
    await asyncio.to_thread(reads.collect, 1)
    fail_fast = await node.publisher(CHANNEL, wait_s=0, on_failure=OnFailure.FAIL_FAST).publish(full)
    assert [error.node_id for error in fail_fast.errors] == [frozen.node_id]
    assert fail_fast.attempted - fail_fast.delivered == 1
    await asyncio.to_thread(reads.unsubscribe_channel, node.node_id, CHANNEL)
    with pytest.raises(PartialDelivery) as nobody:
        await node.publisher(CHANNEL, wait_s=0).publish(full)
    assert (nobody.value.attempted, nobody.value.delivered) == (1, 0)


async def test_a_plain_peer_never_gets_a_byte_of_the_profile(lab: Lab) -> None:
    """A whole life with a real node, in all of which a meshbus node at our other side speaks the profile with us."""
    peer = lab.peer(permissive_channels=True, heartbeat_interval_ms=50, session_timeout_ms=200)
    node = await lab.node(heartbeat_s=0.05, session_timeout_s=0.6)
    other = await lab.node(heartbeat_s=0.05, session_timeout_s=0.6)
    plain = await lab.join(node, peer)
    with Tap(node.address, other.address) as rich:
        await node.connect(rich.peer_address, public_key=other.public_key)
        await eventually(lambda: sorted(known.profile for known in node.peers) == [False, True], "the profile")
        await asyncio.to_thread(peer.announce_capabilities, {"tags": ["subprotocol:0x0a00", "gpu"]})
        await eventually(lambda: peer.node_id in node.find_nodes(), "its announcement")
        node.announce(CapabilitySet({"lidar"}))
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, CHANNEL)
        async with other.subscribe(CHANNEL) as elsewhere, node.subscribe("wire/theirs", queue_group="workers") as here:
            publisher = node.publisher(CHANNEL, reliable=True)
            for number in range(20):
                assert (await publisher.publish(str(number))).delivered == 2
            assert await take(elsewhere, 20) == [str(number).encode() for number in range(20)]
            assert await asyncio.to_thread(peer.publish_all, "wire/theirs", [b"x"] * 20) == 20
            assert await take(here, 20) == [b"x"] * 20
        assert len(await asyncio.to_thread(peer.collect, 20)) == 20
        with pytest.raises(PeerError, match="does not accept requests"):
            await node.request(peer.node_id, CHANNEL, b"it knows none")
        with pytest.raises(ChannelError, match="no_responder"):
            await node.request(other.node_id, CHANNEL, b"nobody is there for it")
        plain.cut()
        await eventually_there(peer.find_nodes, {"require_tags": ["lidar"]}, gives=lambda found: found == [])
        plain.mend()
        await eventually_there(peer.find_nodes, {"require_tags": ["lidar"]}, gives=lambda found: found != [])
        await node.connect(plain.peer_address, node_id=peer.node_id, public_key=peer.public_key)
        await asyncio.sleep(0.5)
        assert profile_packets(plain) == []
        assert {seen.subprotocol_id for seen in plain.seen if seen.outgoing} == PLAIN
        assert {0x0600, 0x4D01} <= {seen.subprotocol_id for seen in profile_packets(rich)}
    assert await asyncio.to_thread(peer.poll) == []  # to it, anything it does not know would be an event
