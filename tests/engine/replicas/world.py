"""A world of members under virtual time: a bad network, disks that lose what was not synced, clocks that drift.

Everything follows from one seed. Messages take the real codec. What clients were told goes to the checker (checker.py).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.leadership import Leadership
from meshbus.engine.replicas.records import (
    Acknowledged,
    Acks,
    AppendEvents,
    Committed,
    Halted,
    Newcomer,
    Out,
    PersistBallot,
    ReadReady,
    Refused,
    RoleChanged,
    Unresolved,
    Write,
)
from meshbus.wire.constants import FRAME_PREFIX_BYTES
from meshbus.wire.datarun import encode_data_run
from meshbus.wire.messages.leadership import Data, LeadershipMessage, decode_leadership, encode_leadership
from meshbus.wire.messages.redex import Role
from tests.engine.replicas.checker import Checker
from tests.engine.replicas.memorydisk import MemoryDisk

CHANNEL = bytes(32)
HEARTBEAT_S = 0.1


@dataclass
class Net:
    """How bad the network is."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_s: float = 0.01
    slow: float = 0.0
    """The share of messages that takes much longer."""
    cut: set[tuple[int, int]] = field(default_factory=set)
    """Directed links that carry nothing."""


@dataclass
class Host:
    """One machine."""

    node: int
    disk: MemoryDisk
    core: Leadership | None = None
    life: int = 0
    """Counts starts, so that nothing reaches a later life by mistake."""
    drift: float = 1.0
    offset_s: float = 0.0
    sync_s: float = 0.01
    damaged: int | None = None
    """The incarnation whose events were damaged."""
    tokens: dict[int, tuple[tuple[bytes, ...], int]] = field(default_factory=dict)
    """Appends without an outcome: the events, and what had been answered before."""
    reads: dict[int, int] = field(default_factory=dict)


