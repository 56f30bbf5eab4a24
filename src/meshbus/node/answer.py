"""Requests: runs the handlers of this node, one task per request, and turns the end of its own requests into results.

A handler is a coroutine function from the bytes of a request to those of the reply. An exception in it is sent to the
requester as a failure, in one line. How many requests may be open at once is bounded in engine/channels/request.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from meshbus.engine.base.notices import Control, Replied, Requested, RequestFailed, RequestFault
from meshbus.errors import ChannelError, ChannelFault, Timeout
from meshbus.names.channel import ChannelName
from meshbus.node.live import Live
from meshbus.node.tasks import TaskOwner

Handler: TypeAlias = Callable[[bytes], Awaitable[bytes]]

_logger = logging.getLogger("meshbus.node")


class Answers:
    """The responders of a node."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._handlers: dict[ChannelName, Handler] = {}
        self._tasks = TaskOwner("a responder", _logger)

    @asynccontextmanager
    async def serve(self, channel: ChannelName, handler: Handler) -> AsyncIterator[None]:
        """Answer the requests on a channel while the block runs."""
        if channel in self._handlers:
            raise ChannelError(ChannelFault.ALREADY_EXISTS, channel, "already has a responder on this node")
        responder = self._live.engine.requests.responder
        self._handlers[channel] = handler
        responder.serve(channel)
        try:
            yield
        finally:
            responder.stop(channel)
            del self._handlers[channel]

    def take(self, request: Requested) -> None:
        """Start to answer a request."""
        handler = self._handlers.get(request.channel)
        if handler is not None:
            self._tasks.start(self._answer(handler, request))

    def cancel(self) -> None:
        """Stop answering: the node is closing."""
        self._tasks.cancel()

    async def _answer(self, handler: Handler, request: Requested) -> None:
        problem, reply = "", b""
        try:
            reply = await handler(request.payload)
        except Exception as error:  # noqa: BLE001 - sent to the requester as a failure
            problem = f"{type(error).__name__}: {error}"
        # The engine drops the reply if the requester has cancelled or disconnected meanwhile.
        responder = self._live.engine.requests.responder
        if problem:
            self._live.act(lambda _, now, out: responder.fail(request.node_id, request.request, problem, now, out))
        else:
            self._live.act(lambda _, now, out: responder.reply(request.node_id, request.request, reply, now, out))


def answer_of(event: Control, channel: ChannelName, timeout_s: float) -> bytes:
    """Return the reply to a request of this node, or raise the error that ended it."""
    match event:
        case Replied(payload=reply):
            return reply
        case RequestFailed(fault=RequestFault.TIMEOUT):
            raise Timeout(f"request on {str(channel)!r}", timeout_s)
        case RequestFailed(fault=fault, problem=problem):
            raise ChannelError(ChannelFault.REJECTED, channel, f"{fault}: {problem}" if problem else str(fault))
    raise AssertionError(event)  # a request ends in one of these
