"""Requests that a client of the admin socket answers.

One connection gets the requests on a channel as a stream; the answers come back as commands of their own, each with the
number of its request. When the stream ends, requests without an answer fail. Which requests are open at once is bounded
in engine/channels/request.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import count

from meshbus.errors import ConfigError
from meshbus.node.node import Node


class RequestUnanswered(Exception):
    """The client did not answer; reported to the requester."""


class Replies:
    """The requests of peers that wait for a client of this node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[bytes]] = {}

    async def requests(self, channel: str) -> AsyncGenerator[tuple[int, bytes] | None]:
        """Yield None when requests on the channel are taken, then each with its number, until the iterator is closed."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        ours: set[int] = set()

        async def handle(payload: bytes) -> bytes:
            number = next(self._numbers)
            reply: asyncio.Future[bytes] = loop.create_future()
            self._open[number] = reply
            ours.add(number)
            arrived.put_nowait((number, payload))
            try:
                return await reply
            finally:
                ours.discard(number)
                self._open.pop(number, None)

        async with self._node.respond(channel, handle):
            try:
                yield None
                while True:
                    yield await arrived.get()
            finally:
                for number in ours:
                    reply = self._open[number]
                    with suppress(asyncio.InvalidStateError):
                        reply.set_exception(RequestUnanswered("the responder has gone"))

    def answer(self, number: int, payload: bytes) -> None:
        """Answer a request. Raises ConfigError if none waits under this number."""
        self._waiting(number).set_result(payload)

    def fail(self, number: int, problem: str) -> None:
        """Report to the requester that no reply comes, and why. Raises ConfigError if none waits under this number."""
        self._waiting(number).set_exception(RequestUnanswered(problem))

    def _waiting(self, number: int) -> asyncio.Future[bytes]:
        reply = self._open.get(number)
        if reply is None or reply.done():
            raise ConfigError("request", f"{number} waits for no answer: it has one, or its requester no longer waits")
        return reply
