"""Requests: runs the handlers of this node, one task per request, and turns the end of its own requests into results.

A handler is a coroutine function from the bytes of a request to those of the reply. An exception in it, or a reply that
cannot be sent, reaches the requester at once as a failure. How many requests may be open at once is bounded in
engine/channels/request.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from meshbus.engine.base.notices import Control, Replied, Requested, RequestFailed, RequestFault
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.errors import ChannelError, ChannelFault, DeliveryError, Timeout
from meshbus.names.channel import ChannelName
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.driving.waiting import Kind
from meshbus.policy.reason import Reason
from meshbus.seldom import SeldomWarning
from meshbus.wire.constants import Subprotocol

Handler: TypeAlias = Callable[[bytes], Awaitable[bytes]]

_logger = logging.getLogger("meshbus.node")


class Answers:
    """The responders of a node."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._handlers: dict[ChannelName, Handler] = {}
        self._tasks = TaskOwner("a responder", _logger)
        self._warn = SeldomWarning(_logger)

    async def request(self, publisher: int, channel: ChannelName, payload: bytes, timeout_s: float) -> bytes:
        """Send a request to a peer, once both sides have agreed on requests, and return the reply."""
        began = Driver.now()
        await self._live.agreed(publisher, Subprotocol.REQUEST, max(timeout_s, 0.0))

        def ask(engine: Engine, now: float, out: Output) -> int:
            left_s = timeout_s - (now - began)
            if left_s <= 0 < timeout_s:
                raise Timeout(f"request on {str(channel)!r}", timeout_s)
            peer = engine.peers.require(publisher)
            return engine.requests.requester.ask(peer, channel, payload, now, out, timeout_s=left_s)

        reply = answer_of(await self._live.begin(Kind.REQUEST, ask), channel, timeout_s)
        if self._live.timings is not None:
            self._live.timings.request.observe(Driver.now() - began)
        return reply

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
        responder = self._live.engine.requests.responder
        try:
            reply = _checked(await handler(request.payload))
            # The engine drops the reply if the requester has cancelled or disconnected meanwhile.
            self._live.act(lambda _, now, out: responder.reply(request.node_id, request.request, reply, now, out))
        except DeliveryError:  # the requester does not take its replies; the request ends by its deadline
            self._live.engine.counters.count(Reason.REFUSAL_UNSENT)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the node is closing
            problem = f"{type(error).__name__}: {error}"
            self._warn("a request on %s failed: %s", request.channel, problem)
            with suppress(DeliveryError):
                self._live.act(lambda _, now, out: responder.fail(request.node_id, request.request, problem, now, out))


def _checked(reply: object) -> bytes:
    if not isinstance(reply, bytes | bytearray | memoryview):
        raise TypeError(f"the handler must return bytes, got {type(reply).__name__}")
    return bytes(reply)


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
