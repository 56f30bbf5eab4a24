"""Redialing: keeps the sessions with the configured peers, by dialing them for as long as it takes.

A peer is dialed at once, and again whenever its session is lost: it said goodbye, failed, or was restarted. Between two
tries there is a pause that doubles up to `MAX_PAUSE_S`, with jitter, so that a fleet does not dial a restarted node in
step. A session that the peer began counts as well. A net-mesh 0.23 node has another Noise key after every start, so it
can only come back by itself: it may always begin a direct handshake. `disconnect` stops the dialing of a peer until the
application connects to it again. One try is node/peers/dialing.py; subscriptions resume by themselves with the new session
(node/channels/joining.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from itertools import count

import msgspec

from meshbus.engine.base.notices import Control, HandshakeFailed, PeerFailed, PeerGone, PeerRecovered, SessionUp
from meshbus.engine.session.peer import Health
from meshbus.engine.settings import HandshakeConfig
from meshbus.errors import MeshError
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.peers.dialing import Dialer, Target

FIRST_PAUSE_S = 0.25
"""The first pause. Our choice: a process takes about as long to start again."""
MAX_PAUSE_S = 15.0
"""The longest pause. Our choice: a peer that is back is found soon, at the cost of one packet in this time."""
MIN_TRY_S = 0.5
"""How long the first try waits for an answer; later ones wait as long as the pause was, up to `handshake_timeout_s`. Our
choice: more than most round trips, and short because a peer that starts meanwhile has missed the message."""

_logger = logging.getLogger("meshbus.node")


class DialState(StrEnum):
    """What is done about a configured peer."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    """A try is under way."""
    WAITING = "waiting"
    """The next try is due later."""
    STOPPED = "stopped"
    """It was disconnected; `connect` starts the dialing again."""


class DialInfo(msgspec.Struct, frozen=True):
    """The state of one configured peer at one moment."""

    node_id: int
    address: str | None
    """Where it is dialed; None if it is reached through the mesh."""
    state: DialState
    since_ns: int
    """Since when there is a session, or since when there is none (Unix nanoseconds)."""
    tries: int = 0
    """Tries that failed since then."""
    next_try_s: float | None = None
    """Seconds until the next try, while it waits for it."""
    last_error: str | None = None
    """Why the last try failed."""


class PeerUnreachable(msgspec.Struct, frozen=True):
    """A configured peer could not be reached. Reported for the first failure, and when their number has doubled."""

    node_id: int
    address: str | None
    tries: int
    problem: str
    next_try_s: float
    since_ns: int
    """Since when there is no session (Unix nanoseconds)."""


def pauses(jitter: Callable[[], float]) -> Iterator[float]:
    """Yield the pauses between tries, in seconds; `jitter` returns numbers from 0 up to 1."""
    for doublings in count():
        longest = min(FIRST_PAUSE_S * 2 ** min(doublings, 32), MAX_PAUSE_S)
        yield longest * (1 + jitter()) / 2


class _Kept:
    """One peer to keep a session with."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.state = DialState.WAITING
        self.since_ns = time.time_ns()
        self.tries = 0
        self.due: float | None = None
        self.error: str | None = None
        self.changed = asyncio.Event()
        """Set when something happens to the session."""
        self.task: asyncio.Task[None] | None = None

    def enter(self, state: DialState) -> None:
        """Change the state; `since_ns` changes only when a session comes or goes."""
        if (state is DialState.CONNECTED) != (self.state is DialState.CONNECTED):
            self.since_ns, self.tries, self.error = time.time_ns(), 0, None
        self.state, self.due = state, None

    def info(self) -> DialInfo:
        """Return the current state."""
        next_try_s = None if self.due is None else max(self.due - Driver.now(), 0.0)
        target = self.target
        return DialInfo(target.node_id, target.address, self.state, self.since_ns, self.tries, next_try_s, self.error)


