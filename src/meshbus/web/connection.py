"""One connection of the web server, as uvicorn drives it, with an end for those that only take up room.

A connection on which no whole request arrives for `HEAD_S` is cut: otherwise a few clients that send nothing, or a byte now and
then, would keep health checks and metrics out. A request can cut its own connection too (web/eventstream.py): closing in the
usual way waits until the client has read what was sent, which may be never.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_S = 10.0
"""How long a client may take for a request. Our choice: twice the time that uvicorn keeps an idle connection."""
ABORT = "meshbus.abort"
"""The key of the request's scope that has the function which cuts its connection."""


class Connection(H11Protocol):
    """A connection that can be cut."""

    _watching: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Add the way to cut the connection to the scope of its requests, and begin to watch it."""
        super().connection_made(transport)
        application: Any = self.app

        async def with_abort(scope: Any, receive: Any, send: Any) -> None:
            await application({**scope, ABORT: transport.abort}, receive, send)

        self.app = with_abort
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._watching = self.loop.call_later(HEAD_S, self._look, self.cycle)

    def _look(self, latest: RequestResponseCycle | None) -> None:
        """Cut the connection, unless a request is under way or another one than the latest has come since."""
        done = latest is None or latest.response_complete
        if done and self.cycle is latest:
            self.transport.abort()
        else:
            self._watch()
