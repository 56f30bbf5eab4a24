import asyncio

import pytest

from meshbus.edge import pub as pub_module
from meshbus.edge.pub import Pub, Verbosity, XPub
from meshbus.edge.queue import Loss
from meshbus.edge.zmtp.framing import encode_command, encode_frame, encode_message
from meshbus.edge.zmtp.protocol import Interest, Upstream
from meshbus.errors import Timeout
from meshbus.policy.reason import Reason
from tests.edge.raw import RawPeer, run_loop
from tests.patience import PATIENCE_S

LOOPBACK = "tcp://127.0.0.1:*"
OUR_READY = 27


def subscribe(prefix: bytes) -> bytes:
    return encode_command(b"SUBSCRIBE", prefix)


def cancel(prefix: bytes) -> bytes:
    return encode_command(b"CANCEL", prefix)


async def until_subscriptions(pub: Pub, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while pub.stats.subscriptions != count:  # noqa: ASYNC110 - there is no event for an end
            await asyncio.sleep(0.001)


async def test_a_prefix_is_held_once_per_connection_in_both_forms() -> None:
    async with Pub() as pub:
        address = await pub.bind(LOOPBACK)
        async with await RawPeer.connect(address) as peer:
            peer.send(subscribe(b"D") + encode_frame(b"\x01D") + subscribe(b"D") + subscribe(b"end"))
            await pub.wait_subscribed(b"end", timeout_s=PATIENCE_S)
            assert pub.stats.subscriptions == 2
            assert pub.publish("D1") == 1
            peer.send(encode_frame(b"\x00D"))
            await until_subscriptions(pub, 1)
            assert pub.publish("D2") == 0
            pub.publish("end")
            expected = encode_message([b"D1"]) + encode_message([b"end"])
            assert (await peer.read(OUR_READY + len(expected)))[OUR_READY:] == expected


async def test_every_kind_of_part_is_taken_and_kept() -> None:
    async with Pub() as pub, await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
        peer.send(subscribe(b""))
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
        changing = bytearray(b"before")
        pub.publish("tö", changing, memoryview(b"view"))
        pub.publish_batch([("tö", changing), (b"plain",)])
        changing[:] = b"after!"
        expected = [["tö".encode(), b"before", b"view"], ["tö".encode(), b"before"], [b"plain"]]
        whole = b"".join(map(encode_message, expected))
        assert (await peer.read(OUR_READY + len(whole)))[OUR_READY:] == whole


async def test_a_message_that_is_not_a_subscription_is_ignored_and_counted() -> None:
    async with Pub() as pub, await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
        peer.send(encode_message([b"hello", b"you"]) + subscribe(b"end"))
        await pub.wait_subscribed(b"end", timeout_s=PATIENCE_S)
        assert pub.counters["ignore"] == {Reason.IGNORE_UPSTREAM_MESSAGE.why: 1}


async def test_what_is_published_in_one_turn_leaves_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Pub() as pub, await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
        peer.send(subscribe(b""))
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
        (connection,) = pub._connections.values()
        writes: list[int] = []
        send = connection.send

        def watched(buffers: list[bytes]) -> None:
            writes.append(len(buffers))
            send(buffers)

        monkeypatch.setattr(connection, "send", watched)
        for number in range(100):
            pub.publish(b"%d" % number)
        assert writes == []
        await run_loop(2)
        assert writes == [1], "one write, of one buffer"
        for number in range(1000):
            pub.publish(b"%d" % number)
        assert writes[1:], "a tight loop does not have to stop for its messages to leave"


async def test_a_stalled_peer_loses_the_newest_and_closing_does_not_wait_for_ever() -> None:
    pub = Pub(high_water=10, linger_s=0.05)
    async with await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
        peer.send(subscribe(b""))
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
        for _ in range(100):
            pub.publish(b"x", bytes(1_000_000))
        (info,) = pub.connections
        stats = pub.peer_stats(info.number)
        assert stats is not None
        assert stats.matched == 100
        assert stats.pending == 10
        assert stats.dropped[Loss.HIGH_WATER] == 90 - stats.taken
        with pytest.raises(Timeout):
            await pub.flush(timeout_s=0.01)
        await pub.close()
    assert pub.counters["flush"] == {"lingered_in_vain": 1}
    assert pub.stats.dropped[Loss.PEER_GONE] == 10


@pytest.mark.parametrize("limits", [{"high_water": 10}, {"queue_bytes": 1000}])
async def test_a_peer_that_keeps_up_loses_nothing_to_a_burst_or_a_batch(limits: dict[str, int]) -> None:
    """The kernel accepts a few hundred kilobytes at once; the queue is far smaller than what is published."""
    async with Pub(**limits) as pub, await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:  # type: ignore[arg-type]
        peer.send(subscribe(b""))
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
        messages = [(b"%04d" % number, bytes(50)) for number in range(2_000)]
        assert pub.publish_batch(messages) == len(messages)
        for message in messages:
            pub.publish(*message)
        whole = b"".join(map(encode_message, messages)) * 2
        assert (await peer.read(OUR_READY + len(whole)))[OUR_READY:] == whole


async def test_closing_lets_messages_leave() -> None:
    async with await make_pub() as pub, await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
        peer.send(subscribe(b""))
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
        message = [b"x", bytes(3_000_000)]
        pub.publish(*message)
        closing = asyncio.ensure_future(pub.close())
        assert (await peer.closed())[OUR_READY:] == encode_message(message)
        await closing


async def make_pub() -> Pub:
    return Pub(linger_s=PATIENCE_S)


async def test_waiting_for_subscribers_ends() -> None:
    async with Pub() as pub:
        with pytest.raises(Timeout, match="subscribers of b'x'"):
            await pub.wait_subscribed("x", timeout_s=0.01)
        assert pub.publish() == 0
        await pub.flush(timeout_s=1)


@pytest.mark.parametrize(
    ("limits", "prefixes"),
    [({"max_subscriptions": 4}, [b"a", b"b", b"c", b"d", b"e"]), ({"max_prefix_bytes": 100}, [b"x" * 60, b"y" * 60])],
)
async def test_a_peer_that_asks_for_too_much_is_closed(limits: dict[str, int], prefixes: list[bytes]) -> None:
    async with Pub(**limits) as pub:  # type: ignore[arg-type]
        async with await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
            peer.send(b"".join(map(subscribe, prefixes)))
            await peer.closed()
        assert pub.counters["closed"] == {"too_many_subscriptions": 1}
        assert pub.stats.subscriptions == 0
        assert pub.stats.peers == 0


async def test_an_xpub_receives_subscriptions_and_messages() -> None:
    async with XPub() as xpub, await RawPeer.connect(await xpub.bind(LOOPBACK)) as peer:
        peer.send(subscribe(b"a") + subscribe(b"a") + encode_message([b"hello", b"you"]) + cancel(b"a") + cancel(b"b"))
        heard = [await asyncio.wait_for(xpub.next_event(), PATIENCE_S) for _ in range(3)]
        assert heard == [Interest(b"a", subscribe=True), Upstream((b"hello", b"you")), Interest(b"a", subscribe=False)]


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [(Verbosity.DISTINCT, "+T -T"), (Verbosity.VERBOSE, "+T +T +T -T"), (Verbosity.VERBOSER, "+T +T +T -T -T")],
)
async def test_events_until_the_end(verbosity: Verbosity, expected: str) -> None:
    xpub = XPub(verbosity=verbosity)
    address = await xpub.bind(LOOPBACK)
    async with await RawPeer.connect(address) as first, await RawPeer.connect(address) as second:
        first.send(subscribe(b"T") * 2)
        await until_subscriptions(xpub, 1)
        second.send(subscribe(b"T"))
        await until_subscriptions(xpub, 2)
        first.send(cancel(b"T"))
        await until_subscriptions(xpub, 1)
    await until_subscriptions(xpub, 0)
    await xpub.close()
    heard = [event async for event in xpub.events() if isinstance(event, Interest)]
    assert " ".join(("+" if event.subscribe else "-") + event.prefix.decode() for event in heard) == expected