class Redialer:
    """Keeps the sessions of one node with its configured peers."""

    def __init__(
        self, live: Live, dialer: Dialer, notice: Callable[[PeerUnreachable], None], jitter: Callable[[], float]
    ) -> None:
        """Keep no sessions yet; `jitter` returns random numbers from 0 up to 1."""
        self._live = live
        self._dialer = dialer
        self._notice = notice
        self._jitter = jitter
        self._kept: dict[int, _Kept] = {}
        self._tasks = TaskOwner("dialing a peer", _logger)

    def infos(self) -> list[DialInfo]:
        """Return the state of all kept peers."""
        return [kept.info() for kept in self._kept.values()]

    def keep(self, target: Target) -> None:
        """Keep a session with a node from now on."""
        kept = self._kept[target.node_id] = _Kept(target)
        if target.plain:
            self._live.engine.handshakes.accept(target.node_id, once=False)
        self._start(kept)

    def stop(self, node_id: int) -> None:
        """Stop dialing a node, until the application connects to it again."""
        kept = self._kept.get(node_id)
        if kept is not None:
            self._halt(kept)
            kept.enter(DialState.STOPPED)

    @asynccontextmanager
    async def yielding(self, node_id: int, target: Target | None = None) -> AsyncIterator[None]:
        """Pause the dialing of a node while the application connects to it; then dial the target that worked."""
        kept = self._kept.get(node_id)
        if kept is None:
            yield
            return
        task = self._halt(kept)
        kept.enter(DialState.CONNECTING)
        try:
            if task is not None:
                await asyncio.wait([task])  # its attempt has to end before another can begin
            yield
            kept.target = target or kept.target
        finally:
            # Unless it was disconnected meanwhile, another call resumed it, or the node was closed.
            if kept.state is not DialState.STOPPED and kept.task is None and node_id in self._kept:
                self._start(kept)

    def renamed(self, old: int, key: bytes) -> None:
        """Keep the session with a node that goes on under another key, where it was dialed before."""
        kept = self._kept.pop(old, None)
        if kept is None:
            return
        stopped = kept.state is DialState.STOPPED
        self._halt(kept)
        before = kept.target
        target = Target.of(before.address, key, None, routed=before.routed, profile=before.profile)
        if not stopped and target.node_id not in self._kept:
            self.keep(target)

    def take(self, event: Control) -> bool:
        """Handle what happened to a session; return whether it is the failure of a try made here, which is no news."""
        match event:
            case SessionUp() | PeerGone() | PeerFailed() | PeerRecovered():
                kept = self._kept.get(event.node_id)
                if kept is not None:
                    kept.changed.set()
            case HandshakeFailed():
                kept = self._kept.get(event.node_id)
                return kept is not None and kept.state is DialState.CONNECTING and kept.task is not None
        return False

    def cancel(self) -> None:
        """Stop all dialing: the node is closing."""
        self._kept.clear()
        self._tasks.cancel()

    def _start(self, kept: _Kept) -> None:
        kept.task = self._tasks.start(self._run(kept))

    def _halt(self, kept: _Kept) -> asyncio.Task[None] | None:
        task, kept.task = kept.task, None
        if task is not None:
            task.cancel()
        return task

    async def _run(self, kept: _Kept) -> None:
        while True:
            await self._dial(kept)
            kept.enter(DialState.CONNECTED)
            while self._has_session(kept.target.node_id):
                kept.changed.clear()
                await kept.changed.wait()
            kept.enter(DialState.WAITING)
            # A peer that said goodbye is not back yet.
            await self._pause(kept, next(pauses(self._jitter)))

    async def _dial(self, kept: _Kept) -> None:
        """Try until there is a session."""
        timeout_s = self._live.engine.settings.handshake.timeout_s
        for pause_s in pauses(self._jitter):
            if self._has_session(kept.target.node_id):
                return
            kept.enter(DialState.CONNECTING)
            try_s = min(max(pause_s, MIN_TRY_S), timeout_s)
            try:
                await self._dialer.dial(kept.target, HandshakeConfig(tries=1, timeout_s=try_s))
            except MeshError as error:
                if self._has_session(kept.target.node_id):
                    return
                kept.enter(DialState.WAITING)
                kept.tries += 1
                kept.error = str(error)
                self._tell(kept, pause_s)
                await self._pause(kept, pause_s)
            else:
                return

    async def _pause(self, kept: _Kept, seconds: float) -> None:
        """Wait, but no longer than until something happens to the session."""
        kept.due = Driver.now() + seconds
        kept.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await kept.changed.wait()

    def _tell(self, kept: _Kept, pause_s: float) -> None:
        # Each time the number has doubled: a peer that is off for a weekend is not worth a line every few seconds.
        if kept.tries & (kept.tries - 1):
            return
        target, problem = kept.target, kept.error or ""
        _logger.info("peer %016x at %s: try %d failed: %s", target.node_id, target.address, kept.tries, problem)
        self._notice(
            PeerUnreachable(target.node_id, target.address, kept.tries, problem, round(pause_s, 3), kept.since_ns)
        )

    def _has_session(self, node_id: int) -> bool:
        peer = self._live.engine.peers.get(node_id)
        return peer is not None and peer.health is not Health.FAILED
