"""Histories and groups of daemons on an open node, for applications (compute/coordination.py on the event loop).

    await node.coordination.hold("counter", [other])            # keep its history together with other nodes
    await node.coordination.prove("counter")                    # {node: Verdict.HOLDS}
    group = node.coordination.join(GroupSpec(seed=…, kind=GroupKind.STANDBY, size=2, nodes=(a, b)), Counter, output="counts")
    node.coordination.send(group, b"event")

Reports say what happened: another history of a daemon that won or lost, partitions, members that started or stopped. A
daemon whose history lost is stopped here; its branch is kept, also on disk, and `branches` returns it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from meshbus.compute.causal import EntityLog
from meshbus.compute.coordination import Coordination, Report
from meshbus.compute.daemon import DaemonEvent, DaemonFactory
from meshbus.compute.groups import GroupSpec
from meshbus.compute.heldchain import LostBranch
from meshbus.compute.host import DaemonHost
from meshbus.compute.member import Output as GroupOutput
from meshbus.compute.reconciling import CaughtUp, Diverged, Outbound
from meshbus.compute.registry import Factory
from meshbus.engine.base.notices import Control
from meshbus.errors import DaemonError, DaemonFault, LogError, MeshError
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.daemons.branchfiles import BranchFiles
from meshbus.node.daemons.coordinationport import CoordinationPort
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.setup import wall
from meshbus.node.driving.tasks import TaskOwner
from meshbus.policy.bound import Bound, By
from meshbus.policy.capability import CapabilityFilter
from meshbus.wire.messages.causal import CausalEvent
from meshbus.wire.messages.continuity import Verdict

MAX_REPORTS = 256
"""Reports that are kept for the application. Our choice."""
MAX_EARLY = 1_024
"""Outputs of a daemon whose history is not held, which are kept in case it will be. Our choice: a restart, until `hold`."""
PROOF_S = 5.0
"""How long a proof waits for the verdicts of other nodes."""
ROUTE_S = 5.0
"""How long a routed message waits for a new peer to agree on the profile."""
RETRY_S = 1.0
"""Pause before an output that could not be published is tried again."""

BOUNDS = (
    Bound(
        name="coordination_reports",
        what="reports about histories, groups and partitions",
        by=By.PEER,
        per_node=MAX_REPORTS,
        full="the oldest goes",
        counter="none: the log of the node has them all",
    ),
    Bound(
        name="early_outputs",
        what="outputs of a daemon of this node whose history is not held, or not yet",
        by=By.USER,
        per_node=None,
        per={"daemon": MAX_EARLY},
        full="the oldest goes; a history that is held later begins after it, or lacks it",
        counter="none: nobody asked for a history",
    ),
)

_logger = logging.getLogger("meshbus.node")
_SOON_S = 0.001

T = TypeVar("T")


class ChainStatus(NamedTuple):
    """What this node has of the history of a daemon."""

    origin: int
    first: int
    last: int
    members: tuple[int, ...]
    contested: bool
    """Whether another history of it is being settled."""
    branches: int
    """Branches that lost and are kept."""
    waiting: int
    """Outputs of a daemon of this node that are not in it yet: events before them are missing here, or it is contested."""


class Coordinating:
    """The histories and groups of one node."""

    def __init__(
        self,
        live: Live,
        origin_of: Callable[[str], int],
        publisher: Callable[[str], ChannelPublisher],
        host_of: Callable[[int], DaemonHost | None],
        stop: Callable[[int, str], None],
        connect: Callable[[int], Awaitable[None]],
        files: BranchFiles,
    ) -> None:
        """Set up; `host_of` returns a daemon that runs here, `stop` stops one and says why.

        `connect` opens a session with a node by its id.
        """
        self._live = live
        self._origin_of = origin_of
        self._publisher = publisher
        self._host_of = host_of
        self._stop = stop
        self._connect = connect
        self._files = files
        self._coordination = Coordination(live.engine.node_id, live.engine.counters, wall)
        self._port = CoordinationPort(self._coordination)
        self._reports: deque[Report] = deque(maxlen=MAX_REPORTS)
        self._outputs: dict[int, str] = {}
        """The channel for the outputs of each daemon of a group."""
        self._unpublished: deque[GroupOutput] = deque()
        self._publishing: asyncio.Task[None] | None = None
        self._early: dict[int, deque[CausalEvent]] = {}
        """What daemons emitted lately whose history is not held."""
        self._verdicts: dict[tuple[int, int], asyncio.Future[Verdict]] = {}
        self._tasks = TaskOwner("histories and groups", _logger)
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = time.time_ns()
        self._closed = False

    # ── histories ───────────────────────────────────────────────────────────────────────────

    def hold(self, daemon: str | int, members: Iterable[int]) -> None:
        """Keep the history of a daemon together with other nodes, which must do the same.

        Whatever it emits on one of them goes to all, and each checks that it continues the history, also when the daemon
        moves between them. Of what it emitted here before this call, the last 1024 outputs are added; a node that held the
        history before a restart should hold it again before the daemon has emitted more. Raises DaemonError if this node
        holds too many.
        """
        origin = self._origin(daemon)
        self._do(lambda coordination: coordination.keeper.hold(EntityLog(origin), members))
        self.emitted(self._early.pop(origin, ()))
        self._tasks.start(self._load(origin))

    def release(self, daemon: str | int) -> None:
        """Hold the history of a daemon no longer."""
        self._coordination.keeper.release(self._origin(daemon))

    def chains(self) -> Sequence[ChainStatus]:
        """Return the histories that this node holds."""
        keeper = self._coordination.keeper
        found = [chain for origin, _ in keeper.heads() if (chain := keeper.chain(origin)) is not None]
        return [
            ChainStatus(
                chain.origin,
                chain.range().first,
                chain.range().last,
                tuple(sorted(chain.members)),
                bool(chain.rivals),
                len(chain.branches),
                len(chain.waiting),
            )
            for chain in found
        ]

    def branches(self, daemon: str | int) -> Sequence[LostBranch]:
        """Return the branches of a daemon's history that lost, the oldest first. Raises DaemonError if it is not held."""
        chain = self._coordination.keeper.chain(self._origin(daemon))
        if chain is None:
            raise DaemonError(
                DaemonFault.UNKNOWN, self._origin(daemon), "this node does not hold its chain; call hold first"
            )
        return [branch for _, branch in chain.branches.items()]

    async def prove(self, daemon: str | int, *, timeout_s: float = PROOF_S) -> dict[int, Verdict]:
        """Send the proof of a daemon's history to the other nodes that hold it, and return what each of them found.

        A node that does not answer is left out. Raises DaemonError if the history is not held here, LocalProtocolError if
        it is empty.
        """
        origin = self._origin(daemon)
        out = self._coordination.keeper.prove(origin)
        loop = asyncio.get_running_loop()
        futures = {node: self._verdicts.setdefault((origin, node), loop.create_future()) for node, _, _ in out}
        self._do(lambda _coordination: out)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*futures.values())
        except TimeoutError:
            pass
        finally:
            for node in futures:
                self._verdicts.pop((origin, node), None)
        return {node: future.result() for node, future in futures.items() if future.done() and not future.cancelled()}

    def emitted(self, events: Sequence[CausalEvent]) -> None:
        """Add what a daemon of this node emitted to its history, if that is held; its checkpoint has it already."""
        if not events:
            return
        origin = events[0].link.origin_hash
        if origin in self._coordination.keeper:
            self._do(lambda coordination: coordination.keeper.emit(origin, events))
        else:
            self._early.setdefault(origin, deque(maxlen=MAX_EARLY)).extend(events)

    # ── whoever handles something ───────────────────────────────────────────────────────────

    async def route(
        self,
        subprotocol_id: int,
        message: bytes,
        *,
        requires: CapabilityFilter | None = None,
        timeout_s: float = ROUTE_S,
    ) -> int:
        """Send a message to the nearest node that handles a subprotocol and matches a filter, and return its id.

        A session with it is opened if there is none. Raises PeerError if no node does, or if it cannot be reached, and
        LocalProtocolError if this node does not carry the subprotocol.
        """
        engine = self._live.engine
        found = engine.find_handlers(subprotocol_id, Driver.now(), requires)
        others = [node for node in found if node != engine.node_id]
        if others and engine.peers.get(others[0]) is None:
            await self._connect(others[0])
            await self._live.agreed(others[0], subprotocol_id, timeout_s)
        return self._live.act(
            lambda engine, now, out: engine.route(subprotocol_id, message, now, out, capability_filter=requires)
        )

    # ── groups ──────────────────────────────────────────────────────────────────────────────

    def join(self, spec: GroupSpec, factory: DaemonFactory, *, output: str | None = None) -> int:
        """Take part in a group of daemons, and return its number; all nodes of the group must do so with the same spec.

        `output` is the channel for what its daemons emit on this node, which should be replicated if an output must be
        published exactly once wherever it was emitted. Raises DaemonError if this node takes part already.
        """
        for slot in spec.slots:
            if output is not None:
                self._outputs[spec.identity(slot).origin_hash] = output
        self._do(lambda coordination: coordination.join(spec, Factory(create=factory), Driver.now()))
        for slot in spec.slots:
            self._tasks.start(self._load(spec.identity(slot).origin_hash))
        return spec.group_id

    def send(self, group: int, payload: bytes, *, key: bytes | None = None, sequence: int | None = None) -> None:
        """Send an event to the member of a group that is to process it; events with the same key go to the same one.

        `sequence` numbers the events of this node upwards; one that comes again is ignored. A refusal is a report. Raises
        DaemonError if no member runs, or this node does not take part.
        """
        if sequence is None:
            self._numbers += 1
            sequence = self._numbers
        event = DaemonEvent(self._live.engine.identity.origin_hash, sequence, payload)
        self._do(lambda coordination: coordination.send(group, event, key))

    def runners(self, group: int) -> dict[int, int | None]:
        """Return the node that runs each member of a group, as far as this node knows."""
        member = self._coordination.group(group)
        return {slot: member.coordinator.runner(slot) for slot in member.spec.slots}

    @property
    def reports(self) -> Sequence[Report]:
        """What happened, the oldest first."""
        return tuple(self._reports)

    # ── driving ─────────────────────────────────────────────────────────────────────────────

    def take(self, notice: Control) -> bool:
        """Handle what the engine reported, and return whether nobody else has to."""
        if self._closed:
            return False
        taken = self._live.act(lambda engine, now, out: self._port.take(engine, notice, now, out))
        self._after()
        return taken

    async def close(self) -> None:
        """Stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for future in self._verdicts.values():
            future.cancel()
        await self._tasks.close()

    def _do(self, work: Callable[[Coordination], list[Outbound]]) -> None:
        self._send(work(self._coordination))
        self._after()

    def _send(self, messages: list[Outbound]) -> None:
        self._live.act(lambda engine, now, out: self._port.send(engine, messages, now, out))

    def _after(self) -> None:
        """Do what follows from a call: reports, outputs, the next timer."""
        for report in self._coordination.take_reports():
            self._report(report)
        for node, judged in self._coordination.keeper.take_verdicts():
            future = self._verdicts.get((judged.origin_hash, node))
            if future is not None and not future.done():
                future.set_result(judged.verdict)
        self._unpublished += self._coordination.take_outputs()
        if self._unpublished and (self._publishing is None or self._publishing.done()):
            self._publishing = self._tasks.start(self._publish())
        self._arm()

    async def _load(self, origin: int) -> None:
        """Take the branches that were kept before a restart."""
        found = await asyncio.to_thread(self._files.load, origin)
        chain = self._coordination.keeper.chain(origin)
        for branch in found:
            if chain is not None:
                chain.keep(branch)

    async def _save(self, branch: LostBranch) -> None:
        try:
            await asyncio.to_thread(self._files.save, branch)
        except LogError as error:
            _logger.warning("a branch that lost is kept in memory only: %s", error)

    def _report(self, report: Report) -> None:
        self._reports.append(report)
        if isinstance(report, Diverged):
            self._tasks.start(self._save(report.lost))
        match report:
            case Diverged(origin=origin, ours=True):
                _logger.warning("another history of daemon %016x won; the branch of this node is kept", origin)
                self._stop(origin, "another node wrote its history, and won; the branch of this node is kept")
            case CaughtUp(origin=origin) if self._is_behind(origin):
                self._stop(origin, "it goes on elsewhere: another node continued its history")
            case _:
                _logger.info("%s", report)

    def _is_behind(self, origin: int) -> bool:
        """Return whether a daemon of this node lacks events of its history: after a restart it only was not held yet."""
        host, chain = self._host_of(origin), self._coordination.keeper.chain(origin)
        if host is None or chain is None:
            return False
        (link, parent_hash), held = host.chain.end, chain.log.head.link.sequence
        return link.sequence < held or (link.sequence == held and parent_hash != chain.log.head_hash)

    async def _publish(self) -> None:
        """Publish what daemons of groups emitted, in order, each under its number in the history."""
        import pyarrow as pa

        while self._unpublished:
            output = self._unpublished[0]
            channel = self._outputs.get(output.origin)
            try:
                if channel is not None:
                    rows = pa.table({"payload": pa.array([output.payload], pa.large_binary())})
                    writer = f"daemon/{output.origin:016x}"
                    await self._publisher(channel).publish_once(rows, writer=writer, batch=output.sequence)
            except MeshError as error:
                _logger.warning("an output of daemon %016x is not published yet: %s", output.origin, error)
                await asyncio.sleep(RETRY_S)
                continue
            self._unpublished.popleft()
            self._coordination.published(output)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._coordination.next_timer()
        if due is not None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(max(due - Driver.now(), _SOON_S), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._live.driver.closed:
            self._live.act(self._port.tick)
            self._after()

    def _origin(self, daemon: str | int) -> int:
        return daemon if isinstance(daemon, int) else self._origin_of(daemon)
