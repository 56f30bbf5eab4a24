"""Nodes that are served over HTTP, and what reads them."""

import asyncio
import http.client
from typing import Any, NamedTuple, Self

from meshbus.config import NodeConfig
from meshbus.node.node import Node
from meshbus.web.server import WebServer
from tests.patience import PATIENCE_S


class Page(NamedTuple):
    """One answer."""

    status: int
    kind: str
    text: str
    headers: dict[str, str]


def get(address: str, path: str, **headers: str) -> Page:
    """Fetch a page; blocks."""
    return _ask("GET", address, path, headers)


def post(address: str, path: str, **headers: str) -> Page:
    """Send nothing but headers; blocks."""
    return _ask("POST", address, path, headers)


def _ask(method: str, address: str, path: str, headers: dict[str, str]) -> Page:
    connection = _connection(address)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Page(answer.status, found.get("content-type", ""), answer.read().decode(), found)
    finally:
        connection.close()


def _connection(address: str) -> http.client.HTTPConnection:
    host, _, port = address.rpartition(":")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE_S)


class Stream:
    """Server-sent events; the calls block."""

    def __init__(self, address: str, path: str) -> None:
        self._connection = _connection(address)
        self._connection.request("GET", path)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def event(self) -> str:
        """Return the data of the next event."""
        for line in self._answer:
            if line.startswith(b"data: "):
                return line.removeprefix(b"data: ").decode()
        raise AssertionError("the stream has ended")

    def rest(self) -> bytes:
        """Wait until the server ends the stream, and return what was left in it."""
        return self._answer.read()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


# ── nodes ───────────────────────────────────────────────────────────────────────────────────


def node(**web: Any) -> Node:
    return Node.open(NodeConfig.load(None, {}, psk="5a" * 32, ephemeral=True, web={"bind": "127.0.0.1:0", **web}))


def server_of(opened: Node) -> WebServer:
    assert opened.config.web is not None
    return WebServer(opened, opened.config.web)


async def fetch(server: WebServer, path: str, **headers: str) -> Page:
    return await asyncio.to_thread(get, server.address, path, **headers)


async def watch(server: WebServer) -> Stream:
    return await asyncio.to_thread(Stream, server.address, "/events")
