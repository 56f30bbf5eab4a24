"""The daemons of an open node: which it offers and runs, their runners, their records, and what is known about them.

Records are in files (daemonfiles.py), moves are driven by daemonmoves.py, each daemon is run by daemonrunner.py. This file
starts a runner for every daemon that the registry has, whoever put it there: the application, a move, or a record that was
found at the start. It begins again from the records when they could not be written. The public face is daemons.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from meshbus.compute.daemon import Daemon, DaemonFactory
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import MigrationSettings, Outbound, Seat
from meshbus.compute.migration.handler import MigrationSubprotocolHandler
from meshbus.compute.migration.orchestrator import MoveEnded
from meshbus.compute.migration.source import NOT_ON_SOURCE
from meshbus.compute.recovery import keep, revive
from meshbus.compute.registry import DaemonRegistry, Factory
from meshbus.compute.store import Mark, Status, Stored
from meshbus.config.node import NodeConfig
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Carried
from meshbus.engine.session.peer import Health
from meshbus.errors import DaemonError, DaemonFault, MalformedPacket, MeshError
from meshbus.log.census import FactKind
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity, noise_public_key
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.channels.subscription import Subscription
from meshbus.node.daemons.daemonfiles import DaemonFiles
from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonInput, DaemonLine, DaemonState
from meshbus.node.daemons.daemoninput import InputReader
from meshbus.node.daemons.daemonledger import DaemonLedger
from meshbus.node.daemons.daemonmoves import DaemonMoves, DaemonsHalted
from meshbus.node.daemons.daemonrunner import DaemonRunner, Shop
from meshbus.node.daemons.daemonthread import DaemonThread
from meshbus.node.driving.live import Live
from meshbus.node.driving.setup import wall
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.logs.logs import Logs
from meshbus.node.replicas.replicapublish import MAX_PAYLOAD
from meshbus.policy.bound import Bound, By
from meshbus.wire.constants import MAX_EVENT, Subprotocol
from meshbus.wire.messages.causal import CausalEvent
from meshbus.wire.messages.checkpoint import InputPosition, moves_in, term_in
from meshbus.wire.messages.snapshot import decode_snapshot

REOPEN_S = 5.0
"""Pause before the records are opened again after the disk failed. Our choice, as for logs."""
CLOSE_S = 5.0
"""How long closing waits for daemons to end their turn."""
TAKEOVER_S = 10.0
"""How long a node must be gone before its daemons are taken over. Our choice: longer than a restart, and than a handover."""
MAX_LINES = 1_000
"""Lines about a daemon that are kept."""

BOUNDS = (
    Bound(
        name="daemon_lines",
        what="lines about what happened to a daemon",
        by=By.USER,
        per_node=None,
        per={"daemon": MAX_LINES},
        full="the oldest goes",
        counter="none: the times of lines show the gap",
    ),
)

_logger = logging.getLogger("meshbus.node")
_LOGGERS = "meshbus.daemon"
"""Daemons log below this name, each under its own."""


class DaemonSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that this node may run."""

    name: str
    create: DaemonFactory
    identity: Identity
    inputs: tuple[InputPosition, ...] = ()
    """Where it begins to read, if it was never started before."""
    output: ChannelName | None = None
    orchestrators: frozenset[int] | None = None
    checkpoints: ChannelName | None = None
    """A replicated channel from which another node continues it if this one dies."""
    skips_gaps: bool = False
    fresh: bool = False
    """Whether to start it here if there is no record of it."""


class Around(NamedTuple):
    """What the daemons of a node need of it."""

    live: Live
    config: NodeConfig
    logs: Logs | None
    publisher: Callable[[str], ChannelPublisher]
    subscribe: Callable[[str, int | None, int], Subscription]
    """Prepares a subscription to a channel, of a publisher, from a sequence on."""
    is_replicated: Callable[[ChannelName], bool]
    holds: Callable[[ChannelName], bool]
    """Whether this node has the log of a replicated channel."""
    noise_key_of: Callable[[int], bytes | None]
    """Returns the Noise key of a node that the application connected to."""
    record: Callable[[FactKind, int, str | None, int, str | None], None]
    """Writes down that a move begins or has ended: the daemon's origin and name, the node that it is on or was to go to, and
    why it did not move, if so."""


