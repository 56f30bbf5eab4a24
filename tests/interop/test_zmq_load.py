"""Subscribers that come, go, stall and drain, on real sockets."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq

import meshbus.edge
from meshbus.edge import Pub, Sub
from tests.interop.zmqlab import Lab, until
from tests.patience import PATIENCE_S

CYCLES = 300
HERE = str(Path(meshbus.edge.__file__).parent.parent / "*")
"""Where allocations are ours."""


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with Lab(tmp_path) as made:
        yield made


async def test_churn_leaves_nothing_behind(lab: Lab) -> None:
    """Connect, subscribe, kill, three hundred times; who stays gets everything, exactly once."""
    async with Pub(high_water=0) as pub:
        address = await pub.bind(lab.address("tcp"))
        steady = lab.socket(zmq.SUB, rcvhwm=0)
        steady.subscribe(b"")
        steady.connect(address)
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)

        async def cycle(number: int) -> None:
            socket = lab.socket(zmq.SUB)
            socket.subscribe(b"own/%d" % number)
            socket.subscribe(b"shared/")
            socket.connect(address)
            await pub.wait_subscribed(b"own/%d" % number, peers=2, timeout_s=PATIENCE_S)
            assert pub.publish(b"shared/%d" % number) >= 2
            socket.close()
            await until(lambda: len(pub.connections) == 1)

        for number in range(10):
            await cycle(number)
        baseline = pub.stats
        tracemalloc.start()
        try:
            for number in range(10, CYCLES):
                await cycle(number)
            gc.collect()
            ours = tracemalloc.take_snapshot().filter_traces(
                [tracemalloc.Filter(inclusive=True, filename_pattern=HERE)]
            )
        finally:
            tracemalloc.stop()
        ended = pub.stats
        assert (baseline.peers, baseline.remembered, baseline.prefixes, baseline.subscriptions) == (1, 1, 1, 1)
        assert (ended.peers, ended.remembered, ended.prefixes, ended.subscriptions) == (1, 1, 1, 1)
        assert pub.counters["closed"] == {"eof": CYCLES}
        assert sum(trace.size for trace in ours.traces) < 50_000, "what was allocated since and is still held"
        seen = [await asyncio.wait_for(steady.recv(), PATIENCE_S) for _ in range(CYCLES)]
        assert seen == [b"shared/%d" % number for number in range(CYCLES)]


@pytest.mark.parametrize("subscriber", ["libzmq", "meshbus"])
async def test_a_stalled_subscriber_delays_no_other_and_every_loss_is_counted(lab: Lab, subscriber: str) -> None:
    count, high_water = 20_000, 100
    async with Pub(high_water=high_water) as pub, Sub(high_water=1) as ours:
        address = await pub.bind(lab.address("tcp"))
        fast = lab.socket(zmq.SUB, rcvhwm=0)
        fast.subscribe(b"")
        fast.connect(address)
        await pub.wait_subscribed(b"x", peers=1, timeout_s=PATIENCE_S)
        (quick,) = pub.connections
        theirs = lab.socket(zmq.SUB, rcvhwm=1, rcvbuf=4096)
        if subscriber == "libzmq":
            theirs.subscribe(b"")
            theirs.connect(address)
        else:
            ours.subscribe()
            await ours.connect(address)
        await pub.wait_subscribed(b"x", peers=2, timeout_s=PATIENCE_S)
        (slow,) = [info for info in pub.connections if info != quick]

        numbers: list[int] = []
        for number in range(count):
            pub.publish(b"%06d" % number, bytes(2000))
            if number % (high_water // 2) == 0:  # the fast one reads; the stalled one never does
                while len(numbers) < number:
                    numbers.append(int((await asyncio.wait_for(fast.recv_multipart(), PATIENCE_S))[0]))
        while len(numbers) < count:
            numbers.append(int((await asyncio.wait_for(fast.recv_multipart(), PATIENCE_S))[0]))
        assert numbers == list(range(count)), "the fast one got everything, in order"

        stats = pub.peer_stats(slow.number)
        assert stats is not None
        assert stats.matched == count
        assert stats.pending <= high_water
        dropped = sum(stats.dropped.values())
        assert dropped > 0

        received: list[int] = []
        while len(received) < count - dropped:
            message = await asyncio.wait_for(
                theirs.recv_multipart() if subscriber == "libzmq" else ours.receive(), PATIENCE_S
            )
            assert len(message) == 2, "all parts or none"
            received.append(int(message[0]))
        pub.publish(b"999999", b"last")
        last = await asyncio.wait_for(theirs.recv_multipart() if subscriber == "libzmq" else ours.receive(), PATIENCE_S)
        assert int(last[0]) == 999999, "nothing beyond what was counted"
        assert received == sorted(set(received)), "a subset in order, nothing twice"
        after = pub.peer_stats(slow.number)
        assert after is not None
        assert sum(after.dropped.values()) + len(received) == count
