"""Moves of daemons on the wire: messages and time to the state machines of compute/migration, and what they say to peers.

    Carried ──► inbox ──► thread: handle ──► messages ──► the peers that they are for, by node id
    next_timer ──► thread: tick ─────────┘

All calls go through the thread of daemons, one after the other. If a call fails in a way that nobody expects, such as a
disk that refuses, what is in memory may be ahead of what is on disk. Everything is then dropped and begins again from the
records, as after a crash, which is what the state machines are made for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby
from typing import TypeVar

from meshbus.compute.migration.base import Outbound
from meshbus.compute.migration.handler import MigrationSubprotocolHandler
from meshbus.compute.migration.orchestrator import MoveEnded
from meshbus.engine.base.notices import Carried
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.errors import DaemonError, MeshError, MigrationError, PeerError, RemoteProtocolError
from meshbus.node.daemons.daemonthread import DaemonThread
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.migration import decode_migration, encode_migration

T = TypeVar("T")

_SOON_S = 0.001
"""A timer that is over is handled after this time: what it waits for may be under way."""

_logger = logging.getLogger("meshbus.node")

Work = Callable[[MigrationSubprotocolHandler, float], tuple[T, list[Outbound]]]
"""What is done in the thread: with the handler and the time, to a result and messages."""


class DaemonsHalted(Exception):
    """The records of daemons could not be written; everything begins again from them."""


class DaemonMoves:
    """Drives the migration handler of one node."""

    def __init__(
        self,
        live: Live,
        thread: DaemonThread,
        handler: MigrationSubprotocolHandler,
        changed: Callable[[list[MoveEnded]], None],
        halted: Callable[[Exception], None],
        missing: Callable[[int], None],
    ) -> None:
        """Set up; `changed` is called after each call with the moves that ended, `halted` when it must begin again.

        `missing` is called with a node to which a message could not be sent, because there is no session with it.
        """
        self.handler = handler
        self._live = live
        self._thread = thread
        self._changed = changed
        self._halted = halted
        self._missing = missing
        self._inbox: list[Carried] = []
        self._tasks = TaskOwner("moves of daemons", _logger)
        self._pump: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    async def act(self, work: Work[T], *, wakes: bool = True) -> T:
        """Do something in the thread, and send what comes of it; with `wakes`, it may concern other daemons.

        Raises what the work raises if that is about a daemon or a move, and DaemonsHalted for everything else.
        """
        if self._over:
            raise DaemonsHalted
        handler = self.handler

        def run() -> tuple[T, list[Outbound], list[MoveEnded], float | None]:
            result, out = work(handler, Driver.now())
            return result, out, handler.take_ended(), handler.next_timer()

        try:
            result, out, ended, due = await asyncio.shield(self._thread.call(run))
        except (DaemonError, MigrationError):
            raise
        except Exception as error:
            self._halt(error)
            raise DaemonsHalted from error
        if self._over:
            raise DaemonsHalted
        self._send(out)
        self._arm(due)
        if ended or wakes:
            self._changed(ended)
        return result

    def take(self, carried: Carried) -> None:
        """Handle a message of a peer, soon."""
        self._inbox.append(carried)
        if self._pump is None or self._pump.done():
            self._pump = self._tasks.start(self._handle())

    async def close(self) -> None:
        """Stop; what was not handled is dropped."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        self._release(self._inbox)
        self._inbox = []

    async def _handle(self) -> None:
        while self._inbox and not self._over:
            batch, self._inbox = self._inbox, []

            def handle(
                handler: MigrationSubprotocolHandler, now: float, batch: list[Carried] = batch
            ) -> tuple[None, list[Outbound]]:
                out: list[Outbound] = []
                for carried in batch:
                    try:
                        message = decode_migration(carried.message)
                    except RemoteProtocolError:
                        handler.counters.count(Reason.MIGRATION_MALFORMED)
                    else:
                        out += handler.handle(message, carried.node_id, now)
                return None, out

            try:
                with suppress(DaemonsHalted):
                    await self.act(handle)
            finally:
                self._release(batch)

    def _release(self, batch: Iterable[Carried]) -> None:
        if not self._live.driver.closed:
            carrier = self._live.engine.carrier(Subprotocol.MIGRATION)
            for carried in batch:
                carrier.release(carried)

    def _send(self, out: list[Outbound]) -> None:
        if not out or self._live.driver.closed:
            return

        def send(engine: Engine, now: float, output: Output) -> None:
            carrier = engine.carrier(Subprotocol.MIGRATION)
            for to, messages in groupby(out, key=lambda one: one[0]):
                raw = [encode_migration(message) for _, message in messages]
                try:
                    carrier.send(to, raw, now, output)
                except PeerError:
                    # What matters is repeated; by then there may be a session.
                    engine.counters.count(Reason.MIGRATION_UNREACHABLE, len(raw))
                    self._missing(to)

        self._live.act(send)

    def _arm(self, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None and not self._over:
            self._timer = asyncio.get_running_loop().call_later(max(due - Driver.now(), _SOON_S), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._tasks.start(self._act_tick())

    async def _act_tick(self) -> None:
        with suppress(DaemonsHalted):
            await self.act(lambda handler, now: (None, handler.tick(now)))

    def _halt(self, error: Exception) -> None:
        if self._over:
            return
        self._over = True
        if not isinstance(error, MeshError):
            _logger.error("daemons failed unexpectedly; please report this as a bug", exc_info=error)
        self._halted(error)
