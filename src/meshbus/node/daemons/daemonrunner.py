"""Running one daemon: reads its inputs, lets it process them, writes checkpoints, publishes what it returns.

A turn is the order of compute/host.py: deliver what is ready, write a checkpoint, publish, confirm. Many events share one
checkpoint, so that its cost is shared too: a turn takes what is ready, up to a time that grows with the cost of the
checkpoint. The daemon's own code and the checkpoint run in the thread of all daemons (daemonthread.py), publishing on the
event loop. Only one turn goes on at a time.

A daemon that fails is restored from its checkpoint after a pause that doubles. The events before the one at which it failed
are then processed alone, so that one bad event does not hold up the good ones before it. A daemon that is being handed over
takes no events here; what it has returned is still published.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import Outbound
from meshbus.compute.migration.handler import MigrationSubprotocolHandler
from meshbus.compute.recovery import keep
from meshbus.compute.store import DaemonStore, Mark, Status
from meshbus.errors import DaemonError, DaemonFault, MeshError
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.daemons.daemoninput import InputReader
from meshbus.node.daemons.daemonledger import DaemonLedger
from meshbus.node.daemons.daemonmoves import DaemonsHalted
from meshbus.policy.bound import Bound, By
from meshbus.wire.messages.causal import CausalEvent
from meshbus.wire.messages.checkpoint import InputPosition

TURN_S = 0.05
"""How long a daemon processes events before its checkpoint. Our choice: others, and moves, wait for no longer."""
MAX_TURN_S = 1.0
"""The same for a daemon whose checkpoint takes long: then as long as that takes, up to this."""
TURN_EVENTS = 8_192
"""Events of a turn: what publish_once appends at once."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 30.0
"""The pause after a failure; it doubles. Our choice: a bad event costs little, and a cause that goes away is seen soon."""
SETTLE_S = 5.0
"""Time without events after which a checkpoint without outputs is written."""
MAX_DIRECT = 1_024
"""Events that were given to a daemon directly and wait for its next turn."""

BOUNDS = (
    Bound(
        name="delivered",
        what="events given to a daemon directly that wait for its next turn",
        by=By.USER,
        per_node=None,
        per={"daemon": MAX_DIRECT},
        full="the call is refused",
        counter="DaemonError",
    ),
)


class Shop(NamedTuple):
    """What a runner needs of its node."""

    act: Callable[[Callable[[MigrationSubprotocolHandler, float], tuple[Any, list[Outbound]]]], Any]
    """Runs a function in the thread of daemons, with the handler of moves and the time, and sends what it returns."""
    store: DaemonStore
    wall: Callable[[float], int]
    reader: Callable[[InputPosition, Callable[[], None]], InputReader]
    """Begins to read an input."""
    largest: int
    """The longest output that can be published."""
    revive: Callable[[int], DaemonHost]
    """Restores a daemon from its record, in the thread. Raises DaemonError."""
    ledger: DaemonLedger | None
    """The log that other nodes could continue the daemon from, if it has one."""
    say: Callable[[str, str], None]
    """Adds a line to the daemon's log: level and text."""
    emitted: Callable[[Sequence[CausalEvent]], None] = lambda _events: None
    """Takes what the daemon emitted, after a checkpoint has it; after a restart perhaps the same again."""


class _Turn(NamedTuple):
    """What one turn has done."""

    gone: bool = False
    """The daemon does not run here any more."""
    delivered: int = 0
    batch: int = 0
    pending: tuple[CausalEvent, ...] = ()
    """What is to be published: whatever the daemon emitted since the last turn, also on its way here or back."""
    failure: str | None = None
    """The daemon's code failed."""
    gap: str | None = None
    """Events that come next are gone."""
    kept: tuple[DaemonEvent, ...] = ()
    """Events that a move had kept when the daemon failed."""
    results: tuple[tuple[bytes, ...], ...] = ()
    """The outputs of the events that were delivered directly."""


