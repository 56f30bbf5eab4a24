"""This node's member of one replicated channel: its disk, the appends that wait, and the events that are committed.

    append   collected until the end of the loop iteration → one append of the engine → acknowledged, or refused
    writes   carried out by the disk at once, synced together (replicadisk.py)
    commit   what a majority has on disk becomes readable; the leader also sends it to its subscribers

The rules are in engine/replicas; which node leads, and how a publish gets there, in replicapublish.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.publish import PublishConfig
from meshbus.engine.core import Engine
from meshbus.engine.replicas.coordinator import ReplicationCoordinator
from meshbus.engine.replicas.leadership import Leadership
from meshbus.engine.replicas.records import (
    Acknowledged,
    Acks,
    AppendEvents,
    Committed,
    ConfigChanged,
    Diverged,
    Gap,
    Halted,
    LeftBehind,
    Newcomer,
    Notice,
    Refusal,
    Refused,
    Resumed,
    RoleChanged,
    SetAside,
    SkipTo,
    Unresolved,
    Write,
)
from meshbus.engine.replicas.replication import Replication
from meshbus.engine.replicas.roles import TagEffect
from meshbus.engine.replicas.sets import ReplicaSets
from meshbus.errors import MeshError
from meshbus.names.channel import ChannelName
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.replicas.replicadisk import ReplicaDisk
from meshbus.node.replicas.replicaonce import Writers
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.wire.column import joined, nbytes_of
from meshbus.wire.frames import columns_of
from meshbus.wire.messages.append import Appended, Outcome
from meshbus.wire.messages.redex import Role, chain_of
from meshbus.wire.record import unpack_record

MAX_LINE_BYTES = 64 << 20
"""Bytes that may wait here because the engine has too much waiting: as much as waits there."""
MAX_UNCOMMITTED_BYTES = 64 << 20
"""Bytes of records in memory that a majority does not have yet. Publishers that wait for the leader alone may write more."""

BOUNDS = (
    Bound(
        name="replica_appends",
        what="appends of all publishers that wait for the leader of a replicated channel",
        by=By.PEER,
        per_node=None,
        per={"channel": MAX_LINE_BYTES},
        unit="bytes",
        full="an append is refused with BACKPRESSURE",
        counter="ReplicationError",
    ),
    Bound(
        name="replica_uncommitted",
        what="records that this node has and a majority does not",
        by=By.PEER,
        per_node=None,
        per={"channel": MAX_UNCOMMITTED_BYTES},
        unit="bytes",
        full="the oldest go from memory: when they are committed, subscribers find them in the log only",
        counter=forgotten("replica_uncommitted"),
    ),
)

_OUTCOMES = {
    Refusal.NOT_LEADER: Outcome.NOT_LEADER,
    Refusal.NO_MAJORITY: Outcome.NO_MAJORITY,
    Refusal.TOO_LARGE: Outcome.TOO_LARGE,
    Refusal.BACKPRESSURE: Outcome.BACKPRESSURE,
}

_logger = logging.getLogger("meshbus.node")


class _Waiting(NamedTuple):
    """An append that has no outcome yet."""

    records: Sequence[bytes]
    acks: Acks
    outcome: asyncio.Future[Appended]


class _Stored(NamedTuple):
    """Records that were written and are not known to be committed."""

    first_seq: int
    records: Sequence[bytes]


class Uncommitted:
    """The records that were written here and are not known to be committed, as far as memory allows: the newest."""

    def __init__(self, forget: Callable[[int], None]) -> None:
        """Keep nothing yet; `forget` is called with the number of records that go because there are too many."""
        self._parts: deque[_Stored] = deque()
        self._bytes = 0
        self._forget = forget

    def add(self, first_seq: int, records: Sequence[bytes]) -> None:
        """Add records behind the others."""
        self._parts.append(_Stored(first_seq, records))
        self._bytes += nbytes_of(records)
        while self._bytes > MAX_UNCOMMITTED_BYTES and len(self._parts) > 1:
            gone = self._parts.popleft()
            self._bytes -= nbytes_of(gone.records)
            self._forget(len(gone.records))

    def cut(self, first_seq: int) -> None:
        """Remove the records from a sequence on."""
        while self._parts and self._parts[-1].first_seq + len(self._parts[-1].records) > first_seq:
            last = self._parts.pop()
            self._bytes -= nbytes_of(last.records)
            if kept := last.records[: max(first_seq - last.first_seq, 0)]:
                self.add(last.first_seq, kept)

    def take(self, tail: int) -> tuple[int, Sequence[bytes]]:
        """Remove the records below a sequence, and return the sequence of the first of them, and them."""
        first, done = tail, list[Sequence[bytes]]()
        while self._parts and self._parts[0].first_seq < tail:
            part = self._parts.popleft()
            self._bytes -= nbytes_of(part.records)
            known = tail - part.first_seq
            if known < len(part.records):
                rest = part.records[known:]
                self._parts.appendleft(_Stored(tail, rest))
                self._bytes += nbytes_of(rest)
            first = min(first, part.first_seq)
            done.append(part.records[:known])
        return first, joined(done)


class ReplicaMember:
    """One member of one replicated channel."""

    def __init__(
        self,
        channel: ChannelName,
        channel_id: bytes,
        live: Live,
        disk: ReplicaDisk,
        on_halt: Callable[[str], None],
    ) -> None:
        self.channel = channel
        self.channel_id = channel_id
        self.disk = disk
        self.writers = Writers(disk)
        self.once = asyncio.Lock()
        """Held while records that may have been appended before are looked up and appended."""
        self._live = live
        self._on_halt = on_halt
        self._line: deque[_Waiting] = deque()
        """Appends that the engine does not have yet."""
        self._line_bytes = 0
        self._flushing = False
        self._paced = False
        """Whether appends wait until a follower that lacks too much has caught up."""
        self._tokens: dict[int, list[_Waiting]] = {}
        """Appends that the engine has, as it got them together."""
        self._token = 0
        self._changes: dict[int, asyncio.Future[Refusal | None]] = {}
        self._uncommitted = Uncommitted(lambda count: live.engine.counters.add("forget", "replica_uncommitted", count))
        self._shown = 0
        """How far the readers of the log were told that they can read."""
        self._restaffing: dict[int, int] = {}
        """Nodes that are to be members and are not, because they lost their memory, with their present incarnation."""
        self.dismissed: set[int] = set()
        """Nodes that an operator removed: they are not taken in again by themselves."""

    @property
    def core(self) -> Leadership | ReplicationCoordinator:
        """The member in the engine, to look at it."""
        return self._live.engine.replicas[self.channel_id]

    @property
    def leads(self) -> bool:
        """Whether this node leads the channel."""
        return self.core.role == Role.LEADER

    # ── appends ─────────────────────────────────────────────────────────────────────────────

    async def append(self, records: Sequence[bytes], acks: Acks, *, once: bool = False) -> Appended:
        """Append records if this node leads, and return what became of them; never raises for a refusal."""
        if not once:
            return await self._append(records, acks)
        async with self.once:
            if not self.leads:
                return self._not_leader()
            done = await self.writers.records_done(records)
            return await self._append(records[done:], acks)

    def _append(self, records: Sequence[bytes], acks: Acks) -> asyncio.Future[Appended]:
        waiting = _Waiting(records, acks, asyncio.get_running_loop().create_future())
        size = nbytes_of(records)
        if not self.leads:
            waiting.outcome.set_result(self._not_leader())
        elif self._line and self._line_bytes + size > MAX_LINE_BYTES:
            waiting.outcome.set_result(Appended(req=0, outcome=Outcome.BACKPRESSURE))
        else:
            self._line.append(waiting)
            self._line_bytes += size
            self._flush_soon()
        return waiting.outcome

    def _flush_soon(self) -> None:
        if self._line and not self._flushing and not self._paced:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Hand everything that waits to the engine, as one append for each kind of acknowledgement."""
        self._flushing = False
        line, self._line, self._line_bytes = list(self._line), deque(), 0
        for acks in Acks:
            group = [waiting for waiting in line if waiting.acks is acks]
            if not group:
                continue
            self._token += 1
            self._tokens[self._token] = group
            records = joined([waiting.records for waiting in group])
            self._act("append", self._token, records, acks)

    def _not_leader(self) -> Appended:
        return Appended(req=0, outcome=Outcome.NOT_LEADER, leader=self.core.leader or 0)

    # ── changes of the members ──────────────────────────────────────────────────────────────

    async def change(self, what: str, node: int) -> Refusal | None:
        """Add or remove a member; return why that is refused, or None when a majority has stored it."""
        self._token += 1
        outcome: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._changes[self._token] = outcome
        self._act(what, self._token, node)
        return await outcome

    def nodes(self) -> tuple[int, ...]:
        """Return the members by the config of the set; empty as long as there is none."""
        config = self.core.config
        return () if config is None else tuple(member.node for member in config.members)

    def has_settled(self, node: int, *, is_member: bool) -> bool:
        """Return whether this node leads, and a majority has stored a config in which another one is a member, or is none."""
        lead = self.core.lead
        return lead is not None and lead.config_stored and (node in self.nodes()) == is_member

    def reaches(self, node: int) -> bool:
        """Return whether a member is this node, or one with a session."""
        return node == self._live.engine.node_id or self._live.engine.peers.get(node) is not None

    def welcome(self, node: int) -> None:
        """Accept messages of a node that is to become a member."""
        self._live.engine.replicas.welcome(self.channel_id, node)

    def hand_over(self, node: int) -> None:
        """Ask another member to lead."""
        self._act("transfer", 0, node)

    # ── what the engine reports ─────────────────────────────────────────────────────────────

    def take(self, work: ReplicaWork) -> None:
        """Carry out what the engine asks for."""
        writes: Sequence[Write] = work.writes  # type: ignore[assignment]
        for write in writes:
            self._remember(write)
        self.disk.carry_out(writes)
        notices: Sequence[Notice] = work.notices  # type: ignore[assignment]
        for notice in notices:
            self._hear(notice)

    def durable(self, number: int) -> None:
        """Report to the engine how far the disk is."""
        self._act("durable", number)
        self._show()

    def disk_failed(self, problem: str) -> None:
        """Report to the engine that the disk failed."""
        self._act("disk_failed", problem)

    def close(self) -> None:
        """Leave everything that waits without an outcome that is known."""
        for group in [*self._tokens.values(), list(self._line)]:
            _resolve(group, Outcome.UNRESOLVED)
        self._tokens.clear()
        self._line.clear()
        self._end_changes(Refusal.NOT_LEADER)

    def _end_changes(self, outcome: Refusal | None) -> None:
        changes, self._changes = self._changes, {}
        for change in changes.values():
            if not change.done():
                change.set_result(outcome)

    def _remember(self, write: Write) -> None:
        match write:
            case AppendEvents() if write.payloads:
                self._uncommitted.add(write.first_seq, write.payloads)
                self.writers.stored(write.payloads)
            case SetAside(first_seq=first):
                self._uncommitted.cut(first)
                self.writers.forget()
            case SkipTo():
                self._uncommitted.cut(0)
                self.writers.forget()

    def _hear(self, notice: Notice) -> None:
        match notice:
            case Acknowledged(token=token, first_seq=first, confirmed=confirmed):
                self._acknowledge(token, first, Outcome.OK if confirmed else Outcome.UNCONFIRMED)
            case Refused(token=token, reason=reason):
                self._refuse(token, reason)
            case Unresolved(token=token):
                _resolve(self._tokens.pop(token, ()), Outcome.UNRESOLVED)
            case Resumed():
                self._paced = False
                self._flush_soon()
            case Committed(tail=tail):
                self._commit(tail)
            case RoleChanged(role=role, tag=tag):
                if role in {Role.CANDIDATE, Role.LEADER}:
                    self._live.engine.counters.add("replica", "led" if role == Role.LEADER else "elections")
                self._paced = False
                self._flush_soon()  # what waits here is refused, if this node leads no more
                if role != Role.LEADER:
                    self._end_changes(Refusal.NOT_LEADER)
                self._tag(tag)
            case Newcomer(member=member):
                self._restaffing[member.node] = member.incarnation
                self._restaff()
            case ConfigChanged():
                self._end_changes(None)
                self._restaff()
            case _:
                self._report(notice)

    def _report(self, notice: Notice) -> None:
        """Tell an operator what happened to this replica, or to another."""
        match notice:
            case LeftBehind(node=node):
                text = "%s: %016x stores events too slowly and is not waited for any more; it catches up on its own"
                _logger.warning(text, self.channel, node)
                self._live.engine.counters.add("replica", "left_behind")
            case Diverged(first_seq=first, count=count, epoch=epoch):
                text = "%s: %d events from sequence %d on, of epoch %d, were not acknowledged by a majority and are set aside"
                _logger.warning(text, self.channel, count, first, epoch)
                self._live.engine.counters.add("replica", "set_aside", count)
            case Gap(first_seq=first, until=until):
                _logger.warning("%s: the events %d to %d expired before they came here", self.channel, first, until - 1)
                self._live.engine.counters.add("gap", "replica", until - first)
            case Halted(problem=problem):
                self._live.engine.counters.add("fail", "replica_halted")
                self._on_halt(problem)

    def _tag(self, effect: TagEffect) -> None:
        """Tell others whether this node holds the log, so that readers find it."""
        chain = chain_of(self.channel_id)
        if effect is TagEffect.ANNOUNCE:
            self._live.act(lambda engine, now, _out: engine.chains.announce_chain(chain, self.core.committed, now))
        elif effect is TagEffect.WITHDRAW:
            self._live.act(lambda engine, now, _out: engine.chains.withdraw_chain(chain, now))

    def _acknowledge(self, token: int, first: int, outcome: Outcome) -> None:
        for waiting in self._tokens.pop(token, ()):
            count = len(waiting.records)
            if not waiting.outcome.done():
                waiting.outcome.set_result(Appended(req=0, outcome=outcome, first_seq=first, count=count))
            first += count
        self._flush_soon()

    def _refuse(self, token: int, reason: Refusal) -> None:
        change = self._changes.pop(token, None)
        if change is not None and not change.done():
            change.set_result(reason)
        group = self._tokens.pop(token, [])
        if reason is Refusal.BEHIND:
            self._paced = True
            self._live.engine.counters.add("replica", "paced")
        if reason is Refusal.BEHIND or (reason is Refusal.BACKPRESSURE and self._tokens):
            # There is room when something of what waits was acknowledged, or when a follower has caught up.
            self._line.extendleft(reversed(group))
            self._line_bytes += sum(nbytes_of(waiting.records) for waiting in group)
        else:
            _resolve(group, _OUTCOMES.get(reason, Outcome.NOT_LEADER), leader=self.core.leader or 0)

    def _commit(self, tail: int) -> None:
        """Make what a majority has on disk readable, and send it to the subscribers if this node leads."""
        self.disk.commit_to(tail)
        self.core.retained(self.disk.log.first_retained)
        first, records = self._uncommitted.take(tail)
        if records and self.leads and self._live.engine.admission.roster.members(self.channel):
            self._send(first, records)
        self._show()

    def _show(self) -> None:
        """Tell those who read the log how far they can: what is committed, and on this disk."""
        shown = self.disk.log.committed_tail
        if shown > self._shown:
            self._shown = shown
            self._live.act(lambda engine, now, out: engine.history.grew(self.channel, shown, now, out))

    def _send(self, first: int, records: Sequence[bytes]) -> None:
        payloads = [unpack_record(record).payload for record in records]
        config, counters = PublishConfig(reliable=True), self._live.engine.counters

        def send(engine: Engine, now: float, out: Output) -> None:
            prepared = engine.publications.prepare(self.channel, *columns_of(payloads), config, now)
            engine.publications.send(prepared, first, now, out)

        try:
            self._live.act(send)
        except MeshError as error:  # the events are in the log; only live subscribers miss them
            counters.add("fail", error.code)

    def _restaff(self) -> None:
        """Replace a member that lost its memory by what it is now: remove it, then add it."""
        core = self.core
        config = core.config
        if core.lead is None or config is None:
            return
        members = {member.node: member.incarnation for member in config.members}
        for node, incarnation in list(self._restaffing.items()):
            wanted = node in members or (node in core.seat.settings.nodes and node not in self.dismissed)
            if members.get(node) == incarnation or not wanted:
                del self._restaffing[node]
                continue
            # Refused while another change is under way; its end calls this again.
            self._act("remove" if node in members else "add", 0, node)
            return

    def _act(self, what: str, *arguments: object) -> None:
        def call(engine: Engine, now: float, out: Output) -> None:
            getattr(self._service(engine), what)(self.channel_id, *arguments, now, out)

        if not self._live.driver.closed:
            self._live.act(call)

    def _service(self, engine: Engine) -> ReplicaSets | Replication:
        return engine.replicas

    def fenced(self) -> bool:
        """Return whether this node leads and has not heard from a majority lately."""
        lead = self.core.lead
        return lead is not None and lead.fenced(Driver.now())


def _resolve(group: Sequence[_Waiting], outcome: Outcome, *, leader: int = 0) -> None:
    for waiting in group:
        if not waiting.outcome.done():
            waiting.outcome.set_result(Appended(req=0, outcome=outcome, leader=leader))