class DaemonHosting:
    """Runs the daemons of one node."""

    def __init__(self, around: Around, settings: MigrationSettings | None = None) -> None:
        self.around = around
        self.counters = Counters()
        """Counted in the thread of daemons; the engine's are not safe there."""
        self.specs: dict[int, DaemonSpec] = {}
        self.seen: dict[int, int] = {}
        """Where a daemon was last known to run, by what this node took part in."""
        self._settings = settings or MigrationSettings()
        self._lines: dict[int, deque[DaemonLine]] = {}
        self._handlers: dict[str, logging.Handler] = {}
        """By the name of the logger."""
        self._runners: dict[int, DaemonRunner] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._stopped: set[int] = set()
        self._problems: dict[int, str] = {}
        """Why a daemon could not be started, by origin."""
        self._waiting: dict[int, list[asyncio.Future[MoveEnded]]] = {}
        self._ledgers: dict[ChannelName, DaemonLedger] = {}
        self._tasks = TaskOwner("a daemon", _logger)
        self._thread = DaemonThread()
        self._closing = False
        self._halting = False
        """Whether everything is to begin again from the records."""
        self._files: DaemonFiles | None = None
        self._registry = DaemonRegistry()
        self._moves: DaemonMoves | None = None
        self._missing: Callable[[int], None] = lambda _node: None
        self.emitted: Callable[[Sequence[CausalEvent]], None] = lambda _events: None
        """Takes what a daemon emitted, after a checkpoint has it."""

    # ── opening and closing ─────────────────────────────────────────────────────────────────

    async def open(self, missing: Callable[[int], None]) -> None:
        """Open the records, and continue the moves that this node has decided about.

        `missing` is called with a node for which there are messages, but no session. Raises ConfigError or LogError if
        the directory cannot be used.
        """
        self._missing = missing
        folder = self.around.config.daemons_dir
        assert folder is not None
        files = self._files = await self._thread.call(lambda: DaemonFiles(folder, os.urandom))
        self._registry = DaemonRegistry()
        engine = self.around.live.engine
        seat = Seat(
            own=engine.node_id,
            registry=self._registry,
            store=files,
            counters=self.counters,
            settings=self._settings,
            wall=wall,
            entropy=os.urandom,
            static_private_key=engine.identity.noise_private_key,
            noise_key_of=self._noise_key_of,
        )
        handler = MigrationSubprotocolHandler(seat)
        self._moves = DaemonMoves(self.around.live, self._thread, handler, self._changed, self._halted, missing)
        self._halting = False
        await self._moves.act(_recovered)

    async def close(self) -> None:
        """Stop all daemons after their turn, and release the records."""
        self._closing = True
        await self._end_runners()
        if self._moves is not None:
            await self._moves.close()
        await self._tasks.close()
        for ledger in self._ledgers.values():
            await ledger.close()
        if self._files is not None:
            self._thread.call(self._files.close)
        if not await self._thread.close(CLOSE_S):
            _logger.warning("a daemon has not ended its turn in %g s and is abandoned", CLOSE_S)
        for future in [one for waiting in self._waiting.values() for one in waiting]:
            future.cancel()
        for name, handler in self._handlers.items():
            logging.getLogger(name).removeHandler(handler)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background, until the node is closed."""
        self._tasks.start(work)

    def take(self, carried: Carried) -> None:
        """Handle a message of a peer."""
        if self._moves is not None and not self._closing:
            self._moves.take(carried)

    async def act(self, work: Callable[[MigrationSubprotocolHandler, float], tuple[Any, list[Outbound]]]) -> Any:
        """Do something with the state machines of moves. Raises DaemonError if the records cannot be written now."""
        assert self._moves is not None
        try:
            return await self._moves.act(work)
        except DaemonsHalted as halted:
            problem = f"the records of daemons cannot be written: {halted.__cause__}; look at daemons_dir"
            raise DaemonError(DaemonFault.FAILED, 0, problem) from halted

    # ── daemons ─────────────────────────────────────────────────────────────────────────────

    async def declare(self, spec: DaemonSpec) -> None:
        """Offer a daemon, and run it if it belongs to this node. Raises DaemonError if it cannot be restored."""
        origin = spec.identity.origin_hash
        if origin in self.specs and origin not in self._stopped:
            raise DaemonError(DaemonFault.DUPLICATE, origin, f"{spec.name!r} is offered on this node already")
        self.specs[origin] = spec
        self._stopped.discard(origin)
        self._listen(origin, spec.name)
        try:
            await self._begin(spec)
        except DaemonError as error:
            self._problems[origin] = str(error)
            self._stopped.add(origin)
            self.say(origin, "error", str(error))
            raise
        self._problems.pop(origin, None)
        if spec.checkpoints is not None:
            self._tasks.start(self._watch(spec))

    async def _begin(self, spec: DaemonSpec) -> None:
        origin, files = spec.identity.origin_hash, self._files
        assert files is not None

        def begin(handler: MigrationSubprotocolHandler, now: float) -> tuple[None, list[Outbound]]:
            if origin in files.damaged:
                raise DaemonError(DaemonFault.RESTORE, origin, files.damaged[origin])
            registry = handler.registry
            registry.withdraw(origin)
            registry.offer(
                origin,
                Factory(
                    create=_guarded(spec),
                    identity=spec.identity,
                    orchestrators=spec.orchestrators,
                    has_ledger=spec.checkpoints is not None,
                ),
            )
            mark = files.marked(origin)
            try:
                if mark is None and spec.fresh:
                    host = DaemonHost(spec.identity, _guarded(spec)(), spec.inputs)
                    keep(files, host, wall(now))
                    registry.add(host)
                elif mark is not None and mark.status is Status.ACTIVE and origin not in registry:
                    registry.add(self._revive(origin))
                else:
                    handler.target.recover_one(origin, now)
            except DaemonError:
                registry.withdraw(origin)
                raise
            return None, []

        await self.act(begin)

    async def stop(self, origin: int, *, withdraw: bool) -> None:
        """Stop a daemon here, after its turn; its record stays. With `withdraw`, no daemon may move here either."""
        runner = self._runners.get(origin)
        self._stopped.add(origin)
        if runner is not None:
            runner.stop()
            await asyncio.wait([self._running[origin]])

        def remove(handler: MigrationSubprotocolHandler, _now: float) -> tuple[None, list[Outbound]]:
            if handler.phase(origin) is not None:
                raise DaemonError(
                    DaemonFault.PAUSED, origin, "it is moving; wait until it has arrived, or cancel the move"
                )
            if origin in handler.registry:
                handler.registry.remove(origin)
            handler.registry.withdraw(origin)
            return None, []

        try:
            await self.act(remove)
        except DaemonError:
            self._stopped.discard(origin)
            self._changed([])
            raise
        self.say(origin, "info", "stopped")
        if withdraw:
            del self.specs[origin]

    def halt_one(self, origin: int, why: str) -> None:
        """Stop a daemon, if it runs here, because its history went on elsewhere; its record stays."""
        if origin in self._runners:
            self.say(origin, "warning", why)
            self._tasks.start(self.stop(origin, withdraw=False))

    def runner(self, origin: int) -> DaemonRunner:
        """Return the runner of a daemon. Raises DaemonError if it does not run here."""
        runner = self._runners.get(origin)
        if runner is None:
            raise DaemonError(DaemonFault.UNKNOWN, origin, "it does not run on this node")
        return runner

    def host(self, origin: int) -> DaemonHost | None:
        """Return a daemon that runs here, or None."""
        return self._registry.get(origin)

    def move_begins(self, origin: int, source: int) -> None:
        """Record that this node has begun to move a daemon."""
        self._record(FactKind.MOVING, origin, source)

    def move_failed(self, origin: int, target: int, reason: str) -> None:
        """Record that a daemon has not moved, unless the node that was asked for it only does not run it."""
        if NOT_ON_SOURCE not in reason:
            self._record(FactKind.NOT_MOVED, origin, target, reason)

    def _record(self, kind: FactKind, origin: int, node: int, reason: str | None = None) -> None:
        spec = self.specs.get(origin)
        self.around.record(kind, origin, None if spec is None else spec.name, node, reason)

    def end_of_move(self, origin: int) -> asyncio.Future[MoveEnded]:
        """Return a future of the end of the next move of a daemon that this node drives."""
        future: asyncio.Future[MoveEnded] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(origin, []).append(future)
        return future

    # ── runners ─────────────────────────────────────────────────────────────────────────────

    def _changed(self, ended: list[MoveEnded]) -> None:
        """Start a runner for each daemon that has none, and wake the others: a move may have stopped or resumed them."""
        for move in ended:
            self._move_ended(move)
        if self._closing or self._halting:
            return
        for host in self._registry:
            if host.origin not in self._runners and host.origin not in self._stopped:
                self._start(host)
        for runner in self._runners.values():
            runner.wake()

    def _move_ended(self, move: MoveEnded) -> None:
        if move.error is None:
            self.seen[move.origin] = move.target
            self._record(FactKind.MOVED, move.origin, move.target)
            self.say(move.origin, "info", f"moved from {move.source:016x} to {move.target:016x}")
        else:
            self.move_failed(move.origin, move.target, str(move.error))
            self.say(move.origin, "warning", f"did not move to {move.target:016x}: {move.error}")
        for future in self._waiting.pop(move.origin, ()):
            if not future.done():
                future.set_result(move)

    def _start(self, host: DaemonHost) -> None:
        origin, spec = host.origin, self.specs[host.origin]
        publisher = None if spec.output is None else self.around.publisher(spec.output)
        replicated = spec.output is not None and self.around.is_replicated(spec.output)
        files = self._files
        assert files is not None
        assert self._moves is not None
        shop = Shop(
            act=partial(self._moves.act, wakes=False),
            store=files,
            wall=wall,
            reader=self._reader,
            largest=MAX_PAYLOAD if replicated else MAX_EVENT,
            revive=self._revive,
            ledger=self._ledger_of(spec),
            say=lambda level, text: self.say(origin, level, text),
            emitted=self.emitted,
        )
        runner = self._runners[origin] = DaemonRunner(host, publisher, shop, skips_gaps=spec.skips_gaps)
        self.seen[origin] = self.around.live.engine.node_id
        self.say(origin, "info", f"runs here after {host.moves} moves, with {host.head.sequence} outputs so far")
        self._announce(origin, runs=True)
        self._running[origin] = self._tasks.start(self._run(runner, publisher))

    async def _run(self, runner: DaemonRunner, publisher: ChannelPublisher | None) -> None:
        origin = runner.host.origin
        try:
            await runner.run()
        finally:
            del self._runners[origin], self._running[origin]
            if not self._closing:
                self._left(origin)
            if publisher is not None and not self.around.live.driver.closed:
                await publisher.close()
            self._changed([])  # it may have come back meanwhile

    def _left(self, origin: int) -> None:
        mark = None if self._files is None else self._files.marked(origin)
        if mark is not None and mark.status is Status.MOVED:
            self.seen[origin] = mark.target
            self.say(origin, "info", f"left for {mark.target:016x}")
        self._announce(origin, runs=False)

    def _announce(self, origin: int, *, runs: bool) -> None:
        """Tell others where the daemon is: its chain is here (engine/directory/chains.py)."""
        if self.around.live.driver.closed:
            return
        chains = self.around.live.engine.chains
        if runs:
            self.around.live.act(lambda _engine, now, _out: chains.announce_chain(origin, None, now))
        else:
            self.around.live.act(lambda _engine, now, _out: chains.withdraw_chain(origin, now))

    def _reader(self, position: InputPosition, wake: Callable[[], None]) -> InputReader:
        own = position.publisher == self.around.live.engine.node_id
        here = own or (not position.publisher and self.around.holds(position.channel))
        return InputReader(position, self.around.logs if here else None, self.around.subscribe, wake)

    def _revive(self, origin: int) -> DaemonHost:
        """Restore a daemon from its record; in the thread. Raises DaemonError."""
        assert self._files is not None
        try:
            stored, factory = self._files.load(origin), self._registry.factory(origin)
            if stored is None or factory is None:
                raise DaemonError(DaemonFault.RESTORE, origin, "it has no record here")
            return revive(stored, factory)
        except MalformedPacket as error:
            raise DaemonError(DaemonFault.RESTORE, origin, f"its record is damaged: {error}") from error

    # ── taking over ─────────────────────────────────────────────────────────────────────────

    def _ledger_of(self, spec: DaemonSpec) -> DaemonLedger | None:
        """Return the ledger of a daemon, and open it on first use."""
        channel = spec.checkpoints
        if channel is None:
            return None
        if channel not in self._ledgers:
            engine = self.around.live.engine

            def is_alive(node: int) -> bool:
                peer = engine.peers.get(node)
                return peer is not None and peer.health is not Health.FAILED

            self._ledgers[channel] = DaemonLedger(
                engine.node_id,
                self.around.publisher(channel),
                lambda wake: self._reader(InputPosition(0, channel), wake),
                is_alive,
            )
        return self._ledgers[channel]

    async def _watch(self, spec: DaemonSpec) -> None:
        """Take a daemon over when the node that it belongs to does not run it any more, and leave it when it was taken."""
        origin, ledger = spec.identity.origin_hash, self._ledger_of(spec)
        assert ledger is not None
        own, missing_since = self.around.live.engine.node_id, None
        while self.specs.get(origin) is spec:
            await asyncio.sleep(TAKEOVER_S / 10)
            owner = ledger.of(origin).node
            if owner != own and (runner := self._runners.get(origin)) is not None:
                runner.wake()  # another has claimed it, which one without events would not notice
            here = origin in self._registry or origin in self._stopped or self._halting
            busy = self._moves is not None and self._moves.handler.phase(origin) is not None
            if here or busy or owner is None or (owner != own and ledger.is_alive(owner)):
                missing_since = None
                continue
            if owner == own and (target := await self._handed_over(origin, ledger)) is not None:
                # It claims the daemon by itself, unless it has died or has no ledger.
                await ledger.pass_on(origin, ledger.of(origin).term, target)
                continue
            now = time.monotonic()
            missing_since = now if missing_since is None else missing_since
            if now - missing_since >= TAKEOVER_S and ledger.of(origin).snapshot is not None:
                missing_since = None
                if await ledger.take_over(origin):
                    self.say(origin, "warning", f"taken over from {owner:016x}, which does not run it any more")
                    await self._adopt(spec, ledger)

    async def _handed_over(self, origin: int, ledger: DaemonLedger) -> int | None:
        """Return to which node this one has handed the daemon over, in the term that the ledger has; None if it has not."""
        files = self._files
        assert files is not None

        def look(_handler: MigrationSubprotocolHandler, _now: float) -> tuple[int | None, list[Outbound]]:
            mark, stored = files.marked(origin), files.load(origin)
            if mark is None or stored is None or mark.status is not Status.MOVED or not stored.snapshot:
                return None, []
            is_same = ledger.has(origin, term_in(decode_snapshot(stored.snapshot).state))
            return (mark.target if is_same and mark.target != self.around.live.engine.node_id else None), []

        try:
            target: int | None = await self.act(look)
        except DaemonError:
            return None
        return target

    async def _adopt(self, spec: DaemonSpec, ledger: DaemonLedger) -> None:
        """Continue a daemon from the last checkpoint of its ledger."""
        origin, snapshot, files = spec.identity.origin_hash, ledger.of(spec.identity.origin_hash).snapshot, self._files
        assert snapshot is not None
        assert files is not None

        def adopt(handler: MigrationSubprotocolHandler, _now: float) -> tuple[None, list[Outbound]]:
            if handler.phase(origin) is not None or origin in handler.registry:
                return None, []
            before = files.marked(origin)
            moves = moves_in(decode_snapshot(snapshot).state) + 1
            mark = Mark(status=Status.ACTIVE, moves=moves, begun=() if before is None else before.begun)
            seed = spec.identity.seed if spec.identity.can_sign else None
            files.save(origin, Stored(mark=mark, snapshot=snapshot, seed=seed))
            handler.registry.add(self._revive(origin))
            return None, []

        try:
            await self.act(adopt)
        except MeshError as error:
            self._problems[origin] = str(error)
            self.say(origin, "error", str(error))

    async def _end_runners(self) -> None:
        for runner in self._runners.values():
            runner.stop()
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=CLOSE_S)

    # ── beginning again ─────────────────────────────────────────────────────────────────────

    def _halted(self, error: Exception) -> None:
        _logger.warning("daemons stopped: %s; they begin again from their records in %g s", error, REOPEN_S)
        self._halting = True
        for origin in self.specs:
            self._problems[origin] = str(error)
            self.say(origin, "error", f"stopped: {error}")
        self.counters.add("fail", "daemons_halted")
        if not self._closing:
            self._tasks.start(self._begin_again())

    async def _begin_again(self) -> None:
        while not self._closing:
            await self._end_runners()
            if self._moves is not None:
                await self._moves.close()
            if self._files is not None:
                await self._thread.call(self._files.close)
            await asyncio.sleep(REOPEN_S)
            try:
                await self.open(self._missing)
            except (MeshError, DaemonsHalted) as error:
                _logger.warning("daemons cannot begin again: %s; the next try is in %g s", error, REOPEN_S)
                continue
            for spec in list(self.specs.values()):
                if spec.identity.origin_hash not in self._stopped:
                    with suppress(MeshError):
                        await self._begin(spec)
                        self._problems.pop(spec.identity.origin_hash, None)
            return

    # ── what is known ───────────────────────────────────────────────────────────────────────

    def infos(self) -> list[DaemonInfo]:
        """Return what this node knows about daemons: those that it offers, and those of which it has a record."""
        files = self._files
        origins = [] if files is None else [*files.origins(), *files.damaged]
        return [self.info(origin) for origin in dict.fromkeys([*self.specs, *origins])]

    def info(self, origin: int) -> DaemonInfo:
        """Return what this node knows about a daemon."""
        files, spec, runner = self._files, self.specs.get(origin), self._runners.get(origin)
        host = self._registry.get(origin)
        mark = None if files is None else files.marked(origin)
        phase = None if self._moves is None else self._moves.handler.phase(origin)
        state = self._state(origin)
        return DaemonInfo(
            origin=origin,
            name=None if spec is None else spec.name,
            state=state,
            node=self._where(origin, state),
            phase=None if phase is None else phase.name.lower(),
            inputs=()
            if host is None
            else tuple(DaemonInput(str(one.channel), one.publisher or None, one.next_seq) for one in host.inputs),
            output=None if spec is None or spec.output is None else str(spec.output),
            outputs=None if host is None else host.head.sequence,
            processed=None if host is None else host.stats.processed,
            moves=host.moves if host is not None else None if mark is None else mark.moves,
            errors=0 if runner is None else runner.failures,
            error=self._problem(origin),
        )

    def _state(self, origin: int) -> DaemonState:
        files, runner = self._files, self._runners.get(origin)
        if files is not None and origin in files.damaged:
            return DaemonState.DAMAGED
        mark = None if files is None else files.marked(origin)
        if mark is None:
            return DaemonState.FAILED if origin in self._problems else DaemonState.OFFERED
        if mark.status is not Status.ACTIVE:
            return DaemonState.MOVED if mark.status is Status.MOVED else DaemonState.ARRIVING
        if runner is None:
            return DaemonState.FAILED if origin in self._problems else DaemonState.STOPPED
        if self._moves is not None and self._moves.handler.source.phase(origin) is not None:
            return DaemonState.MOVING
        if runner.failed:
            return DaemonState.FAILED
        return DaemonState.RUNNING if runner.problem is None else DaemonState.WAITING

    def _where(self, origin: int, state: DaemonState) -> int | None:
        mark = None if self._files is None else self._files.marked(origin)
        if mark is not None and mark.status is Status.ACTIVE:
            return self.around.live.engine.node_id
        own, seen = self.around.live.engine.node_id, self.seen.get(origin)
        if state is DaemonState.MOVED and mark is not None and seen in {None, own}:
            return mark.target or None
        return seen

    def _problem(self, origin: int) -> str | None:
        if self._files is not None and origin in self._files.damaged:
            return self._files.damaged[origin]
        runner = self._runners.get(origin)
        return self._problems.get(origin) if runner is None else runner.problem

    def say(self, origin: int, level: str, text: str) -> None:
        """Add a line to what happened to a daemon."""
        self._lines.setdefault(origin, deque(maxlen=MAX_LINES)).append(DaemonLine(time.time_ns(), level, text))

    def lines(self, origin: int) -> list[DaemonLine]:
        """Return what happened to a daemon, the oldest first."""
        return list(self._lines.get(origin, ()))

    def _listen(self, origin: int, name: str) -> None:
        """Keep what a daemon logs by itself."""
        logger = f"{_LOGGERS}.{name}"
        if logger not in self._handlers:
            handler = self._handlers[logger] = _Keeper(lambda level, text: self.say(origin, level, text))
            logging.getLogger(logger).addHandler(handler)

    def _noise_key_of(self, node: int) -> bytes | None:
        """Return the key with which a daemon's secret is sealed for a node; in the thread."""
        peer = self.around.live.engine.peers.get(node)
        entity = None if peer is None else peer.claims.entity_id
        if entity is None or not self.around.live.engine.carrier(Subprotocol.MIGRATION).agreed_with(node):
            return self.around.noise_key_of(node)
        return noise_public_key(entity)


class _Keeper(logging.Handler):
    """Passes log records on as lines."""

    def __init__(self, keep_line: Callable[[str, str], None]) -> None:
        super().__init__()
        self._keep_line = keep_line

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self._keep_line(record.levelname.lower(), self.format(record))


def _recovered(handler: MigrationSubprotocolHandler, now: float) -> tuple[None, list[Outbound]]:
    handler.recover(now)
    return None, []


def _guarded(spec: DaemonSpec) -> DaemonFactory:
    """Return the factory of a daemon, with errors of its code as DaemonError."""

    def create() -> Daemon:
        try:
            return spec.create()
        except (Exception, SystemExit) as error:
            problem = f"{spec.name!r} cannot be created: {error!r}"
            raise DaemonError(DaemonFault.RESTORE, spec.identity.origin_hash, problem) from error

    return create
