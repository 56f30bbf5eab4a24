"""Keeps one connection to one address: dials, waits, and dials again after its end.

The pause doubles with every attempt that did not get through its handshake, up to a longest one, and a random part of
it is left out, so that a fleet does not come back all at once. After a reason that will most likely repeat itself (a
wrong password, say) the longest pause is made at once: the other side may still be put right, and nobody is bothered.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket  # noqa: TID251 - handed from edge/server.py to whoever opens the connection
from collections.abc import Callable

import msgspec

from meshbus.config.edgeaddress import EdgeAddress
from meshbus.edge.connection import Connection
from meshbus.edge.server import dial
from meshbus.edge.zmtp.closereason import LASTING, CloseReason
from meshbus.edge.zmtp.protocol import Closed
from meshbus.node.tasks import TaskOwner

_log = logging.getLogger("meshbus.edge")


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before the next attempt."""

    first_s: float = 0.1
    longest_s: float = 30.0

    def pause_s(self, failures: int, reason: CloseReason, chance: float) -> float:
        """Give the pause after so many failures in a row; `chance`, from 0 to 1, takes up to half of it away."""
        doubled = self.longest_s if reason in LASTING else self.first_s * 2.0 ** min(failures, 63)
        return min(doubled, self.longest_s) * (1.0 - chance / 2.0)


class Dialer:
    """One address that we want to be connected to."""

    def __init__(
        self,
        address: EdgeAddress,
        *,
        backoff: Backoff,
        open_connection: Callable[[socket.socket, str, Dialer], Connection],
        on_failure: Callable[[str, Closed], None],
    ) -> None:
        self.address = address
        self._backoff = backoff
        self._open_connection = open_connection
        self._on_failure = on_failure
        self._connection: Connection | None = None
        self._ended: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()
        """Of the connection that stands."""
        self._failures = 0
        self._outcome: asyncio.Future[Closed | None] = asyncio.get_running_loop().create_future()
        """Of the first attempt that says something: None when it got through."""
        self._tasks = TaskOwner(f"connecting to {address}", _log)
        self._tasks.start(self._run())

    async def wait_ready(self, timeout_s: float) -> Closed | None:
        """Wait until the first connection stands: None, or why the peer does not want us. Raises TimeoutError."""
        return await asyncio.wait_for(asyncio.shield(self._outcome), timeout_s)

    def note_ready(self) -> None:
        """Take note that the handshake is done."""
        self._failures = 0
        self._settle(None)

    def note_closed(self, closed: Closed) -> None:
        """Take note that the connection ended."""
        if not self._ended.done():
            self._ended.set_result(closed)

    async def close(self) -> None:
        """Hang up, and stop dialing."""
        await self._tasks.close()
        if self._connection is not None:
            self._connection.close()
        self._outcome.cancel()

    async def _run(self) -> None:
        while True:
            closed = await self._attempt()
            if closed.reason in LASTING or closed.reason is CloseReason.CLOSED_IN_HANDSHAKE:
                self._settle(closed)
            pause_s = self._backoff.pause_s(self._failures, closed.reason, random.random())  # noqa: S311 - spreads load
            self._failures += 1
            await asyncio.sleep(pause_s)

    async def _attempt(self) -> Closed:
        """Dial once, and stay until the end of the connection."""
        try:
            sock = await dial(self.address)
        except (OSError, UnicodeError) as error:  # the latter for a host that cannot be a name
            closed = Closed(CloseReason.UNREACHABLE, getattr(error, "strerror", None) or str(error))
            self._on_failure(str(self.address), closed)
            return closed
        self._ended = asyncio.get_running_loop().create_future()
        self._connection = self._open_connection(sock, str(self.address), self)
        return await self._ended

    def _settle(self, outcome: Closed | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
