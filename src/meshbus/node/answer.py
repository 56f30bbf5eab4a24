"""Requests: the answers of this node's handlers, one task per question, and what became of its own questions.

A handler is a coroutine function from the bytes of a question to those of the answer. An exception in it is told to the
requester as a failure, in one line. How many questions may be open at once is bounded in engine/channels/request.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from meshbus.engine.base.notices import Control, Replied, Requested, RequestFailed, RequestFault
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.errors import ChannelError, ChannelFault, Timeout
from meshbus.names.channel import ChannelName
from meshbus.node.driver import Driver

Handler: TypeAlias = Callable[[bytes], Awaitable[bytes]]
Running: TypeAlias = Callable[[], tuple[Engine, Driver] | None]


class Answers:
    """The responders of a node."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._handlers: dict[ChannelName, Handler] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serve(self, channel: ChannelName, handler: Handler) -> AsyncIterator[None]:
        """Answer the requests on a channel for as long as the block lasts."""
        running = self._running()
        if running is None:
            return
        if channel in self._handlers:
            raise ChannelError(ChannelFault.ALREADY_EXISTS, channel, "already has a responder on this node")
        responder = running[0].requests.responder
        self._handlers[channel] = handler
        responder.serve(channel)
        try:
            yield
        finally:
            responder.stop(channel)
            del self._handlers[channel]

    def take(self, question: Requested) -> None:
        """Start to answer a question."""
        handler = self._handlers.get(question.channel)
        if handler is not None:
            task = asyncio.get_running_loop().create_task(self._answer(handler, question))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Stop answering: the node is closing."""
        for task in self._tasks:
            task.cancel()

    async def _answer(self, handler: Handler, question: Requested) -> None:
        problem, answer = "", b""
        try:
            answer = await handler(question.payload)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is an answer too
            problem = f"{type(error).__name__}: {error}"
        running = self._running()
        if running is None:
            return
        engine, driver = running
        out, responder = Output(), engine.requests.responder
        if problem:
            responder.fail(question.node_id, question.request, problem, Driver.now(), out)
        else:
            responder.reply(question.node_id, question.request, answer, Driver.now(), out)
        driver.apply(out)


def answer_of(event: Control, channel: ChannelName, timeout_s: float) -> bytes:
    """Turn the end of a request of ours into its answer, or into the error that it is."""
    match event:
        case Replied(payload=answer):
            return answer
        case RequestFailed(fault=RequestFault.TIMEOUT):
            raise Timeout(f"request on {str(channel)!r}", timeout_s)
        case RequestFailed(fault=fault, problem=problem):
            raise ChannelError(ChannelFault.REJECTED, channel, f"{fault}: {problem}" if problem else str(fault))
    raise AssertionError(event)  # a request ends in one of these
