"""Our publisher, libzmq's subscribers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq

from meshbus.edge import Heartbeat, Interest, Pub, Upstream, Verbosity, Verdict, XPub
from meshbus.edge.security import Null
from tests.interop.zmqlab import (
    MECHANISMS,
    STRANGER_PUBLIC,
    STRANGER_SECRET,
    TRANSPORTS,
    Lab,
    arrivals,
    our_server,
    until,
)
from tests.patience import PATIENCE_S
from tests.vectors import load

CAPTURES = {capture["name"]: capture for capture in load("pubsub")["zmtp"]["captures"]}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with Lab(tmp_path) as made:
        yield made


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_prefixes_parts_and_sizes(lab: Lab, mechanism: str, transport: str) -> None:
    async with Pub(security=our_server(mechanism)) as pub:
        address = await pub.bind(lab.address(transport))
        nested, everything, other = (lab.client(zmq.SUB, mechanism) for _ in range(3))
        wanted = {nested: [b"a", b"ab", b"abc"], everything: [b"", b"a"], other: [b"x\x00", b"end"]}
        for socket, prefixes in wanted.items():
            for prefix in prefixes:
                socket.subscribe(prefix)
            socket.connect(address)
        nested.subscribe(b"end")
        await until(lambda: pub.stats.subscriptions == 8)

        large = bytes(range(256)) * (1 << 16)
        messages = [
            [b"abcd", b"nested three times, one copy"],
            [b"aby"],
            [b"b", b"", b"\x00\xff" * 300],
            [b"x\x00y", bytes(range(256))],
            [b""],
            [b"a" * 255],
            [b"a" * 256, b"z" * 255],
            [b"ab", large],
        ]
        assert len(large) == 16 << 20
        for message in messages:
            pub.publish(*message)
        assert pub.publish(b"end") == 3
        assert await arrivals(everything, b"end") == messages
        assert await arrivals(nested, b"end") == [m for m in messages if m[0].startswith(b"a")]
        assert await arrivals(other, b"end") == [messages[3]]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_duplicate_subscriptions_and_their_end(lab: Lab, mechanism: str) -> None:
    async with Pub(security=our_server(mechanism)) as pub:
        address = await pub.bind(lab.address("tcp"))
        socket = lab.client(zmq.SUB, mechanism)
        for prefix in (b"T", b"T", b"end"):
            socket.subscribe(prefix)
        socket.connect(address)
        await until(lambda: pub.stats.subscriptions == 2)
        socket.unsubscribe(b"T")  # counted by the subscriber: nothing is sent
        socket.subscribe(b"barrier")
        await until(lambda: pub.stats.subscriptions == 3)
        assert pub.publish(b"T1") == 1
        assert await socket.recv() == b"T1"
        socket.unsubscribe(b"T")
        await until(lambda: pub.stats.subscriptions == 2)
        assert pub.publish(b"T2") == 0
        pub.publish(b"end")
        assert await arrivals(socket, b"end") == []


@pytest.mark.parametrize(("mechanism", "reason"), [("PLAIN", "denied"), ("CURVE", "denied"), ("server key", "bad_box")])
async def test_a_stranger_is_refused_by_name(lab: Lab, mechanism: str, reason: str) -> None:
    async with Pub(security=our_server("CURVE" if mechanism == "server key" else mechanism)) as pub:
        address = await pub.bind(lab.address("tcp"))
        if mechanism == "PLAIN":
            stranger = lab.client(zmq.SUB, "PLAIN", password="wrong")
        elif mechanism == "CURVE":
            stranger = lab.client(zmq.SUB, "CURVE", secret_key=STRANGER_SECRET, public_key=STRANGER_PUBLIC)
        else:
            stranger = lab.client(zmq.SUB, "CURVE", server_key=STRANGER_PUBLIC)
        stranger.subscribe(b"")
        stranger.connect(address)
        await until(lambda: reason in pub.counters.get("closed", {}))
        assert pub.publish(b"secret") == 0
        assert "ready" not in pub.counters["connection"]


async def test_mechanisms_that_differ(lab: Lab) -> None:
    async with Pub(security=our_server("CURVE")) as pub:
        socket = lab.client(zmq.SUB, "NULL")
        socket.connect(await pub.bind(lab.address("tcp")))
        await until(lambda: bool(pub.counters.get("closed")))
        # libzmq may notice first, and hangs up without a word.
        assert set(pub.counters["closed"]) <= {"mechanism_mismatch", "closed_in_handshake"}


async def test_a_callback_may_take_its_time_and_may_judge_by_address(lab: Lab) -> None:
    seen: list[str] = []

    async def authenticate(shown: object) -> Verdict:
        await asyncio.sleep(0.01)
        seen.append(shown.address)  # type: ignore[attr-defined]
        return Verdict.ALLOW if len(seen) > 1 else Verdict.LATER

    async with Pub(security=Null(authenticate)) as pub:
        socket = lab.socket(zmq.SUB)
        socket.subscribe(b"")
        socket.connect(await pub.bind(lab.address("tcp")))
        received = asyncio.ensure_future(socket.recv())  # libzmq asks again only while its thread is inside
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)  # turned away once, it came back
        pub.publish(b"x")
        assert await asyncio.wait_for(received, PATIENCE_S) == b"x"
        assert len(seen) == 2
        assert all(address.startswith("tcp://127.0.0.1:") for address in seen)


async def test_other_socket_types_are_refused(lab: Lab) -> None:
    async with Pub() as pub:
        socket = lab.socket(zmq.PULL)
        socket.connect(await pub.bind(lab.address("tcp")))
        await until(lambda: bool(pub.counters.get("closed")))
        assert set(pub.counters["closed"]) <= {"incompatible_socket", "closed_in_handshake", "eof"}


@pytest.mark.parametrize("mechanism", ["NULL", "CURVE"])
async def test_heartbeats_both_ways(lab: Lab, mechanism: str) -> None:
    ours = Heartbeat(interval_s=0.05, timeout_s=5.0, ttl_s=5.0)
    async with Pub(security=our_server(mechanism), heartbeat=ours) as pub:
        socket = lab.client(zmq.SUB, mechanism, heartbeat_ivl=50, heartbeat_ttl=5000, heartbeat_timeout=5000)
        socket.subscribe(b"")
        socket.connect(await pub.bind(lab.address("tcp")))
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
        await asyncio.sleep(0.4)  # several of each
        assert pub.publish(b"still there") == 1
        assert await socket.recv() == b"still there"
        assert pub.counters["connection"] == {"opened": 1, "ready": 1}


async def test_a_publisher_that_restarts_gets_its_subscribers_back(lab: Lab) -> None:
    socket = lab.socket(zmq.SUB, reconnect_ivl=20)
    for prefix in (b"b", b"a", b"a"):
        socket.subscribe(prefix)
    address = lab.address("ipc")
    socket.connect(address)
    for life in (b"a1", b"a2", b"b3"):
        async with Pub() as pub:
            await pub.bind(address)
            received = asyncio.ensure_future(socket.recv())  # libzmq asks again only while its thread is inside
            await pub.wait_subscribed(b"a", timeout_s=PATIENCE_S)
            await pub.wait_subscribed(b"b", timeout_s=PATIENCE_S)
            assert pub.stats.subscriptions == 2
            pub.publish(life)
            assert await asyncio.wait_for(received, PATIENCE_S) == life


async def test_our_publisher_may_be_the_one_that_connects(lab: Lab) -> None:
    socket = lab.socket(zmq.SUB)
    socket.subscribe(b"")
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    async with Pub() as pub:
        await pub.connect(f"tcp://127.0.0.1:{port}", timeout_s=PATIENCE_S)
        received = asyncio.ensure_future(socket.recv())  # libzmq asks only while its thread is inside
        await pub.wait_subscribed(b"x", timeout_s=PATIENCE_S)
        pub.publish(b"x")
        assert await asyncio.wait_for(received, PATIENCE_S) == b"x"


@pytest.mark.parametrize(
    ("verbosity", "capture"),
    [
        (Verbosity.DISTINCT, "xpub_events_plain"),
        (Verbosity.VERBOSE, "xpub_events_verbose"),
        (Verbosity.VERBOSER, "xpub_events_verboser"),
    ],
)
async def test_the_application_behind_an_xpub_hears_what_libzmq_tells(
    lab: Lab, verbosity: Verbosity, capture: str
) -> None:
    golden = CAPTURES[capture]["events"]
    async with XPub(verbosity=verbosity) as xpub:
        address = await xpub.bind(lab.address("tcp"))
        sockets = {name: lab.socket(zmq.SUB) for name in "ab"}
        for socket in sockets.values():
            socket.connect(address)
        await until(lambda: xpub.counters.get("connection", {}).get("ready") == 2)
        heard: list[Interest] = []
        expected: list[Interest] = []
        for number, (step, events) in enumerate(golden):
            name, _, verb = step.partition(".")
            if step.startswith("send"):
                xpub.publish(step.split()[1].rstrip(":").encode())
                continue
            socket = sockets[name]
            if verb == "close":
                socket.close()
            else:
                (socket.subscribe if verb == "sub T" else socket.unsubscribe)(b"T")
                barrier = b"barrier %d" % number
                socket.subscribe(barrier)
                while (event := await asyncio.wait_for(xpub.next_event(), PATIENCE_S)) != Interest(
                    barrier, subscribe=True
                ):
                    assert isinstance(event, Interest)
                    heard.append(event)
            expected += [Interest(bytes.fromhex(text)[1:], subscribe=text.startswith("01")) for text in events]
        while len([event for event in heard if event.prefix == b"T"]) < len(expected):
            event = await asyncio.wait_for(xpub.next_event(), PATIENCE_S)
            assert isinstance(event, Interest)
            heard.append(event)
        assert [event for event in heard if event.prefix == b"T"] == expected


async def test_messages_from_an_xsub(lab: Lab) -> None:
    async with XPub() as xpub, Pub() as pub:
        for endpoint in (xpub, pub):
            socket = lab.socket(zmq.XSUB)
            socket.connect(await endpoint.bind(lab.address("tcp")))
            await socket.send_multipart([b"hello", b"upstream"])
        assert await asyncio.wait_for(xpub.next_event(), PATIENCE_S) == Upstream((b"hello", b"upstream"))
        await until(lambda: pub.counters.get("ignore") == {"upstream_message": 1})
