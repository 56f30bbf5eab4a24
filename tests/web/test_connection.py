"""Connections that send no request are cut, and those that do are left alone."""

import asyncio
import socket  # noqa: TID251 - clients that send nothing
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from meshbus.web import connection
from meshbus.web.server import WebServer
from tests.node.test_node import until
from tests.patience import PATIENCE_S
from tests.web.scrape import node, server_of, watch


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with node() as opened, server_of(opened) as made:
        yield made


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n"], ids=["nothing", "half a request"])
async def test_a_client_without_a_request_is_cut(
    server: WebServer, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    assert await asyncio.to_thread(ended, client_of(server), sent) == b""


async def test_half_a_second_request_is_no_request(server: WebServer) -> None:
    with client_of(server) as client:
        client.sendall(f"GET /healthz HTTP/1.1\r\nhost: {server.address}\r\n\r\n".encode())
        await until(lambda: [one for one in connections(server) if getattr(one.cycle, "response_complete", False)])
        (made,) = connections(server)
        client.sendall(b"GET /healthz")
        made._look(None)  # a request has come since
        assert not made.transport.is_closing()
        made._look(made.cycle)
        assert made.transport.is_closing()


async def test_an_open_page_is_left_alone(server: WebServer) -> None:
    with await watch(server) as stream:
        assert await asyncio.to_thread(stream.event)
        (made,) = connections(server)
        made._look(made.cycle)
        assert not made.transport.is_closing()
        assert await asyncio.to_thread(stream.event)


def client_of(server: WebServer) -> socket.socket:
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def ended(client: socket.socket, sent: bytes) -> bytes:
    """Send part of a request, and return what comes until the server ends the connection; blocks."""
    got = b""
    with client, suppress(ConnectionError):
        client.sendall(sent)
        while more := client.recv(65536):
            got += more
    return got


def connections(server: WebServer) -> list[connection.Connection]:
    assert server._server is not None
    return [one for one in server._server.server_state.connections if isinstance(one, connection.Connection)]
