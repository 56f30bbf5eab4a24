import asyncio

import pytest

from meshbus.edge.pub import Pub, XPub
from meshbus.edge.sub import Sub, XSub
from meshbus.edge.zmtp.framing import encode_command, encode_message
from meshbus.edge.zmtp.protocol import Upstream
from tests.edge.raw import GREETING, READY, RawPeer, run_loop
from tests.patience import PATIENCE_S

LOOPBACK = "tcp://127.0.0.1:*"


async def publisher_of(sub: Sub) -> RawPeer:
    """Connect to a listening subscriber, as a publisher that sends any bytes."""
    return await RawPeer.connect(await sub.bind(LOOPBACK))


async def test_messages_without_a_subscription_are_left_out() -> None:
    async with Sub() as sub, await publisher_of(sub) as peer:
        sub.subscribe("a")
        peer.send(encode_message([b"b"]) + encode_message([b"ab", b"c"]) + encode_message([b""]))
        assert await asyncio.wait_for(sub.receive(), PATIENCE_S) == (b"ab", b"c")
        assert sub.counters["drop"] == {"not_subscribed": 2}
        assert sub.counters["message"] == {"received": 1}


async def test_what_was_on_the_way_when_a_prefix_was_cancelled_is_left_out() -> None:
    async with Sub() as sub, await publisher_of(sub) as peer:
        sub.subscribe("a")
        sub.subscribe("b")
        sub.unsubscribe("a")
        peer.send(encode_message([b"a"]) + encode_message([b"b"]))
        assert await asyncio.wait_for(sub.receive(), PATIENCE_S) == (b"b",)


async def test_each_new_publisher_gets_each_prefix_once_in_byte_order() -> None:
    async with Sub() as sub:
        for prefix in ("b", b"a", "a", "ab", ""):
            sub.subscribe(prefix)
        for _ in range(2):
            async with await publisher_of(sub) as peer:
                told = b"".join(encode_command(b"SUBSCRIBE", prefix) for prefix in (b"", b"a", b"ab", b"b"))
                assert (await peer.read(27 + len(told)))[27:] == told


async def test_later_changes_are_sent_at_once() -> None:
    async with Sub() as sub, await publisher_of(sub) as peer:
        await peer.read(27)
        await run_loop()
        sub.subscribe("a")
        sub.subscribe("a")
        sub.unsubscribe("a")
        sub.unsubscribe("a")
        sub.unsubscribe("a")
        told = encode_command(b"SUBSCRIBE", b"a") * 2 + encode_command(b"CANCEL", b"a")
        assert await peer.read(len(told)) == told


async def test_reading_stops_at_the_high_water_mark_also_for_newcomers() -> None:
    async with Sub(high_water=2) as sub:
        sub.subscribe()
        address = await sub.bind(LOOPBACK)
        async with await RawPeer.connect(address) as first, await RawPeer.connect(address) as second:
            first.send(encode_message([b"1"]) + encode_message([b"2"]))
            while sub.pending < 2:  # noqa: ASYNC110 - it has no event: the application waits in receive
                await asyncio.sleep(0.001)
            second.send(encode_message([b"3"]))
            async with await RawPeer.connect(address) as third:
                third.send(encode_message([b"4"]))
                await asyncio.sleep(0.01)
                assert sub.pending < 4  # what a newcomer sends right behind its handshake may be read with it
                got = await sub.receive_batch()
                while len(got) < 4:
                    got.append(await asyncio.wait_for(sub.receive(), PATIENCE_S))
                assert got[:2] == [(b"1",), (b"2",)]
                assert set(got[2:]) == {(b"3",), (b"4",)}


async def test_iteration_ends_with_the_endpoint_after_the_received_messages() -> None:
    async with Pub() as pub:
        sub = Sub()
        sub.subscribe()
        await sub.connect(await pub.bind(LOOPBACK), timeout_s=PATIENCE_S)
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
        pub.publish_batch([(b"%d" % number,) for number in range(3)])
        while sub.pending < 3:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        await sub.close()
        assert [message async for message in sub] == [(b"0",), (b"1",), (b"2",)]
        with pytest.raises(RuntimeError, match="closed"):
            await sub.receive()


async def test_a_message_above_the_limit_ends_the_connection_by_name() -> None:
    async with Sub(max_message_bytes=1000) as sub:
        sub.subscribe()
        address = await sub.bind(LOOPBACK)
        async with await RawPeer.connect(address, greet=False) as peer:
            peer.send(GREETING + READY + b"\x02" + (1 << 62).to_bytes(8, "big"))
            await peer.closed()
        assert sub.counters["closed"] == {"too_long": 1}


async def test_a_message_upstream() -> None:
    async with XPub() as xpub, XSub() as xsub:
        assert xsub.send("nobody there") == 0
        await xsub.connect(await xpub.bind(LOOPBACK), timeout_s=PATIENCE_S)
        assert xsub.send("hello", b"upstream") == 1
        assert await asyncio.wait_for(xpub.next_event(), PATIENCE_S) == Upstream((b"hello", b"upstream"))


async def test_an_xsub_does_not_filter_and_a_sub_does() -> None:
    for kind, count in ((XSub, 2), (Sub, 1)):
        async with XPub() as xpub, kind() as sub:
            sub.subscribe("asked")
            await sub.connect(await xpub.bind("tcp://127.0.0.1:*"), timeout_s=PATIENCE_S)
            await xpub.wait_subscribed("asked", timeout_s=PATIENCE_S)
            connection = next(iter(sub._connections.values()))
            sub.on_messages(connection, [(b"given", b"1"), (b"asked", b"2")])
            assert sub.pending == count
