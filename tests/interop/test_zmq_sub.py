"""libzmq's publishers, our subscriber."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq

from meshbus.edge import Backoff, CurveClient, CurveServer, Heartbeat, PlainClient, Pub, Sub, XSub, known_keys
from meshbus.errors import HandshakeError, Timeout
from tests.interop.zmqlab import (
    CLIENT_SECRET,
    MECHANISMS,
    SERVER_PUBLIC,
    STRANGER_PUBLIC,
    STRANGER_SECRET,
    TRANSPORTS,
    Lab,
    bound,
    our_client,
    until,
)
from tests.patience import PATIENCE_S

QUICK = Backoff(first_s=0.01, longest_s=0.05)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with Lab(tmp_path) as made:
        yield made


async def received(sub: Sub, last: bytes) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    async with asyncio.timeout(PATIENCE_S):
        while (message := await sub.receive())[0] != last:
            found.append(list(message))
    return found


async def heard(xpub: zmq.asyncio.Socket, count: int) -> list[bytes]:
    return [await asyncio.wait_for(xpub.recv(), PATIENCE_S) for _ in range(count)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_prefixes_parts_and_sizes(lab: Lab, mechanism: str, transport: str) -> None:
    publisher = lab.server(zmq.XPUB, mechanism, xpub_verbose=True)
    publisher.bind(lab.address(transport))
    security = our_client(mechanism)
    async with Sub(security=security) as nested, Sub(security=security) as everything:
        for prefix in (b"a", b"ab", b"abc", b"end"):
            nested.subscribe(prefix)
        everything.subscribe()
        for sub in (nested, everything):
            await sub.connect(bound(publisher), timeout_s=PATIENCE_S)
        assert sorted(await heard(publisher, 5)) == [b"\x01", b"\x01a", b"\x01ab", b"\x01abc", b"\x01end"]
        messages = [
            [b"abcd", b"nested three times, one copy"],
            [b"b", b"", b"\x00\xff" * 300],
            [b""],
            [b"a" * 255],
            [b"a" * 256, b"z" * 255],
            [b"ab", bytes(range(256)) * (1 << 16)],
        ]
        for message in messages:
            await publisher.send_multipart(message)
        await publisher.send(b"end")
        assert await received(everything, b"end") == messages
        assert await received(nested, b"end") == [m for m in messages if m[0].startswith(b"a")]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_subscriptions_are_counted_and_cancelled_once(lab: Lab, mechanism: str) -> None:
    publisher = lab.server(zmq.XPUB, mechanism, xpub_verboser=True)
    publisher.bind(lab.address("tcp"))
    async with Sub(security=our_client(mechanism)) as sub:
        await sub.connect(bound(publisher), timeout_s=PATIENCE_S)
        for change, prefix in [
            (sub.subscribe, "T"),
            (sub.subscribe, "T"),
            (sub.unsubscribe, "T"),
            (sub.unsubscribe, "T"),
            (sub.unsubscribe, "T"),
            (sub.unsubscribe, "never"),
            (sub.subscribe, "end"),
        ]:
            change(prefix)
        assert await heard(publisher, 4) == [b"\x01T", b"\x01T", b"\x00T", b"\x01end"]
        await publisher.send(b"T")
        await publisher.send(b"end")
        assert await received(sub, b"end") == []


@pytest.mark.parametrize(
    ("mechanism", "security", "cause"),
    [
        ("PLAIN", PlainClient("admin", "wrong"), "refused: the peer sent ERROR: 400"),
        ("CURVE", CurveClient(SERVER_PUBLIC, STRANGER_SECRET), "refused: the peer sent ERROR: 400"),
        ("CURVE", CurveClient(STRANGER_PUBLIC, CLIENT_SECRET), "closed_in_handshake: .* before its WELCOME"),
        ("CURVE", PlainClient("admin", "secret"), "closed_in_handshake|mechanism_mismatch"),
    ],
    ids=["wrong password", "unknown key", "wrong server key", "wrong mechanism"],
)
async def test_we_are_refused_with_a_named_cause(
    lab: Lab, mechanism: str, security: PlainClient | CurveClient, cause: str
) -> None:
    publisher = lab.server(zmq.PUB, mechanism)
    publisher.bind(lab.address("tcp"))
    async with Sub(security=security) as sub:
        with pytest.raises(HandshakeError, match=cause):
            await sub.connect(bound(publisher), timeout_s=PATIENCE_S)
        assert sub.connections == []


async def test_without_a_server(lab: Lab) -> None:
    async with Sub(backoff=QUICK) as sub:
        with pytest.raises(Timeout):
            await sub.connect(lab.address("ipc"), timeout_s=0.2)
        assert sub.counters["closed"]["unreachable"] > 1


async def test_a_publisher_that_restarts_is_asked_again_once_per_prefix(lab: Lab) -> None:
    address = lab.address("ipc")
    async with Sub(backoff=QUICK) as sub:
        for prefix in ("b", "a", "a", "ab"):
            sub.subscribe(prefix)
        await sub.connect(address)
        for life in (b"a1", b"a2", b"b3"):
            publisher = lab.socket(zmq.XPUB, xpub_verbose=True)
            publisher.bind(address)
            assert await heard(publisher, 3) == [b"\x01a", b"\x01ab", b"\x01b"]
            await publisher.send(life)
            assert await asyncio.wait_for(sub.receive(), PATIENCE_S) == (life,)
            publisher.close()
            await until(lambda: sub.connections == [])
        assert sub.counters["connection"]["ready"] == 3


async def test_several_publishers_and_one_that_is_left(lab: Lab) -> None:
    publishers = [lab.socket(zmq.XPUB) for _ in range(3)]
    async with Sub() as sub:
        sub.subscribe("x")
        for publisher in publishers:
            publisher.bind(lab.address("tcp"))
            await sub.connect(bound(publisher), timeout_s=PATIENCE_S)
            assert await heard(publisher, 1) == [b"\x01x"]
            await publisher.send(b"x")
            assert await asyncio.wait_for(sub.receive(), PATIENCE_S) == (b"x",)
        await sub.disconnect(bound(publishers[0]))
        assert await heard(publishers[0], 1) == [b"\x00x"]
        assert len(sub.connections) == 2


async def test_our_subscriber_may_be_the_one_that_listens(lab: Lab) -> None:
    async with Sub() as sub:
        sub.subscribe()
        publisher = lab.socket(zmq.XPUB)
        publisher.connect(await sub.bind(lab.address("tcp")))
        assert await heard(publisher, 1) == [b"\x01"]
        await publisher.send(b"x")
        assert await asyncio.wait_for(sub.receive(), PATIENCE_S) == (b"x",)


async def test_an_xsub_speaks_to_the_application_behind_an_xpub(lab: Lab) -> None:
    publisher = lab.socket(zmq.XPUB)
    publisher.bind(lab.address("tcp"))
    async with XSub() as xsub:
        assert xsub.send("nobody there") == 0
        await xsub.connect(bound(publisher), timeout_s=PATIENCE_S)
        assert xsub.send("hello", b"upstream") == 1
        assert await asyncio.wait_for(publisher.recv_multipart(), PATIENCE_S) == [b"hello", b"upstream"]


async def test_a_dead_publisher_is_noticed_by_heartbeat(lab: Lab) -> None:
    publisher = lab.socket(zmq.XPUB)
    publisher.bind(lab.address("tcp"))
    heartbeat = Heartbeat(interval_s=0.05, timeout_s=5.0)
    async with Sub(heartbeat=heartbeat) as sub:
        sub.subscribe()
        await sub.connect(bound(publisher), timeout_s=PATIENCE_S)
        assert await heard(publisher, 1) == [b"\x01"]
        await asyncio.sleep(0.3)
        assert "closed" not in sub.counters, "libzmq answers our PINGs"


async def test_a_slow_application_makes_the_publisher_wait(lab: Lab) -> None:
    """Nothing is lost here: reading stops, and goes on."""
    publisher = lab.socket(zmq.XPUB, sndhwm=0)
    publisher.bind(lab.address("tcp"))
    async with Sub(high_water=10) as sub:
        sub.subscribe()
        await sub.connect(bound(publisher), timeout_s=PATIENCE_S)
        await heard(publisher, 1)
        count = 20_000
        for number in range(count):
            await publisher.send(b"%06d" % number + bytes(1000))
        await until(lambda: sub.pending >= 10)
        held = sub.pending
        await asyncio.sleep(0.05)
        assert sub.pending == held, "reading has stopped"
        numbers = [int((await asyncio.wait_for(sub.receive(), PATIENCE_S))[0][:6]) for _ in range(count)]
        assert numbers == list(range(count))


@pytest.mark.parametrize("ours", [True, False])
async def test_an_xsub_delivers_what_an_xpub_sends_under_other_topics(lab: Lab, ours: bool) -> None:
    """XPUB_MANUAL lets a proxy answer a request for one topic with another; libzmq's XSUB is the measure."""
    publisher = lab.socket(zmq.XPUB, xpub_manual=True)
    publisher.bind("tcp://127.0.0.1:*")
    async with XSub() as xsub:
        theirs = lab.socket(zmq.XSUB)
        if ours:
            xsub.subscribe(b"asked")
            await xsub.connect(bound(publisher), timeout_s=PATIENCE_S)
        else:
            theirs.connect(bound(publisher))
            await theirs.send(b"\x01asked")
        assert await heard(publisher, 1) == [b"\x01asked"]
        publisher.setsockopt(zmq.SUBSCRIBE, b"given")
        await publisher.send_multipart([b"given", b"1"])
        async with asyncio.timeout(PATIENCE_S):
            assert list(await xsub.receive() if ours else await theirs.recv_multipart()) == [b"given", b"1"]


async def test_keys_are_taken_as_pyzmq_gives_them(lab: Lab) -> None:
    public, secret = zmq.curve_keypair()
    assert (type(public), len(public)) == (bytes, 40)
    assert CurveServer(secret, known_keys([public])).public_key == public.decode()
    client_public, client_secret = zmq.curve_keypair()
    async with Pub(security=CurveServer(secret, known_keys([client_public]))) as pub:
        address = await pub.bind("tcp://127.0.0.1:*")
        async with Sub(security=CurveClient(public, client_secret)) as sub:
            sub.subscribe()
            await sub.connect(address, timeout_s=PATIENCE_S)
            await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
            pub.publish(b"x")
            async with asyncio.timeout(PATIENCE_S):
                assert await sub.receive() == (b"x",)
