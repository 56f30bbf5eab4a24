"""Hostile peers on real sockets: the endpoint serves all other peers, and keeps nothing of the hostile ones."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from meshbus.edge.pub import Pub
from meshbus.edge.sub import Sub
from meshbus.edge.zmtp.framing import encode_command, encode_message
from tests.edge.raw import GREETING, READY, RawPeer
from tests.patience import PATIENCE_S

LOOPBACK = "tcp://127.0.0.1:*"
NESTED = 4096


@pytest.mark.parametrize("kind", [Pub, Sub])
async def test_noise_from_many_sides(kind: type[Pub] | type[Sub]) -> None:
    rng = random.Random(5)
    async with kind(handshake_timeout_s=0.2) as endpoint:
        address = await endpoint.bind(LOOPBACK)
        for _ in range(5):
            async with AsyncExitStack() as stack:
                peers = [
                    await stack.enter_async_context(await RawPeer.connect(address, greet=False)) for _ in range(40)
                ]
                for number, peer in enumerate(peers):
                    start = [b"", GREETING, GREETING + READY][number % 3]
                    peer.send(start + rng.randbytes(rng.randrange(2_000)) + b"\xff" * 10)
                for peer in peers:
                    await peer.closed()
        closed = endpoint.counters["closed"]
        assert sum(closed.values()) == 200
        assert closed.keys() <= {
            "bad_signature", "bad_flags", "too_long", "unexpected", "mechanism_mismatch", "handshake_timeout",
        }  # fmt: skip
        assert endpoint.connections == []


async def test_prefixes_within_prefixes() -> None:
    """Thousands of nested prefixes from one peer: one copy of a message, no effect on others, nothing left behind."""
    async with Pub() as pub, Sub() as other:
        address = await pub.bind(LOOPBACK)
        other.subscribe("a")
        await other.connect(address, timeout_s=PATIENCE_S)
        async with await RawPeer.connect(address) as peer:
            peer.send(b"".join(encode_command(b"SUBSCRIBE", b"a" * length) for length in range(NESTED)))
            await pub.wait_subscribed(b"a" * NESTED, peers=2, timeout_s=PATIENCE_S)
            while pub.stats.subscriptions <= NESTED:  # noqa: ASYNC110 - the last prefix is waited for
                await asyncio.sleep(0.001)
            topic = b"a" * (NESTED // 2) + b"b"
            assert pub.publish(topic) == 2
            message = encode_message([topic])
            assert (await peer.read(27 + len(message)))[27:] == message
            assert await asyncio.wait_for(other.receive(), PATIENCE_S) == (topic,)
        while len(pub.connections) > 1:  # noqa: ASYNC110 - the end of a peer is waited for
            await asyncio.sleep(0.001)
        assert (pub.stats.prefixes, pub.stats.subscriptions) == (1, 1)


async def test_a_prefix_above_the_limit() -> None:
    async with Pub(max_message_bytes=1_000) as pub:
        async with await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
            peer.send(encode_command(b"SUBSCRIBE", bytes(2_000)))
            await peer.closed()
        assert pub.counters["closed"] == {"too_long": 1}
