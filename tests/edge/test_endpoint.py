import asyncio
import errno
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from meshbus.edge import endpoint as endpoint_module
from meshbus.edge.dialer import Backoff
from meshbus.edge.endpoint import Endpoint
from meshbus.edge.pub import Pub
from meshbus.edge.security import CurveServer as Curve
from meshbus.edge.security import Null, PlainServer, anyone, curve_keypair
from meshbus.edge.sub import Sub
from meshbus.edge.zmtp.framing import encode_command
from meshbus.edge.zmtp.greeting import encode_greeting
from meshbus.edge.zmtp.mechanism import Credentials, Verdict
from meshbus.errors import ConfigError, HandshakeError, HandshakeFault, Timeout
from tests.edge.raw import GREETING, READY, RawPeer, run_loop
from tests.patience import PATIENCE_S

LOOPBACK = "tcp://127.0.0.1:*"


async def ended(endpoint: Endpoint, reason: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while reason not in endpoint.counters.get("closed", {}):  # noqa: ASYNC110 - a peer in this loop is waited for
            await asyncio.sleep(0.001)


async def test_only_encrypted_or_insecure_endpoints_listen_to_other_machines() -> None:
    for security in (Null(), PlainServer(anyone)):
        async with Pub(security=security) as pub:
            with pytest.raises(ConfigError, match="insecure=True"):
                await pub.bind("tcp://*:*")
    for pub in (Pub(insecure=True), Pub(security=Curve(curve_keypair()[1], anyone))):
        async with pub:
            assert (await pub.bind("tcp://*:*")).startswith("tcp://0.0.0.0:")


async def test_several_addresses_at_once(tmp_path: Path) -> None:
    async with Pub() as pub, Sub() as sub:
        sub.subscribe()
        for address in (LOOPBACK, LOOPBACK, f"ipc://{tmp_path}/s"):
            await sub.connect(await pub.bind(address), timeout_s=PATIENCE_S)
        await pub.wait_subscribed(b"x", peers=3, timeout_s=PATIENCE_S)
        assert [info.peer_type for info in pub.connections] == ["SUB"] * 3
        assert pub.publish(b"x") == 3
        assert [await sub.receive() for _ in range(3)] == [(b"x",)] * 3


async def test_connecting_twice_is_once() -> None:
    async with Pub() as pub, Sub() as sub:
        address = await pub.bind(LOOPBACK)
        for _ in range(2):
            await sub.connect(address, timeout_s=PATIENCE_S)
        assert len(sub.connections) == 1
        await sub.disconnect(address)
        await sub.disconnect(address)
        assert sub.connections == []


async def test_slow_handshakes_end_in_time() -> None:
    async with Pub(handshake_timeout_s=0.05) as pub:
        address = await pub.bind(LOOPBACK)
        async with (
            await RawPeer.connect(address, greet=False) as silent,
            await RawPeer.connect(address, greet=False) as dripping,
        ):
            for byte in GREETING[:20]:
                dripping.send(bytes((byte,)))
                await asyncio.sleep(0.001)
            await silent.closed()
            await dripping.closed()
        assert pub.counters["closed"] == {"handshake_timeout": 2}


async def test_unfinished_handshakes_do_not_keep_others_out() -> None:
    async with Pub(max_connections=3) as pub, AsyncExitStack() as stack:
        address = await pub.bind(LOOPBACK)

        async def come(*, greet: bool) -> RawPeer:
            return await stack.enter_async_context(await RawPeer.connect(address, greet=greet))

        first, _ = await come(greet=False), await come(greet=False)
        for _ in range(3):
            await come(greet=True)
        assert await first.closed() == GREETING, "the oldest had to go"
        late = await come(greet=False)
        assert await late.closed() == b"", "no place, and nobody to take one from"
        assert pub.counters["closed"] == {"too_many_connections": 3}


@pytest.mark.parametrize("later", [False, True])
async def test_a_callback_that_fails_keeps_the_peer_out(later: bool, caplog: pytest.LogCaptureFixture) -> None:
    def authenticate(shown: Credentials) -> Verdict:
        raise ValueError("no database")

    async def authenticate_later(shown: Credentials) -> Verdict:
        return authenticate(shown)

    async with Pub(security=Null(authenticate_later if later else authenticate)) as pub:
        async with await RawPeer.connect(await pub.bind(LOOPBACK), greet=False) as peer:
            peer.send(GREETING + READY)
            assert (await peer.closed()).endswith(b"\x05ERROR\x03500")
        assert pub.counters["closed"] == {"denied": 1}
    assert "no database" in caplog.text


async def test_important_close_reasons_are_logged_with_a_rate_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Pub() as pub:
        address = await pub.bind(LOOPBACK)
        for _ in range(3):
            async with await RawPeer.connect(address, greet=False) as peer:
                peer.send(b"GET / HTTP/1.1\r\n\r\n")
                await peer.closed()
        async with await RawPeer.connect(address):
            pass
        await ended(pub, "eof")
        assert pub.counters["closed"] == {"bad_signature": 3, "eof": 1}
    (line,) = caplog.messages
    assert "bad_signature" in line
    assert "127.0.0.1" in line


async def test_a_refusal_has_a_fault_and_a_cause() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_greeting(b"CURVE"))
        await writer.drain()
        writer.close()

    async with Sub() as sub:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(HandshakeError, match="mechanism_mismatch") as caught:
                await sub.connect(f"tcp://127.0.0.1:{port}", timeout_s=PATIENCE_S)
    assert caught.value.fault is HandshakeFault.REFUSED


async def test_closing_twice_and_while_a_verdict_is_due() -> None:
    async def never(shown: Credentials) -> Verdict:
        await asyncio.sleep(3600)
        return Verdict.ALLOW

    pub = Pub(security=Null(never))
    async with await RawPeer.connect(await pub.bind(LOOPBACK), greet=False) as peer:
        peer.send(GREETING + encode_command(b"READY"))
        await peer.read(len(GREETING))
        await run_loop()
        await pub.close()
        await pub.close()
        await peer.closed()
    assert pub.counters["closed"] == {"local": 1}
    for late in (pub.bind(LOOPBACK), pub.connect("tcp://127.0.0.1:1")):
        with pytest.raises(RuntimeError, match="closed"):
            await late


async def test_a_connection_that_takes_too_long_times_out() -> None:
    async with Sub(backoff=Backoff(first_s=0.001, longest_s=0.002)) as sub:
        with pytest.raises(Timeout, match="connecting to tcp"):
            await sub.connect("tcp://127.0.0.1:1", timeout_s=0.05)
        assert sub.counters["closed"]["unreachable"] > 1


async def test_a_system_without_descriptors_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "ACCEPT_PAUSE_S", 0.01)
    async with Pub() as pub:
        address = await pub.bind(LOOPBACK)
        (listener,) = pub._listeners
        accept, failures = listener.accept, iter([OSError(errno.EMFILE, "Too many open files")])

        def failing_once() -> object:
            for failure in failures:
                raise failure
            return accept()

        monkeypatch.setattr(listener, "accept", failing_once)
        async with await RawPeer.connect(address):
            assert pub.counters["accept"] == {"failed": 1}
            assert len(pub.connections) == 1
