"""The web server of a node: `/metrics`, `/healthz` and `/readyz`.

`/metrics` is in the text format of Prometheus, or in that of OpenMetrics if the client asks for it, and needs the token if
one is configured. The other two answer everybody, in one word and a status: 200 or 503. It runs on the loop of the node.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket  # noqa: TID251 - opened here, so that an address in use is an error of the configuration
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Self

import uvicorn
from prometheus_client import PROCESS_COLLECTOR
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from meshbus.config.spelling import Endpoint
from meshbus.config.web import WebEntry
from meshbus.errors import ConfigError
from meshbus.keyfile import load_web_token
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.node import Node
from meshbus.policy.bound import Bound, By
from meshbus.web.families import families
from meshbus.web.health import why_not_ready
from meshbus.web.logstate import consumer_lags, open_logs

if TYPE_CHECKING:
    from starlette.requests import Request

_logger = logging.getLogger("meshbus.web")

MAX_CLIENTS = 64
"""Connections at a time: far more than scrapers, far fewer than the open files of a process."""
MAX_HEAD_BYTES = 16 * 1024
"""Bytes of the head of a request."""

BOUNDS = (
    Bound(
        name="web_clients",
        what="connections to the web server",
        by=By.OUTSIDER,
        per_node=MAX_CLIENTS,
        per={"connection, in bytes of the head of a request": MAX_HEAD_BYTES},
        full="the new one is answered with status 503",
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
        self._node = node
        self._entry = entry
        self._token = None if entry.token_file is None else load_web_token(entry.token_file)
        self._server: _Quiet | None = None
        self._tasks = TaskOwner("the web server", _logger)
        self._serving: asyncio.Task[None] | None = None
        self.address = ""
        """Where it listens, as `host:port`."""

    async def __aenter__(self) -> Self:
        listening = _listen(self._entry.bind)
        self.address = str(Endpoint(*listening.getsockname()[:2]))
        config = uvicorn.Config(
            self.application(),
            access_log=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            http="h11",
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
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    def application(self) -> Starlette:
        """Return the pages as an ASGI application."""
        return Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
            ]
        )

    async def _metrics(self, request: Request) -> Response:
        if not self._may_read(request):
            advice = "send the token of this node: Authorization: Bearer TOKEN\n"
            return PlainTextResponse(advice, 401, headers={"WWW-Authenticate": "Bearer"})
        logs = open_logs(self._node)
        root = self._node.config.log_dir
        lags = [] if root is None else await asyncio.to_thread(lambda: list(consumer_lags(root, logs)))
        found = [*families(self._node, logs, lags), *PROCESS_COLLECTOR.collect()]
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(SimpleNamespace(collect=lambda: found)), headers={"content-type": kind})

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        return PlainTextResponse("not ready\n", 503) if why_not_ready(self._node) else PlainTextResponse("ready\n")

    def _may_read(self, request: Request) -> bool:
        if self._token is None:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode())


def _listen(bind: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    try:
        return socket.create_server((bind.host, bind.port), family=family)
    except OSError as error:
        raise ConfigError(
            "web.bind", f"{bind} cannot be opened: {error.strerror or error}; choose another port"
        ) from None
