"""The web server of a node: listens, limits who connects, and ends with the node, on whose loop it runs.

What it answers is web/application.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket  # noqa: TID251 - opened here, so that an address in use is an error of the configuration
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import uvicorn

from meshbus.config.spelling import Endpoint
from meshbus.config.web import WebEntry
from meshbus.errors import ConfigError
from meshbus.keyfile import load_web_token
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.node import Node
from meshbus.policy.bound import Bound, By
from meshbus.web.application import Application
from meshbus.web.connection import Connection

_logger = logging.getLogger("meshbus.web")

MAX_CLIENTS = 64
"""Connections at a time: far more than scrapers and open pages, far fewer than the open files of a process."""
MAX_HEAD_BYTES = 16 * 1024
"""Bytes of the head of a request."""

BOUNDS = (
    Bound(
        name="web_clients",
        what="connections to the web server",
        by=By.OUTSIDER,
        per_node=MAX_CLIENTS,
        per={"connection, in bytes of the head of a request": MAX_HEAD_BYTES},
        full="the new one is answered with status 503; one without a request for 10 s is cut",
        counter="status 503",
    ),
)


class _Quiet(uvicorn.Server):
    """A server that leaves signals to the program around it, and says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebServer:
    """Serves one node; open inside `async with`."""

    def __init__(self, node: Node, entry: WebEntry) -> None:
        self._entry = entry
        token = None if entry.token_file is None else load_web_token(entry.token_file)
        self._application = Application(node, token, _logger)
        self._server: _Quiet | None = None
        self._tasks = TaskOwner("the web server", _logger)
        self._serving: asyncio.Task[None] | None = None
        self.address = ""
        """Where it listens, as `host:port`."""

    async def __aenter__(self) -> Self:
        listening = _listen(self._entry.bind)
        self.address = str(Endpoint(*listening.getsockname()[:2]))
        config = uvicorn.Config(
            self._application.routes,
            access_log=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            http=Connection,
            lifespan="off",
            limit_concurrency=MAX_CLIENTS,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=5,
            ws="none",
        )
        self._server = _Quiet(config)
        self._serving = self._tasks.start(self._server.serve(sockets=[listening]))
        await self._server.ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._application.close()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


def _listen(bind: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    try:
        return socket.create_server((bind.host, bind.port), family=family)
    except OSError as error:
        raise ConfigError(
            "web.bind", f"{bind} cannot be opened: {error.strerror or error}; choose another port"
        ) from None