async def test_events_that_are_not_read_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pub_module, "MAX_EVENTS", 3)
    async with XPub() as xpub, await RawPeer.connect(await xpub.bind(LOOPBACK)) as peer:
        peer.send(b"".join(subscribe(b"%d" % number) for number in range(10)))
        await until_subscriptions(xpub, 10)
        assert xpub.counters["drop"] == {"event_queue_full": 7}


async def test_thousands_of_changes_at_once_end_in_the_last_of_each() -> None:
    async with Pub() as pub, await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
        turns = [subscribe(b"kept"), subscribe(b"flip")]
        for number in range(3000):
            turns += [subscribe(b"robot/%d/" % number), cancel(b"robot/%d/" % (number - 100)), cancel(b"flip")]
        peer.send(b"".join([*turns, subscribe(b"end")]))
        await pub.wait_subscribed(b"ending", timeout_s=PATIENCE_S)
        assert pub.stats.subscriptions == 102
        assert [pub.publish(topic) for topic in (b"flip", b"kept", b"robot/2999/x", b"robot/2899/x")] == [0, 1, 1, 0]


async def test_a_peer_that_subscribes_too_much_at_once_is_disconnected() -> None:
    async with Pub(max_subscriptions=10) as pub, await RawPeer.connect(await pub.bind(LOOPBACK)) as peer:
        peer.send(b"".join(subscribe(b"%d" % number) for number in range(11)))
        await peer.closed()
        assert pub.stats.subscriptions == 0
