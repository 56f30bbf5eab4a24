"""Keep one connection to one address, and reconnect after it ends.

The pause doubles after every attempt whose handshake fails, up to a maximum, and is shortened by a random part, so that
a fleet does not reconnect all at once. After a close reason that will most likely repeat, such as a wrong password, the
pause is the maximum at once: the peer's configuration may still be corrected.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket  # noqa: TID251 - passed from edge/server.py to the endpoint that opens the connection
from collections.abc import Callable

import msgspec

from meshbus.config.edgeaddress import EdgeAddress
from meshbus.edge.connection import Connection
from meshbus.edge.server import dial
from meshbus.edge.zmtp.closereason import LASTING, CloseReason
from meshbus.edge.zmtp.protocol import Closed
from meshbus.node.driving.tasks import TaskOwner

_log = logging.getLogger("meshbus.edge")


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses between attempts to connect; libzmq also starts at 0.1 s (pubsub.md §4)."""

    first_s: float = 0.1
    longest_s: float = 30.0

    def pause_s(self, failures: int, reason: CloseReason, chance: float) -> float:
        """Return the pause after a number of failures in a row; `chance`, from 0 to 1, removes up to half of it."""
        # 63 bounds the exponent: 2.0 ** 1024 would raise OverflowError after some hours without a connection.
        doubled = self.longest_s if reason in LASTING else self.first_s * 2.0 ** min(failures, 63)
        return min(doubled, self.longest_s) * (1.0 - chance / 2.0)


class Dialer:
    """Connects to one address, again and again, until it is closed."""

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
        """Resolved when the current connection ends."""
        self._failures = 0
        self._outcome: asyncio.Future[Closed | None] = asyncio.get_running_loop().create_future()
        """Result of the first conclusive attempt: None if it succeeded, else why the peer refused."""
        self._tasks = TaskOwner(f"connecting to {address}", _log)
        self._tasks.start(self._run())

    async def wait_ready(self, timeout_s: float) -> Closed | None:
        """Wait for the first connection; return None, or why the peer refused it. Raises TimeoutError."""
        # Shielded: a timeout of one caller must not cancel the future that others wait for.
        return await asyncio.wait_for(asyncio.shield(self._outcome), timeout_s)

    def note_ready(self) -> None:
        """Record that the handshake succeeded."""
        self._failures = 0
        self._settle(None)

    def note_closed(self, closed: Closed) -> None:
        """Record that the connection ended."""
        if not self._ended.done():
            self._ended.set_result(closed)

    async def close(self) -> None:
        """Close the connection and stop reconnecting."""
        await self._tasks.close()
        if self._connection is not None:
            self._connection.close()
        self._outcome.cancel()

    async def _run(self) -> None:
        while True:
            closed = await self._attempt()
            # Other reasons are not conclusive: an unreachable peer may still start before the caller's timeout.
            if closed.reason in LASTING or closed.reason is CloseReason.CLOSED_IN_HANDSHAKE:
                self._settle(closed)
            pause_s = self._backoff.pause_s(self._failures, closed.reason, random.random())  # noqa: S311 - spreads load
            self._failures += 1
            await asyncio.sleep(pause_s)

    async def _attempt(self) -> Closed:
        """Connect once, and wait until the connection ends."""
        try:
            sock = await dial(self.address)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host that is not a valid name
            closed = Closed(CloseReason.UNREACHABLE, getattr(error, "strerror", None) or str(error))
            self._on_failure(str(self.address), closed)
            return closed
        self._ended = asyncio.get_running_loop().create_future()
        self._connection = self._open_connection(sock, str(self.address), self)
        return await self._ended

    def _settle(self, outcome: Closed | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