class DaemonRunner:
    """Runs one daemon on this node, until it has left or is stopped."""

    def __init__(self, host: DaemonHost, publisher: ChannelPublisher | None, shop: Shop, *, skips_gaps: bool) -> None:
        self.host = host
        self.failures = 0
        self.problem: str | None = None
        """What is wrong now."""
        self.failed = False
        """Whether the daemon's code failed last time."""
        self._publisher = publisher
        self._shop = shop
        self._skips_gaps = skips_gaps
        self._inputs: dict[int, InputReader] = {}
        self._direct: deque[tuple[DaemonEvent, asyncio.Future[tuple[bytes, ...]]]] = deque()
        self._wake = asyncio.Event()
        self._stopping = False
        self._saved = -1
        """How many events were processed when the last checkpoint was written; that a new host has one is not known."""
        self._has_pending = False
        """Whether the last checkpoint has outputs."""
        self._limit: int | None = None
        """How many events the next turn may take: those before one that failed."""
        self._seen_errors = host.stats.errors
        self._term = 0
        """The term of the ledger in which this runner has claimed the daemon."""
        self._unshared: bytes | None = None
        """The last checkpoint, until it is in the ledger."""
        self._broken = False
        """Whether it failed and could not be restored yet."""
        self._checkpoint_s = 0.0

    def wake(self) -> None:
        """Check for something to do: an input has news, or a move has ended."""
        self._wake.set()

    def stop(self) -> None:
        """End after the current turn."""
        self._stopping = True
        self._wake.set()

    def deliver(self, event: DaemonEvent) -> asyncio.Future[tuple[bytes, ...]]:
        """Add an event without a log, and return a future of the daemon's outputs, which are then published."""
        if len(self._direct) >= MAX_DIRECT:
            problem = f"{MAX_DIRECT} events wait for it already, the limit; wait until some were processed"
            raise DaemonError(DaemonFault.PAUSED, self.host.origin, problem)
        outcome: asyncio.Future[tuple[bytes, ...]] = asyncio.get_running_loop().create_future()
        self._direct.append((event, outcome))
        self._wake.set()
        return outcome

    async def run(self) -> None:
        """Run the daemon; return when it is gone or was stopped."""
        pause_s = FIRST_PAUSE_S
        try:
            if not await self._claim():
                await self._yield()
                return
            await self._open()
            while not self._stopping:
                self._wake.clear()
                turn = await self._turn()
                if turn.gone:
                    return
                if turn.failure is not None:
                    await self._recover(turn, pause_s)
                    pause_s = min(2 * pause_s, LAST_PAUSE_S)
                    continue
                self._show(turn)
                if not await self._share():
                    await self._yield()
                    return
                if turn.delivered:
                    self.failed, pause_s = False, FIRST_PAUSE_S
                if turn.pending:
                    self._shop.emitted(turn.pending)
                    await self._publish(turn)
                self._answer(turn)
                if not turn.delivered and not turn.pending:
                    await self._idle()
            await self._settle()
        except DaemonsHalted:
            return  # it goes on from its checkpoint when the disk does
        finally:
            self._refuse("it does not run on this node any more, and has not got the event")
            await self._close()

    # ── turns, in the thread ────────────────────────────────────────────────────────────────

    async def _turn(self) -> _Turn:
        ready = {origin: reader.ready() for origin, reader in self._inputs.items()}
        direct = [event for event, _ in self._direct]
        turn: _Turn = await self._shop.act(lambda handler, now: self._work(handler, ready, direct, now))
        if not turn.gone and turn.failure is None:
            for position in self.host.inputs:
                if (reader := self._inputs.get(position.origin)) is not None:
                    reader.taken(position.next_seq)
        return turn

    def _work(
        self,
        handler: MigrationSubprotocolHandler,
        ready: dict[int, list[tuple[int, list[bytes]]]],
        direct: Sequence[DaemonEvent],
        now: float,
    ) -> tuple[_Turn, list[Outbound]]:
        origin = self.host.origin
        if self._broken and (problem := self._restore(handler)) is not None:
            return _Turn(failure=problem), []
        host = self.host
        if handler.registry.get(origin) is not host:
            return _Turn(gone=True), []
        before = host.stats.processed
        gap, results = None, list[tuple[bytes, ...]]()
        try:
            self._check_errors()
            for event in () if handler.source.is_stopping(origin) else direct:
                results.append(tuple(output.payload for output in handler.deliver(origin, event)))
            if not host.paused:
                gap = self._deliver(handler, ready)
            self._check_outputs()
            self._save(now)
        except DaemonError as error:
            done = host.stats.processed - before
            out, kept = self._discard(handler)
            return _Turn(failure=str(error), delivered=done, kept=tuple(kept)), out
        out = handler.tick(now) if handler.source.phase(origin) is not None else []
        delivered = host.stats.processed - before
        return _Turn(
            delivered=delivered,
            batch=host.batch,
            pending=tuple(host.pending),
            gap=gap,
            results=tuple(results),
        ), out

    def _discard(self, handler: MigrationSubprotocolHandler) -> tuple[list[Outbound], list[DaemonEvent]]:
        """Take the place of a daemon whose state is undefined: nobody may take a snapshot of it."""
        out, kept = handler.source.abandon(self.host.origin)
        handler.registry.remove(self.host.origin)
        self._broken = True
        self._restore(handler)
        return out, kept

    def _restore(self, handler: MigrationSubprotocolHandler) -> str | None:
        """Continue from the checkpoint; return why that is not possible, or None."""
        try:
            self.host = self._shop.revive(self.host.origin)
        except DaemonError as error:
            return str(error)
        self.host.term = max(self.host.term, self._term)  # it may have failed before its first checkpoint of the term
        handler.registry.add(self.host)
        self._broken, self._saved, self._seen_errors = False, -1, self.host.stats.errors
        return None

    def _deliver(
        self, handler: MigrationSubprotocolHandler, ready: dict[int, list[tuple[int, list[bytes]]]]
    ) -> str | None:
        """Deliver what is ready, within the limits of a turn; return what is missing, if something is."""
        host = self.host
        until = time.monotonic() + min(max(TURN_S, self._checkpoint_s), MAX_TURN_S)
        left = TURN_EVENTS if self._limit is None else self._limit
        gap = None
        for position in host.inputs:
            expected = position.next_seq
            for first, payloads in ready.get(position.origin, ()):
                if first > expected:
                    if not self._skips_gaps:
                        gap = f"events {expected} to {first - 1} of {position.channel} are no longer in the log"
                        break
                    host.skip(position.origin, first)
                for sequence, payload in enumerate(payloads, first):
                    if sequence < expected:
                        continue
                    if left <= 0 or time.monotonic() >= until:
                        return gap
                    handler.deliver(host.origin, DaemonEvent(position.origin, sequence, payload))
                    left -= 1
                expected = max(expected, first + len(payloads))
        return gap

    def _check_errors(self) -> None:
        # A move that was taken back delivers what it had kept, outside of a turn.
        if self.host.stats.errors > self._seen_errors:
            problem = "it failed at an event that was kept during a move"
            raise DaemonError(DaemonFault.FAILED, self.host.origin, problem)

    def _check_outputs(self) -> None:
        longest = max((len(output.payload) for output in self.host.pending), default=0)
        if longest > self._shop.largest:
            problem = f"it returned an output of {longest} bytes; at most {self._shop.largest} can be published"
            raise DaemonError(DaemonFault.FAILED, self.host.origin, problem)

    def _save(self, now: float) -> None:
        """Write a checkpoint, if anything was processed since the last one."""
        host = self.host
        if host.stats.processed == self._saved:
            return
        began = time.monotonic()
        self._unshared = keep(self._shop.store, host, self._shop.wall(now))
        self._checkpoint_s = time.monotonic() - began
        self._saved, self._has_pending = host.stats.processed, bool(host.pending)

    # ── between turns, on the loop ──────────────────────────────────────────────────────────

    async def _claim(self) -> bool:
        """Claim the daemon in its ledger, if it has one; return False if it went on without the record of this node."""
        ledger = self._shop.ledger
        if ledger is None:
            return True
        term = await ledger.begin(self.host.origin, self.host.term)
        if term is None:
            return False
        self._term = term

        def begin(_handler: MigrationSubprotocolHandler, _now: float) -> tuple[None, list[Outbound]]:
            self.host.term = term
            return None, []

        await self._shop.act(begin)
        return True

    async def _share(self) -> bool:
        """Add the last checkpoint to the ledger; return False if another node has claimed the daemon."""
        ledger, snapshot, host = self._shop.ledger, self._unshared, self.host
        self._unshared = None
        if ledger is None:
            return True
        if snapshot is None:
            return ledger.has(host.origin, self._term)
        if not await ledger.write(host.origin, self._term, snapshot):
            return False
        if not host.in_ledger:

            def enter(handler: MigrationSubprotocolHandler, now: float) -> tuple[None, list[Outbound]]:
                host.in_ledger = True  # a move may wait for it
                return None, handler.tick(now)

            await self._shop.act(enter)
        return True

    async def _yield(self) -> None:
        """Leave the daemon to the node that has claimed it."""
        origin, ledger = self.host.origin, self._shop.ledger
        assert ledger is not None
        owner = ledger.of(origin).node or 0
        self._shop.say("warning", f"runs on {owner:016x} now, which has claimed it in the ledger")

        def leave(handler: MigrationSubprotocolHandler, _now: float) -> tuple[None, list[Outbound]]:
            out, _ = handler.source.abandon(origin)
            before = self._shop.store.marked(origin)
            if before is not None and handler.registry.get(origin) is self.host:
                self._shop.store.mark(origin, Mark(status=Status.MOVED, target=owner, begun=before.begun))
                handler.registry.remove(origin)
            return None, out

        await self._shop.act(leave)

    async def _idle(self) -> None:
        """Wait for something to do. A checkpoint without the last outputs is written if nothing comes for a while.

        Once the log of the outputs has forgotten them, it could not tell any more that they were published.
        """
        if self._has_pending:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self._wake.wait()
                return
            await self._settle()
            return  # a turn without events shares the checkpoint
        await self._wake.wait()

    async def _settle(self) -> None:
        def save(handler: MigrationSubprotocolHandler, now: float) -> tuple[None, list[Outbound]]:
            if handler.registry.get(self.host.origin) is self.host:
                self._saved = -1
                with suppress(DaemonError):
                    self._save(now)
            return None, []

        await self._shop.act(save)

    async def _publish(self, turn: _Turn) -> None:
        """Publish what the last checkpoint has, however long it takes."""
        pause_s = FIRST_PAUSE_S
        while self._publisher is not None:
            try:
                rows = _table(turn.pending)
                await self._publisher.publish_once(rows, writer=self.host.writer, batch=turn.batch)
                break
            except MeshError as error:
                self._complain(f"its outputs cannot be published: {error}")
            if self._stopping:
                return
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
        await self._shop.act(lambda handler, now: self._confirm(handler, len(turn.pending), now))

    def _confirm(self, handler: MigrationSubprotocolHandler, count: int, now: float) -> tuple[None, list[Outbound]]:
        self.host.published(count)
        return None, handler.tick(now)

    def _answer(self, turn: _Turn) -> None:
        for result in turn.results:
            _, outcome = self._direct.popleft()
            if not outcome.done():
                outcome.set_result(result)

    def _refuse(self, problem: str) -> None:
        """Raise an error to those who gave the daemon an event that it has not processed."""
        for _, outcome in self._direct:
            if not outcome.done():
                outcome.set_exception(DaemonError(DaemonFault.FAILED, self.host.origin, problem))
                outcome.exception()  # retrieved here: the caller may be gone
        self._direct.clear()

    async def _recover(self, turn: _Turn, pause_s: float) -> None:
        """Wait after a failure; the daemon was restored from its checkpoint."""
        self.failures += 1
        self.failed = True
        self._limit = turn.delivered or None
        assert turn.failure is not None
        self._complain(turn.failure)
        self._refuse(turn.failure)
        await self._close()
        await self._pause(0.0 if self._limit else pause_s)
        for event in turn.kept:
            self.deliver(event)
        await self._open()

    def _show(self, turn: _Turn) -> None:
        problems = [reader.problem for reader in self._inputs.values() if reader.problem is not None]
        told = turn.gap or (problems[0] if problems else None)
        if told is not None:
            self._complain(told)
        elif turn.delivered or not self.failed:
            self.problem = None
        self._limit = None if turn.delivered else self._limit

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._shop.say("error", problem)

    async def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()

    async def _open(self) -> None:
        for position in self.host.inputs:
            self._inputs[position.origin] = self._shop.reader(position, self.wake)

    async def _close(self) -> None:
        for reader in self._inputs.values():
            await reader.close()
        self._inputs.clear()


def _table(outputs: Sequence[CausalEvent]) -> Any:
    """Return outputs as publish_once takes them."""
    import pyarrow as pa

    return pa.table({"payload": pa.array([output.payload for output in outputs], pa.large_binary())})
