"""The largest events between live nodes, through loss and reordering, byte for byte and in bounded memory; and more seeds."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import numpy as np
import pytest

from meshbus import Node
from meshbus.node.driving.warmup import warm
from meshbus.wire.constants import MAX_LARGE_EVENT
from tests.engine.test_large_events import assert_large_and_small_arrive_in_order_through_loss
from tests.interop.tap import Tap
from tests.node.test_node import PSK
from tests.seeds import for_each_seed

LOSS, REORDERING, LATE_S = 0.05, 0.05, 0.005
EVENTS = 3
CHANNEL = "cameras/front"
CHANNELS = [{"name": CHANNEL, "max_event_bytes": MAX_LARGE_EVENT}]
LONG_S = 1800.0
ROOM = 2 * MAX_LARGE_EVENT + (48 << 20)
"""What may come on top of the event that is published: the subscriber's last one and the next, which is not complete; windows
in flight, and what the allocator keeps. Both nodes live in this process."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2 * LONG_S)]


def spoil(tap: Tap, chance: random.Random) -> None:
    """Lose some datagrams of both directions, and let others overtake some."""
    loop = asyncio.get_running_loop()

    def judge(datagram: bytes, outgoing: bool) -> bool:
        tap.seen.clear()
        fate = chance.random()
        if LOSS <= fate < LOSS + REORDERING:
            loop.call_later(chance.uniform(0, LATE_S), lambda: tap.pass_on(datagram, outgoing=outgoing))
        return fate >= LOSS + REORDERING

    tap.judge = judge


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_the_largest_events_pass_a_bad_network_in_bounded_memory() -> None:
    await asyncio.to_thread(warm)  # the compiler takes more than a hundred megabytes when it is loaded
    async with (
        Node.open(psk=PSK, ephemeral=True, channels=CHANNELS) as publisher,
        Node.open(psk=PSK, ephemeral=True, channels=CHANNELS) as subscriber,
    ):
        with Tap(subscriber.address, publisher.address) as tap:
            await subscriber.connect(tap.peer_address, public_key=publisher.public_key)
            async with subscriber.subscribe(CHANNEL) as subscription, asyncio.timeout(LONG_S):
                spoil(tap, random.Random(5))
                sender, event = publisher.publisher(CHANNEL, wait_s=LONG_S), os.urandom(MAX_LARGE_EVENT)
                before = most = resident()
                for _ in range(EVENTS):
                    sending = asyncio.ensure_future(sender.publish(event))
                    receiving = asyncio.ensure_future(subscription.next_batch())
                    while not receiving.done():
                        most = max(most, resident())
                        await asyncio.wait((receiving,), timeout=0.05)
                    batch = await receiving
                    assert batch is not None
                    assert np.array_equal(batch.data, np.frombuffer(event, np.uint8))
                    assert (await sending).delivered == 1
                assert publisher.counters["retransmit"], "the network was bad"
                assert most - before < ROOM, f"{(most - before) >> 20} MiB"
                assert subscriber.live.engine.large.nbytes == 0


@for_each_seed(range(100, 200))
def test_large_and_small_events_arrive_in_order_through_loss(seed: int) -> None:
    assert_large_and_small_arrive_in_order_through_loss(seed)
