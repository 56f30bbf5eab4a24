"""Server-sent events to one browser.

A message is sent when the browser has taken the one before, as far as the buffers of the system tell. One that takes none for
`SLOW_S` is disconnected at once (web/connection.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response

from meshbus.web.connection import ABORT
from meshbus.web.feed import Watch

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SLOW_S = 15.0
"""How long a browser may take for one message. Our choice: a page in the background, or a radio link that stalls, recovers."""
_RETRY = b"retry: 2000\n\n"
"""A browser that lost its connection tries again after two seconds."""


class EventStream(Response):
    """An answer that goes on until its messages end or the browser is gone."""

    media_type = "text/event-stream"

    def __init__(self, messages: Watch, headers: Mapping[str, str], *, slow_s: float = SLOW_S) -> None:
        """Send messages, each one line of text, and close them at the end."""
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._messages = messages
        self._slow_s = slow_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the messages."""
        async with aclosing(self._messages), asyncio.TaskGroup() as tasks:
            gone = tasks.create_task(_until_gone(receive))
            sending = tasks.create_task(self._send(scope[ABORT], send))
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            sending.cancel()

    async def _send(self, abort: Callable[[], None], send: Send) -> None:
        try:
            async with asyncio.timeout(self._slow_s) as limit:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
                limit.reschedule(None)
                async for message in self._messages:
                    limit.reschedule(asyncio.get_running_loop().time() + self._slow_s)
                    await send({"type": "http.response.body", "body": b"data: %b\n\n" % message, "more_body": True})
                    limit.reschedule(None)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            abort()
            await asyncio.Event().wait()  # until the server has noticed; it would report an answer without an end


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
