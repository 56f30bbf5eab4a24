"""Real libzmq sockets beside our endpoints: one context, keys, passwords, and how each side is set up for a mechanism."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Self

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from meshbus.edge import CurveClient, CurveServer, Null, PlainClient, PlainServer, curve_keypair, known_keys, passwords
from meshbus.edge.security import Security
from tests.patience import PATIENCE_S

MECHANISMS = ["NULL", "PLAIN", "CURVE"]
TRANSPORTS = ["tcp", "ipc"]

SERVER_PUBLIC, SERVER_SECRET = curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = curve_keypair()
STRANGER_PUBLIC, STRANGER_SECRET = curve_keypair()


class Lab:
    """One libzmq context, with somebody who judges credentials for its servers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self._context = zmq.asyncio.Context()
        self._sockets: list[zmq.asyncio.Socket] = []
        self._auth: AsyncioAuthenticator | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._auth is not None:
            self._auth.stop()
        for socket in self._sockets:
            socket.close()
        self._context.term()

    def address(self, transport: str) -> str:
        """Return an address to bind that is free."""
        if transport == "tcp":
            return "tcp://127.0.0.1:*"
        return f"ipc://{self._folder / f'edge{next(self._numbers)}.sock'}"

    def socket(self, kind: int, **options: Any) -> zmq.asyncio.Socket:
        """Open a libzmq socket."""
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.linger = 0
        for name, value in options.items():
            setattr(socket, name, value)
        return socket

    def server(self, kind: int, mechanism: str, **options: Any) -> zmq.asyncio.Socket:
        """Open a libzmq socket that asks for credentials."""
        if self._auth is None and mechanism != "NULL":
            self._auth = AsyncioAuthenticator(self._context)
            self._auth.start()
            self._auth.configure_plain(passwords={"admin": "secret"})
            self._auth.configure_curve_callback(credentials_provider=_OnlyTheClient())
        socket = self.socket(kind, **options)
        if mechanism == "PLAIN":
            socket.plain_server = True
        elif mechanism == "CURVE":
            socket.curve_server = True
            socket.curve_secretkey = SERVER_SECRET.encode()
            socket.curve_publickey = SERVER_PUBLIC.encode()
        return socket

    def client(
        self,
        kind: int,
        mechanism: str,
        *,
        password: str = "secret",
        secret_key: str = CLIENT_SECRET,
        public_key: str = CLIENT_PUBLIC,
        server_key: str = SERVER_PUBLIC,
        **options: Any,
    ) -> zmq.asyncio.Socket:
        """Open a libzmq socket that shows credentials."""
        socket = self.socket(kind, **options)
        if mechanism == "PLAIN":
            socket.plain_username, socket.plain_password = b"admin", password.encode()
        elif mechanism == "CURVE":
            socket.curve_serverkey = server_key.encode()
            socket.curve_secretkey, socket.curve_publickey = secret_key.encode(), public_key.encode()
        return socket


class _OnlyTheClient:
    """Knows one key."""

    def callback(self, _: str, key: bytes) -> bool:
        return key == CLIENT_PUBLIC.encode()


def our_server(mechanism: str) -> Security:
    """How we ask for credentials."""
    if mechanism == "PLAIN":
        return PlainServer(passwords({"admin": "secret"}))
    return CurveServer(SERVER_SECRET, known_keys([CLIENT_PUBLIC])) if mechanism == "CURVE" else Null()


def our_client(mechanism: str) -> Security:
    """How we show credentials."""
    if mechanism == "PLAIN":
        return PlainClient("admin", "secret")
    return CurveClient(SERVER_PUBLIC, CLIENT_SECRET) if mechanism == "CURVE" else Null()


def bound(socket: zmq.asyncio.Socket) -> str:
    """Return the address at which a libzmq socket listens."""
    endpoint = socket.last_endpoint
    assert isinstance(endpoint, bytes)
    return endpoint.decode()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the other side of a real socket brings about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another thread
            await asyncio.sleep(0.002)


async def arrivals(socket: zmq.asyncio.Socket, last: bytes) -> list[list[bytes]]:
    """Receive until a message with this topic, and give what came before it."""
    found: list[list[bytes]] = []
    async with asyncio.timeout(PATIENCE_S):
        while (message := await socket.recv_multipart())[0] != last:
            found.append(message)
    return found
