"""Futures for what the engine will report: a session, an acknowledgement, an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from meshbus.engine.base.notices import (
    Acked,
    Announced,
    Control,
    HandshakeFailed,
    HistoryEnded,
    HistoryOpened,
    Matched,
    Negotiated,
    Reached,
    Replied,
    RequestFailed,
    SessionUp,
)
from meshbus.errors import Timeout


class Waiting:
    """Who waits for what, by kind and number."""

    def __init__(self) -> None:
        self._futures: dict[tuple[str, int], asyncio.Future[Control]] = {}

    def for_(self, kind: str, key: int) -> asyncio.Future[Control]:
        """Give a future for one event; several who wait for the same share it."""
        waiting = self._futures.get((kind, key))
        if waiting is None or waiting.done():
            waiting = self._futures[kind, key] = asyncio.get_running_loop().create_future()
        return waiting

    def wake(self, kind: str, key: int, event: Control) -> None:
        """Hand an event to whoever waits for it."""
        waiting = self._futures.pop((kind, key), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(event)

    def tell(self, event: Control) -> None:
        """Wake whoever waits for what an event says."""
        match event:
            case SessionUp(node_id=node_id):
                self.wake("session", node_id, event)
            case HandshakeFailed(node_id=node_id):
                self.wake("session", node_id, event)
                self.wake("reach", node_id, event)
            case Reached(node_id=node_id):
                self.wake("reach", node_id, event)
            case Negotiated(node_id=node_id) | Announced(node_id=node_id):
                self.wake("agreement", node_id, event)
            case Acked(request=request):
                self.wake("ack", request, event)
            case Matched(request=request):
                self.wake("match", request, event)
            case Replied(request=request) | RequestFailed(request=request):
                self.wake("request", request, event)
            case HistoryOpened(reading=reading) | HistoryEnded(reading=reading):
                self.wake("history", reading, event)

    def drop(self, kind: str, key: int) -> None:
        """Wait no longer."""
        self._futures.pop((kind, key), None)

    def cancel(self) -> None:
        """End all waiting: the node is closing."""
        for waiting in self._futures.values():
            waiting.cancel()
        self._futures.clear()


async def answered(waiting: Awaitable[Control], timeout_s: float) -> None:
    """Wait for the answer to an interest. Raises Timeout when the engine reports that none came."""
    event = await waiting
    if isinstance(event, Matched) and event.timed_out:
        raise Timeout(f"publisher {event.node_id:016x}", timeout_s)
