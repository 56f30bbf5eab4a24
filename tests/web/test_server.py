"""The web server of a node: where it listens, how many it serves, and how it ends."""

import asyncio
import socket  # noqa: TID251 - clients that send or read nothing
from contextlib import ExitStack

import pytest

from meshbus.config import NodeConfig
from meshbus.errors import ConfigError
from meshbus.web import application, eventstream
from meshbus.web.server import MAX_CLIENTS, MAX_HEAD_BYTES, WebServer
from tests.node.test_node import until
from tests.web.scrape import fetch, node, server_of, watch


async def test_an_address_in_use_is_an_error_of_the_configuration() -> None:
    async with node() as opened, server_of(opened) as server:
        with pytest.raises(ConfigError, match=r"web\.bind: 127\.0\.0\.1:\d+ cannot be opened: .*choose another port"):
            async with WebServer(opened, NodeConfig.load(None, {}, web={"bind": server.address}).web):  # type: ignore[arg-type]
                pass


async def test_clients_beyond_the_limit_are_turned_away() -> None:
    async with node() as opened, server_of(opened) as server:
        host, port = server.address.split(":")
        with ExitStack() as stack:
            for _ in range(MAX_CLIENTS + 1):
                stack.enter_context(socket.create_connection((host, int(port))))
            assert (await fetch(server, "/healthz")).status == 503
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * (2 * MAX_HEAD_BYTES))
            reply = await asyncio.to_thread(client.recv, 100)
            assert b" 400 " in reply


async def test_open_pages_do_not_keep_a_node_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    async with node() as opened:
        async with server_of(opened) as server:
            stream = await watch(server)
            assert await asyncio.to_thread(stream.event)
        await asyncio.to_thread(stream.rest)
        stream.close()
    assert not caplog.records


async def test_a_page_that_is_not_read_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The system's buffers take some messages; then nothing moves, and the connection is cut with what is in them."""
    monkeypatch.setattr("meshbus.web.feed.PAUSE_S", 0.001)
    slow = eventstream.EventStream
    monkeypatch.setattr(application, "EventStream", lambda watch, headers: slow(watch, headers, slow_s=0.2))
    padding = "x" * 1_000_000
    async with node() as opened, server_of(opened) as server:
        monkeypatch.setattr("meshbus.web.snapshot.why_not_ready", lambda _: [padding])
        monkeypatch.setattr("meshbus.web.snapshot._text", lambda text: text)
        feed = server._application._feed
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(f"GET /events HTTP/1.1\r\nhost: {server.address}\r\n\r\n".encode())
            await until(lambda: feed._watchers)
            await until(lambda: not feed._watchers)
        assert (await fetch(server, "/healthz")).status == 200
    assert not caplog.records