class World:
    """Members of one replicated channel."""

    heeds_damage = True

    def __init__(self, seed: int, count: int, *, extra: int = 0) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.net = Net()
        self.checker = Checker()
        self.nodes = tuple(range(1, count + 1))
        self.hosts = {node: Host(node, self.new_disk(node)) for node in range(1, count + extra + 1)}
        self.wiped = False
        self.duels = False
        """Whether random delays are all the same, so that candidates meet each other."""
        self.fragile = 0.0
        """The share of ballots and starts of epochs during or soon after whose writing a machine loses power."""
        self.restaff = True
        """Whether a newcomer is made a member, as an operator would."""
        self.acked = 0
        self.messages = 0
        self.kinds: set[str] = set()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = 0
        self._token = 0

    def new_disk(self, node: int) -> MemoryDisk:
        """Return the empty disk of a machine."""
        return MemoryDisk()

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._counter += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._counter, action))

    def run(self, for_s: float) -> None:
        until = self.now + for_s
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until

    def run_until(self, done: Callable[[], bool], timeout_s: float = 60) -> None:
        until = self.now + timeout_s
        while not done():
            assert self.now < until, "the world does not get there"
            self.run(HEARTBEAT_S)

    def clock(self, host: Host) -> float:
        return self.now * host.drift + host.offset_s

    # ── machines ────────────────────────────────────────────────────────────────────────────

    def start(self, *nodes: int) -> None:
        for node in nodes or self.nodes:
            host = self.hosts[node]
            host.life += 1
            host.core = Leadership(
                CHANNEL,
                node,
                self._recovered(host),
                host.disk,
                ReplicaSettings(nodes=self.nodes, heartbeat_s=HEARTBEAT_S, max_waiting_events=256, window_bytes=20_000),
                entropy=self._entropy,
            )
            for other in self.hosts:
                host.core.welcome(other)
            self.carry_out(host, host.core.open(self.clock(host)))

    def _entropy(self, size: int) -> bytes:
        return bytes(size) if self.duels and size < 8 else self.rng.randbytes(size)

    def crash(self, node: int) -> None:
        host = self.hosts[node]
        host.life += 1
        host.core = None
        host.tokens.clear()
        host.reads.clear()
        host.disk.lose_power(self.rng)

    def wipe(self, node: int) -> None:
        self.crash(node)
        self.hosts[node].disk = self.new_disk(node)
        self.wiped = True

    def damage(self, node: int, count: int) -> None:
        """The last events on a disk become unreadable, which the machine notices when it starts again."""
        self.crash(node)
        host = self.hosts[node]
        if host.disk.content.ballot is not None:
            host.damaged = host.disk.content.ballot.incarnation
            host.disk.damage(count)
            self.wiped = True

    def _recovered(self, host: Host) -> Recovered:
        found = host.disk.content.recovered()
        # True until the new incarnation is on disk: a crash before that must not make it forget.
        is_damaged = found.ballot is not None and found.ballot.incarnation == host.damaged
        return msgspec.structs.replace(found, damaged=is_damaged and self.heeds_damage)

    def fail_disk(self, node: int) -> None:
        host = self.hosts[node]
        if host.core is not None:
            self.carry_out(host, host.core.disk_failed("no space left on device"))

    def cores(self) -> Iterable[tuple[Host, Leadership]]:
        return [(host, host.core) for host in self.hosts.values() if host.core is not None]

    def leader(self) -> Leadership | None:
        """The leader of the highest epoch that has reached a majority."""
        leads = [core for _, core in self.cores() if core.lead is not None and core.lead.established]
        return max(leads, key=lambda core: core.epoch, default=None)

    # ── clients ─────────────────────────────────────────────────────────────────────────────

    def append(self, node: int, count: int = 1, acks: Acks = Acks.MAJORITY, size: int = 0) -> int:
        host = self.hosts[node]
        self._token += 1
        if host.core is not None:
            payloads = tuple(b"%d.%d" % (self._token, place) + bytes(size) for place in range(count))
            host.tokens[self._token] = payloads, self.checker.begin()
            self.carry_out(host, host.core.append(self._token, payloads, acks, self.clock(host)))
        return self._token

    def read(self, node: int) -> None:
        host = self.hosts[node]
        if host.core is not None and host.core.lead is not None:
            self._token += 1
            host.reads[self._token] = self.checker.begin()
            self.carry_out(host, host.core.read(self._token, self.clock(host)))

    # ── effects ─────────────────────────────────────────────────────────────────────────────

    def carry_out(self, host: Host, out: Out) -> None:
        core = host.core
        assert core is not None
        for write in out.writes:
            host.disk.write(write)
        if out.writes:
            self._sync_later(host, out.writes[-1].number)
            if any(map(_is_weighty, out.writes)) and self.rng.random() < self.fragile:
                self._lose_power_later(host)
        for send in out.sends:
            for raw in _packets_of(send.message):  # type: ignore[arg-type]
                self._send(host.node, send.to, raw)
        for notice in out.notices:
            self._hear(host, core, notice)
        self._tick_later(host)

    def _sync_later(self, host: Host, number: int) -> None:
        life = host.life

        def sync() -> None:
            if host.life == life and host.core is not None and not host.core.halted:
                host.disk.sync(number)
                self.carry_out(host, host.core.durable(number, self.clock(host)))

        self.at(self.rng.uniform(0, 2 * host.sync_s), sync)

    def _lose_power_later(self, host: Host) -> None:
        life = host.life

        def lose() -> None:
            if host.life == life:
                self.crash(host.node)
                self.at(self.rng.uniform(0, HEARTBEAT_S), start)

        def start() -> None:
            if host.core is None:
                self.start(host.node)

        # The disk is done after twice `sync_s` at the latest; sometimes others have heard of it then.
        self.at(self.rng.uniform(0, self.rng.choice((2, 6)) * host.sync_s), lose)

    def _tick_later(self, host: Host) -> None:
        core, life = host.core, host.life
        due = None if core is None else core.next_timer()
        if due is None:
            return

        def tick() -> None:
            if host.life == life and host.core is core and core is not None:
                now = self.clock(host)
                wanted = core.next_timer()
                if wanted is not None and now + 1e-9 >= wanted:
                    self.carry_out(host, core.tick(now))

        self.at(max(0.0, (due - self.clock(host)) / host.drift) + 1e-6, tick)

    def _send(self, source: int, to: int, raw: bytes) -> None:
        self.messages += 1
        if (source, to) in self.net.cut or to not in self.hosts:
            return
        for _ in range(2 if self.rng.random() < self.net.duplication else 1):
            if self.rng.random() < self.net.loss:
                continue
            delay = self.rng.expovariate(1 / self.net.delay_s)
            if self.rng.random() < self.net.slow:
                delay += self.rng.uniform(0, 20 * HEARTBEAT_S)
            self.at(delay, lambda: self._deliver(source, to, decode_leadership(raw)))

    def _deliver(self, source: int, to: int, message: LeadershipMessage) -> None:
        host = self.hosts[to]
        self.kinds.add(type(message).__name__)
        if host.core is not None and (source, to) not in self.net.cut:
            self.carry_out(host, host.core.receive(source, message, self.clock(host)))

    def _hear(self, host: Host, core: Leadership, notice: object) -> None:
        match notice:
            case RoleChanged(role=Role.LEADER, epoch=epoch):
                self.checker.lead(epoch, host.node)
            case Committed(tail=tail):
                content = host.disk.content
                for seq in range(max(content.first, tail - 300), tail):
                    self.checker.commit(seq, content.payload_at(seq))
            case Acknowledged(token=token, first_seq=first, acks=acks):
                payloads, begun = host.tokens.pop(token)
                self.acked += 1
                if acks == Acks.MAJORITY:
                    self.checker.acknowledge(first, payloads, begun)
                else:
                    self.checker.acknowledge_local(first, payloads)
            case Refused(token=token) if token in host.tokens:
                self.checker.refuse(host.tokens.pop(token)[0])
            case Unresolved(token=token):
                del host.tokens[token]
            case ReadReady(token=token, committed=tail):
                self.checker.end_read(host.reads.pop(token), tail)
            case Newcomer(member=member) if self.restaff:
                self.at(HEARTBEAT_S, lambda: self._restaff(member.node))
            case Halted():
                life = host.life
                self.at(self.rng.uniform(0.5, 3), lambda: self._reopen(host, life))

    def _reopen(self, host: Host, life: int) -> None:
        if host.life == life:
            self.crash(host.node)
            self.start(host.node)

    def _restaff(self, node: int) -> None:
        """Remove the earlier incarnation of a node, and add the new one; repeat until the config has it."""
        leader = self.leader()
        if leader is None or leader.config is None:
            self.at(HEARTBEAT_S, lambda: self._restaff(node))
            return
        members = {member.node: member.incarnation for member in leader.config.members}
        host, now = self.hosts[leader.seat.own], self.clock(self.hosts[leader.seat.own])
        current = self.hosts[node].disk.content.ballot
        if current is not None and members.get(node) == current.incarnation:
            return
        change = leader.remove if node in members else leader.add
        self.carry_out(host, change(0, node, now))
        self.at(HEARTBEAT_S, lambda: self._restaff(node))

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def heal(self) -> None:
        """Repair everything and wait until all members have the same log."""
        self.net, self.duels, self.fragile = Net(), False, 0.0
        for host in self.hosts.values():
            host.sync_s = 0.01
            if host.core is None and host.life:
                self.start(host.node)
        before = len(self.checker.acknowledged)
        self.run_until(lambda: self._append_somewhere(before))
        self.run_until(self._is_settled)

    def check(self) -> None:
        contents = {host.node: host.disk.content for host, core in self.cores() if self._is_member(core)}
        logs = {
            node: {seq: payload for seq, (_, payload) in enumerate(content.events, content.first)}
            for node, content in contents.items()
        }
        aside = {payload for host in self.hosts.values() for _, _, payload in host.disk.content.aside}
        self.checker.final(logs, aside, self.wiped)

    def _append_somewhere(self, before: int) -> bool:
        leader = self.leader()
        if leader is not None:
            self.append(leader.seat.own)
        return len(self.checker.acknowledged) > before

    def _is_settled(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        tail = leader.seat.journal.tail
        members = [core for _, core in self.cores() if self._is_member(core)]
        config = leader.config
        assert config is not None
        everyone = {core.seat.own for core in members} >= {member.node for member in config.members}
        return everyone and all(core.committed == core.seat.journal.stable_tail == tail for core in members)

    def _is_member(self, core: Leadership) -> bool:
        leader = self.leader()
        return leader is not None and leader.config is not None and core.seat.member in leader.config.members


def _packets_of(message: LeadershipMessage) -> Iterable[bytes]:
    """Return the messages that travel, as the service writes them: each may be lost without the others."""
    if not isinstance(message, Data) or not message.payloads:
        return [encode_leadership(message)]
    run = encode_data_run(message)
    return [bytes(run.data[start + FRAME_PREFIX_BYTES : end]) for start, end in pairwise(run.bounds.tolist())]


def _is_weighty(write: Write) -> bool:
    """Return whether other members rely on a write: a promise, or the start of an epoch."""
    return isinstance(write, PersistBallot) or (isinstance(write, AppendEvents) and not write.payloads)
