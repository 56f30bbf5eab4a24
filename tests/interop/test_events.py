"""Events arrive as they were sent: many, of every size, in both directions."""

import asyncio
import hashlib
import random
from collections.abc import Iterable

import pytest

from meshbus.errors import PartialDelivery
from tests.interop.lab import Lab, eventually, take

LARGEST = 8104
COUNT = 10_000
LONG_S = 60.0
"""For 33 MB in windows of 64 KiB on a busy machine."""


def sizes(seed: int) -> list[int]:
    """Every possible size once, and small ones to make it ten thousand, in some order."""
    chance = random.Random(seed)
    all_sizes = [*range(LARGEST + 1), *(chance.randrange(300) for _ in range(COUNT - LARGEST - 1))]
    chance.shuffle(all_sizes)
    return all_sizes


def digest(payloads: Iterable[bytes]) -> str:
    """Hash events with their borders and their order."""
    whole = hashlib.blake2b()
    for payload in payloads:
        whole.update(len(payload).to_bytes(4, "little") + payload)
    return whole.hexdigest()


@pytest.mark.slow
async def test_ten_thousand_events_of_every_size_arrive_there(lab: Lab) -> None:
    """Text, because the binding gives everything else as an empty string."""
    peer, node = await lab.pair({"timeout_s": LONG_S})
    chance = random.Random(1)
    pool = "".join(chance.choices('abcdefghijklmnopqrstuvwxyz 0123456789{}":,', k=100_000)).encode()
    payloads = [pool[(start := chance.randrange(90_000)) : start + size] for size in sizes(2)]
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "bulk/ours")
    collecting = asyncio.wrap_future(peer.begin("collect", COUNT, LONG_S))
    report = await node.publisher("bulk/ours", wait_s=LONG_S).publish_batch(payloads)
    assert (report.attempted, report.delivered) == (1, 1)
    arrived = await collecting
    assert len(arrived) == COUNT
    assert digest(raw.encode() for raw, _ in arrived) == digest(payloads)


@pytest.mark.slow
async def test_ten_thousand_events_of_every_size_arrive_here(lab: Lab) -> None:
    peer, node = await lab.pair({"permissive_channels": True, "timeout_s": LONG_S})
    chance = random.Random(3)
    payloads = [chance.randbytes(size) for size in sizes(4)]
    async with node.subscribe("bulk/theirs") as subscription:
        publishing = asyncio.wrap_future(peer.begin("publish_all", "bulk/theirs", payloads))
        arrived = await take(subscription, COUNT, LONG_S)
        assert await publishing == COUNT
        assert digest(arrived) == digest(payloads)
        assert subscription.stats.dropped == 0
    assert "drop" not in node.counters


async def test_many_single_publishes_arrive_in_order(lab: Lab) -> None:
    peer, node = await lab.pair()
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "single/ours")
    publisher = node.publisher("single/ours")
    for number in range(500):
        assert (await publisher.publish(str(number))).delivered == 1
    arrived = await asyncio.to_thread(peer.collect, 500)
    assert [event.raw for event in arrived] == [str(number) for number in range(500)]
    assert [event.id for event in arrived] == [f"{number}:0" for number in range(500)]


@pytest.mark.parametrize("reliable", [False, True])
async def test_a_reliable_channel_is_only_a_flag_to_it(lab: Lab, reliable: bool) -> None:
    """Nothing is acknowledged or sent again between a 0.23 node and anyone; the flag says so all the same."""
    peer, node = await lab.pair({"permissive_channels": True})
    [tap] = lab.taps
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "flag/ours")
    assert (await node.publisher("flag/ours", reliable=reliable).publish("x")).delivered == 1
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 1)] == ["x"]
    assert [seen.flags for seen in tap.data()] == [int(reliable)]
    async with node.subscribe("flag/theirs") as subscription:
        kind = "reliable" if reliable else "fire_and_forget"
        await asyncio.to_thread(peer.publish, "flag/theirs", b"y", reliability=kind)
        assert await take(subscription, 1) == [b"y"]
    assert [seen.flags for seen in tap.data(outgoing=False)] == [int(reliable)]


async def test_the_largest_event_passes_and_a_larger_one_is_refused_before_anything_is_sent(lab: Lab) -> None:
    peer, node = await lab.pair()
    [tap] = lab.taps
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "size/ours")
    publisher = node.publisher("size/ours")
    assert (await publisher.publish("x" * LARGEST)).delivered == 1
    with pytest.raises(PartialDelivery, match="takes events of at most 8104 bytes"):
        await publisher.publish("x" * (LARGEST + 1))
    with pytest.raises(PartialDelivery, match="takes events of at most 8104 bytes"):
        await publisher.publish_batch(["fine", "x" * (LARGEST + 1), "fine"])
    assert (await publisher.publish("after")).delivered == 1
    arrived = await asyncio.to_thread(peer.collect, 2)
    assert [event.raw for event in arrived] == ["x" * LARGEST, "after"]
    assert [seen.size for seen in tap.data()] == [8192, 68 + 4 + len("after") + 16]


async def test_events_without_a_channel_come_to_the_inbox(lab: Lab) -> None:
    peer, node = await lab.pair()
    [tap] = lab.taps
    async with node.inbox() as inbox:
        await asyncio.to_thread(peer.open_stream, node.node_id, 7)
        await asyncio.to_thread(peer.send, node.node_id, 7, [b"on a stream", b"", b"\xff\x00"])
        await asyncio.to_thread(peer.call, "push_to", tap.node_address, '{"raw":1}')
        assert await take(inbox, 4) == [b"on a stream", b"", b"\xff\x00", b'{"raw":1}']


async def test_a_channel_that_we_left_is_not_mistaken_for_an_event_without_one(lab: Lab) -> None:
    """Events that were on the way when we left are counted, and go nowhere."""
    peer, node = await lab.pair({"permissive_channels": True})
    [tap] = lab.taps
    await node.subscribe_channel(peer.node_id, "late/theirs")
    tap.outgoing = False
    async with node.inbox() as inbox:
        leaving = asyncio.ensure_future(node.unsubscribe_channel(peer.node_id, "late/theirs"))
        await asyncio.sleep(0)
        await asyncio.to_thread(peer.publish, "late/theirs", b"too late")
        await eventually(lambda: node.counters.get("drop") == {"not_subscribed": 1}, "the event that is too late")
        assert inbox.stats.received == 0
        leaving.cancel()
