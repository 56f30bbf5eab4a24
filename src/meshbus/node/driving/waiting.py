"""Futures for what the engine will report: a session, an acknowledgement, an answer.

Each caller gets a future of its own, so that one caller who is cancelled does not disturb the others who wait for the
same report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from enum import Enum, auto
from typing import Any

from meshbus.engine.base.notices import (
    Acked,
    Announced,
    AppendAnswered,
    Control,
    HandshakeFailed,
    HistoryEnded,
    HistoryOpened,
    Matched,
    Negotiated,
    PeerGone,
    PeerSecured,
    Reached,
    Replied,
    RequestFailed,
    SessionUp,
)
from meshbus.errors import LocalProtocolError, PeerError, PeerFault, Timeout

GONE = "it left before it answered; subscribe again when it is back"
CLOSED = "the node was closed before the call had its outcome"


class Kind(Enum):
    """What is waited for, and what the number that goes with it means."""

    SESSION = auto()
    """A session with a node, or the failure of the handshake; by node id."""
    REACH = auto()
    """The end of a `connect_direct`; by node id."""
    AGREEMENT = auto()
    """News about the profile of a peer; by node id."""
    SECURED = auto()
    """A session that the new key of one of its nodes has signed, or that is gone; by node id."""
    ACK = auto()
    """The answer to a subscribe or unsubscribe; by request."""
    MATCH = auto()
    """The answer to an interest; by request."""
    REQUEST = auto()
    """The reply to a request; by request."""
    HISTORY = auto()
    """The start of a reading of another node's log, or its refusal; by reading."""
    APPEND = auto()
    """The outcome of an append through a leader; by request."""


class Waiting:
    """The callers that wait for a report of the engine, by kind and number."""

    def __init__(self) -> None:
        self._futures: dict[tuple[Kind, int], set[asyncio.Future[Control]]] = {}
        self._promises: set[asyncio.Future[None]] = set()

    def for_(self, kind: Kind, number: int) -> asyncio.Future[Control]:
        """Return a new future for a report; cancelling it ends the wait."""
        key = kind, number
        future: asyncio.Future[Control] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(key, set()).add(future)
        future.add_done_callback(lambda done: self._forget(key, done))
        return future

    def promise(self) -> asyncio.Future[None]:
        """Return a future that the caller resolves; it fails if the node is closed before that."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._promises.add(future)
        future.add_done_callback(self._promises.discard)
        return future

    def wake(self, kind: Kind, number: int, event: Control) -> None:
        """Resolve every future of this kind and number."""
        for future in self._futures.pop((kind, number), ()):
            if not future.done():
                future.set_result(event)

    def tell(self, event: Control) -> None:
        """Resolve the futures that this event is the report for."""
        match event:
            case SessionUp(node_id=node_id):
                self.wake(Kind.SESSION, node_id, event)
            case HandshakeFailed(node_id=node_id):
                self.wake(Kind.SESSION, node_id, event)
                self.wake(Kind.REACH, node_id, event)
            case Reached(node_id=node_id):
                self.wake(Kind.REACH, node_id, event)
            case Negotiated(node_id=node_id) | Announced(node_id=node_id):
                self.wake(Kind.AGREEMENT, node_id, event)
            case PeerSecured(node_id=node_id):
                self.wake(Kind.SECURED, node_id, event)
            case PeerGone(node_id=node_id):
                self.wake(Kind.AGREEMENT, node_id, event)
                self.wake(Kind.SECURED, node_id, event)
            case Acked(request=request):
                self.wake(Kind.ACK, request, event)
            case Matched(request=request):
                self.wake(Kind.MATCH, request, event)
            case Replied(request=request) | RequestFailed(request=request):
                self.wake(Kind.REQUEST, request, event)
            case HistoryOpened(reading=reading) | HistoryEnded(reading=reading):
                self.wake(Kind.HISTORY, reading, event)
            case AppendAnswered(answer=answer):
                self.wake(Kind.APPEND, answer.req, event)

    def close(self) -> None:
        """Fail every future: the node is closing."""
        reports = [future for waiting in self._futures.values() for future in waiting]
        self._futures.clear()
        futures: list[asyncio.Future[Any]] = [*reports, *self._promises]
        for future in futures:
            if not future.done():
                future.set_exception(LocalProtocolError(CLOSED))
                future.exception()  # retrieved here: some futures have no reader, which is not worth a warning

    def _forget(self, key: tuple[Kind, int], future: asyncio.Future[Control]) -> None:
        waiting = self._futures.get(key)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._futures[key]


async def answered(waiting: Awaitable[Control], timeout_s: float) -> None:
    """Wait for the answer to an interest. Raises Timeout if the engine reports that none came."""
    event = await waiting
    if isinstance(event, Matched) and event.timed_out:
        raise Timeout(f"publisher {event.node_id:016x}", timeout_s)
    if isinstance(event, Matched) and event.gone:
        raise PeerError(PeerFault.FAILED, event.node_id, GONE)
