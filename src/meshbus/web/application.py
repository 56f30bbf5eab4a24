"""What a node answers over HTTP: the live page, `/metrics`, `/healthz` and `/readyz`. Nothing can be changed.

    /                      the live page: files (web/pages.py), filled by the next
    /events                one document a second, as server-sent events (web/feed.py)
    /snapshot              one document, as JSON
    /login                 exchanges the token for a cookie, if there is a token (web/access.py)
    /metrics               the text format of Prometheus, or that of OpenMetrics if the client asks for it
    /healthz, /readyz      one word and a status, 200 or 503, for everybody

The server around it is web/server.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from prometheus_client import PROCESS_COLLECTOR
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from meshbus.node.node import Node
from meshbus.web.access import SESSION_S, Access
from meshbus.web.document import Document, encode
from meshbus.web.eventstream import EventStream
from meshbus.web.families import families
from meshbus.web.feed import MAX_WATCHERS, Feed
from meshbus.web.health import why_not_ready
from meshbus.web.logstate import read_logs
from meshbus.web.pages import PRIVATE, Pages
from meshbus.web.snapshot import take

if TYPE_CHECKING:
    from starlette.requests import Request

    Endpoint = Callable[[Request], Awaitable[Response]]


class Application:
    """The answers of one node."""

    def __init__(self, node: Node, token: str | None, logger: logging.Logger) -> None:
        self._node = node
        self._access = Access(node.node_id, token)
        self._pages = Pages()
        self._feed = Feed(self._look, logger)
        self.routes = Starlette(
            routes=[
                Route("/", self._page),
                Route("/login", self._login_page),
                Route("/login", self._login, methods=["POST"]),
                Route("/snapshot", self._guarded(self._snapshot)),
                Route("/events", self._guarded(self._events)),
                Route("/metrics", self._guarded(self._metrics)),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                *(Route(f"/{name}", self._file) for name in self._pages.names),
            ]
        )
        """The ASGI application."""

    async def close(self) -> None:
        """End the answers that would go on, such as those of open pages."""
        await self._feed.close()

    def _guarded(self, answer: Endpoint) -> Endpoint:
        """Return an endpoint that refuses requests of those who may not read."""

        async def guarded(request: Request) -> Response:
            refused = self._refusal(request)
            return await answer(request) if refused is None else refused

        return guarded

    def _refusal(self, request: Request) -> Response | None:
        refusal = self._access.refusal(request.headers, request.cookies, _now_s())
        if refusal is None:
            return None
        status, sentence = refusal
        headers = {**PRIVATE, **({"www-authenticate": "Bearer"} if status == 401 else {})}
        return PlainTextResponse(f"{sentence}\n", status, headers=headers)

    # ── the live page ───────────────────────────────────────────────────────────────────────

    async def _page(self, request: Request) -> Response:
        refused = self._refusal(request)
        if refused is not None and refused.status_code == 401:
            return RedirectResponse("login", 303, headers=PRIVATE)
        return refused or self._pages.answer("page.html", request.headers.get("if-none-match", ""))

    async def _file(self, request: Request) -> Response:
        return self._pages.answer(request.url.path.rpartition("/")[2], request.headers.get("if-none-match", ""))

    async def _snapshot(self, _: Request) -> Response:
        return Response(encode(await self._look()), headers={**PRIVATE, "content-type": "application/json"})

    async def _events(self, _: Request) -> Response:
        watch = self._feed.watch()
        if watch is None:
            sentence = f"{MAX_WATCHERS} pages of this node are open; close one and try again\n"
            return PlainTextResponse(sentence, 503, headers={**PRIVATE, "retry-after": "10"})
        return EventStream(watch, PRIVATE)

    async def _look(self) -> Document:
        return take(self._node, *await read_logs(self._node), time.time_ns())

    # ── the token ───────────────────────────────────────────────────────────────────────────

    async def _login_page(self, request: Request) -> Response:
        return self._pages.answer("login.html", request.headers.get("if-none-match", ""))

    async def _login(self, request: Request) -> Response:
        """Answer the token with a cookie; it comes in a header, so that no log of addresses has it."""
        if not self._access.has_token(request.headers):
            return PlainTextResponse("this is not the token of this node\n", 401, headers=PRIVATE)
        answer = Response(status_code=204, headers=PRIVATE)
        answer.set_cookie(
            self._access.cookie_name,
            self._access.session(_now_s()),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    # ── for programs ────────────────────────────────────────────────────────────────────────

    async def _metrics(self, request: Request) -> Response:
        found = [*families(self._node, *await read_logs(self._node)), *PROCESS_COLLECTOR.collect()]
        write, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(write(SimpleNamespace(collect=lambda: found)), headers={"content-type": kind})

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        return PlainTextResponse("not ready\n", 503) if why_not_ready(self._node) else PlainTextResponse("ready\n")


def _now_s() -> int:
    return time.time_ns() // 1_000_000_000
