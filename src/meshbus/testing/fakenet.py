"""Simulated network of engines on virtual time: many nodes, one clock, one seed, no sockets and no sleeps.

    net = FakeNet(seed=7, path=FakePath(loss=0.3, duplication=0.1, jitter_s=0.01))
    lidar, planner = net.create("lidar"), net.create("planner")
    planner.connect(lidar)
    net.run_until(lambda: planner.speaks_profile_with(lidar))
    planner.subscribe(lidar, "sensors/lidar")
    net.run(for_s=1)
    lidar.publish("sensors/lidar", [b"scan"])
    net.run(for_s=1)
    assert planner.payloads() == [b"scan"]

Datagrams have latency and may be lost, duplicated or reordered. They arrive at the next tick of the receiver; all that
arrive for one node at one tick are one batch, as from a drained socket. The network knows nothing of the protocol except
the kinds of datagrams. The same seed and the same calls give the same bytes at the same times; `digest` is a hash of
them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from hashlib import blake2s
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from typing import Any, NamedTuple, TypeVar

import msgspec

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import Control
from meshbus.engine.base.packets import Address, Output, PacketBatch
from meshbus.engine.channels.publication import Publication
from meshbus.engine.channels.publish import PublishConfig
from meshbus.engine.core import Engine
from meshbus.engine.services import SERVICES
from meshbus.engine.session.service import Row
from meshbus.engine.settings import EngineSettings
from meshbus.errors import Timeout
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Entropy, Identity
from meshbus.policy.capability import CapabilitySet
from meshbus.wire.constants import Subprotocol
from meshbus.wire.datagram import DatagramKind, classify
from meshbus.wire.frames import columns_of

PSK = bytes(range(32))
"""Mesh key of nodes made by `FakeNet.create`."""
TICK_S = 0.001
"""Time between two reads of a node's socket."""
MAX_TURNS = 10_000
"""Calls of one node at the same virtual time after which it counts as stuck in a loop."""

Kind = TypeVar("Kind", bound=Control)


class FakeClock:
    """Virtual time: `now` is monotonic time, `wall` is wall-clock time."""

    __slots__ = ("now", "unix_s")

    def __init__(self, unix_s: int = 1_700_000_000) -> None:
        self.now = 0.0
        self.unix_s = unix_s
        """Unix seconds when `now` is 0."""

    def wall(self, now: float) -> int:
        """Return Unix nanoseconds for a value of `now`."""
        return self.unix_s * 1_000_000_000 + round(now * 1e9)

    def advance(self, to: float) -> None:
        """Advance to a later time; an earlier time is ignored."""
        self.now = max(self.now, to)


class FakePath(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the path from one node to another."""

    latency_s: float = 0.001
    jitter_s: float = 0.0
    """Random delay of up to this much; if it exceeds the time between two datagrams, they may be reordered."""
    loss: float = 0.0
    """Fraction of datagrams that are lost."""
    duplication: float = 0.0
    """Fraction that arrives twice, at different times."""
    reordering: float = 0.0
    """Fraction that is delayed by `holdback_s`."""
    holdback_s: float = 0.02
    bandwidth: float = inf
    """Bytes per second."""
    queue_s: float = 0.1
    """How long a datagram may wait in the queue when the bandwidth is used up; if longer, it is lost."""


class Outcome(StrEnum):
    """What happened to a datagram."""

    ARRIVES = "arrives"
    TWICE = "twice"
    LOST = "lost"
    CONGESTED = "congested"
    CUT = "cut"
    """Sender and receiver are on different sides of a partition."""
    NOWHERE = "nowhere"
    """No node has this address."""


class Passage(NamedTuple):
    """One datagram that was sent."""

    at: float
    source: Address
    dest: Address
    datagram: bytes
    kind: DatagramKind
    outcome: Outcome


class Turn(NamedTuple):
    """Arguments of a call into an engine."""

    engine: Engine
    now: float
    out: Output


class FakeNode:
    """One engine on the network, and everything it reported."""

    def __init__(self, net: FakeNet, name: str, engine: Engine) -> None:
        self.net = net
        self.name = name
        self.engine = engine
        self.control: list[tuple[float, Control]] = []
        """Its notices, with their times."""
        self.events: list[EventBatch] = []
        """Event batches delivered to it."""
        self.received = 0
        """Number of events in them."""

    @property
    def node_id(self) -> int:
        """Node id."""
        return self.engine.node_id

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Call into the engine; at the end of the block its output is sent and collected."""
        out = Output()
        yield Turn(self.engine, self.net.clock.now, out)
        self.net.carry_out(self, out)

    def connect(self, other: FakeNode, **options: Any) -> None:
        """Start a session with another node; options are those of Engine.connect."""
        with self.turn() as (engine, now, out):
            engine.connect(other.node_id, other.name, other.engine.public_key, now, out, **options)

    def subscribe(self, other: FakeNode, channel: str, **options: Any) -> int:
        """Subscribe to a channel of another node; options are those of Engine.subscribe."""
        with self.turn() as (engine, now, out):
            return engine.subscribe(other.node_id, ChannelName(channel), now, out, **options)

    def publish(self, channel: str, events: Sequence[bytes], **config: Any) -> Publication:
        """Publish events; options are the fields of PublishConfig."""
        with self.turn() as (engine, now, out):
            return engine.publish(ChannelName(channel), *columns_of(events), PublishConfig(**config), now, out)

    def happened(self, kind: type[Kind]) -> list[Kind]:
        """Return the notices of one kind, oldest first."""
        return [event for _, event in self.control if isinstance(event, kind)]

    def payloads(self, channel: str | None = None) -> list[bytes]:
        """Return the delivered payloads, of one channel or of all."""
        return [payload for batch in self.events if channel in {None, batch.channel} for payload in batch.payloads()]

    def has_session_with(self, other: FakeNode) -> bool:
        """Return whether both nodes have the same session with each other."""
        mine, theirs = self.engine.peers.get(other.node_id), other.engine.peers.get(self.node_id)
        return mine is not None and theirs is not None and mine.link.session_id == theirs.link.session_id

    def speaks_profile_with(self, other: FakeNode) -> bool:
        """Return whether both nodes agreed on reliable streams in the same session."""
        pairs = ((self.engine, other.node_id), (other.engine, self.node_id))
        peers = [engine.peers.get(node_id) for engine, node_id in pairs]
        agreed = all(peer is not None and peer.uses(Subprotocol.RELIABLE) for peer in peers)
        return agreed and self.has_session_with(other)

    def forget(self) -> None:
        """Clear the collected notices and events."""
        self.control.clear()
        self.events.clear()
        self.received = 0


class FakeNet:
    """Engines and the simulated network between them."""

    def __init__(
        self, seed: int = 0, *, path: FakePath | None = None, tick_s: float = TICK_S, record: bool = False
    ) -> None:
        """Create an empty network; `path` applies between nodes without a path of their own.

        `record` keeps every datagram in `passages`; without it only the digest includes them.
        """
        self.clock = FakeClock()
        self.path = path or FakePath()
        self.nodes: dict[Address, FakeNode] = {}
        self.taps: list[Callable[[Passage], None]] = []
        """Called with every datagram that is sent, whether or not it arrives."""
        self.after_step: list[Callable[[], None]] = []
        """Called after everything at one virtual time has happened."""
        self.passages: list[Passage] = []
        self._seed = seed
        self._random = random.Random(f"net {seed}")  # noqa: S311  repeatable, not secret
        self._tick_s = tick_s
        self._record = record
        self._paths: dict[tuple[Address, Address], FakePath] = {}
        self._busy_until: dict[tuple[Address, Address], float] = {}
        self._sides: dict[Address, int] = {}
        self._flying: list[tuple[int, int, Address, Address, bytes]] = []
        """A heap: tick of arrival, order of sending, receiver, sender, datagram."""
        self._order = count()
        self._timers: Deadlines[str] = Deadlines()
        self._digest = blake2s()

    # ── nodes ───────────────────────────────────────────────────────────────────────────────

    def add(self, name: str, engine: Engine) -> FakeNode:
        """Add an engine at the address `name`, replacing any earlier one."""
        node = self.nodes[name] = FakeNode(self, name, engine)
        self._set_timer(node)
        return node

    def create(
        self,
        name: str,
        *,
        identity: Identity | None = None,
        entropy: Entropy | None = None,
        announces: bool = True,
        table: Sequence[Row] = SERVICES,
        clock_ahead_ns: int = 0,
        **settings: Any,
    ) -> FakeNode:
        """Create an engine and add it; settings are the fields of EngineSettings.

        Its identity and entropy are derived from the seed and the name, unless given. It announces itself, so that
        others learn which profile it supports. Its services are those of `table`. Its wall clock is
        `clock_ahead_ns` ahead of the net's.
        """
        chance = entropy or self.entropy(name)
        who = identity or Identity.generate(chance)
        chosen = EngineSettings(**{"psk": PSK, **settings})

        def wall(now: float) -> int:
            return self.clock.wall(now) + clock_ahead_ns

        engine = Engine(who, chosen, now=self.clock.now, wall=wall, entropy=chance, table=table)
        node = self.add(name, engine)
        if announces:
            with node.turn() as (engine, now, out):
                engine.announce(CapabilitySet(), now, out)
        return node

    def remove(self, name: str) -> None:
        """Remove a node, like a crash; datagrams in flight to it are lost."""
        del self.nodes[name]
        self._timers.drop(name)

    def entropy(self, name: str) -> Entropy:
        """Return the entropy source of a node."""
        return random.Random(f"{name} {self._seed}").randbytes  # noqa: S311  repeatable, not secret

    # ── paths ───────────────────────────────────────────────────────────────────────────────

    def set_path(self, source: str, dest: str, path: FakePath, *, both: bool = True) -> None:
        """Set the path between two nodes, in both directions or in one."""
        self._paths[source, dest] = path
        if both:
            self._paths[dest, source] = path

    def partition(self, *sides: Iterable[str]) -> None:
        """Partition the network: nodes reach only their own side; a node on no side reaches all."""
        self._sides = {name: number for number, side in enumerate(sides) for name in side}

    def heal(self) -> None:
        """End a partition."""
        self._sides = {}

    def inject(self, source: Address, dest: Address, datagram: bytes) -> None:
        """Send a datagram with any source address, as an attacker can; the path to the receiver applies."""
        path = self._paths.get((source, dest), self.path)
        outcome = self._outcome(source, dest, path)
        wait_s = self._wait_s(source, dest, len(datagram), path) if outcome in {Outcome.ARRIVES, Outcome.TWICE} else 0.0
        if wait_s > path.queue_s:
            outcome = Outcome.CONGESTED
        self._note(Passage(self.clock.now, source, dest, datagram, classify(datagram), outcome))
        copies = {Outcome.ARRIVES: 1, Outcome.TWICE: 2}.get(outcome, 0)
        for _ in range(copies):
            arrival = self.clock.now + wait_s + path.latency_s + self._random.random() * path.jitter_s
            if path.reordering and self._random.random() < path.reordering:
                arrival += path.holdback_s
            # Slightly less, because 3 * 0.1 > 0.3 in floating point.
            tick = ceil(arrival / self._tick_s - 1e-6)
            heappush(self._flying, (tick, next(self._order), dest, source, datagram))

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def run(self, *, for_s: float | None = None, until: float | None = None) -> None:
        """Advance time by `for_s`, or until the given time."""
        end = self.clock.now + for_s if for_s is not None else until
        assert end is not None, "pass for_s or until"
        while (at := self._next()) <= end:
            self._step(at)
        self.clock.advance(end)

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Advance time until a condition holds, which is checked after every step. Raises Timeout."""
        end = self.clock.now + timeout_s
        while not condition():
            at = self._next()
            if at > end:
                self.clock.advance(end)
                raise Timeout("the condition", timeout_s)
            self._step(at)

    @property
    def digest(self) -> str:
        """Return a hash of every datagram sent so far: time, addresses, bytes and outcome."""
        return self._digest.copy().hexdigest()

    def carry_out(self, node: FakeNode, out: Output) -> None:
        """Send the datagrams of an engine's output, and collect its notices and events."""
        node.control += [(self.clock.now, event) for event in out.control]
        node.events += out.events
        node.received += sum(map(len, out.events))
        for train in out.trains:
            for datagram in train.datagrams():
                self.inject(node.name, train.address, datagram)
        self._set_timer(node)

    def _next(self) -> float:
        """Return the time of the next arrival or timer."""
        arrival = self._flying[0][0] * self._tick_s if self._flying else inf
        timer = self._timers.next()
        return max(min(arrival, inf if timer is None else timer), self.clock.now)  # a timer may be overdue

    def _step(self, at: float) -> None:
        """Handle all arrivals and timers that are due at one time."""
        self.clock.advance(at)
        batches: dict[Address, list[tuple[Address, bytes]]] = {}
        # One batch per receiver and tick, as a node drains its socket: batches exercise the batch path of the engine.
        while self._flying and self._flying[0][0] * self._tick_s <= at:
            _, _, dest, source, datagram = heappop(self._flying)
            batches.setdefault(dest, []).append((source, datagram))
        for dest, datagrams in batches.items():
            if dest in self.nodes:  # it may have been removed while the datagram was in flight
                node = self.nodes[dest]
                self.carry_out(node, node.engine.receive(PacketBatch.of(datagrams), at))
        # Handling a timer may set another one for the same time, so ask until none is due.
        for turn in count():
            due = [name for name in self._timers.over(at) if name in self.nodes]
            if not due:
                break
            assert turn < MAX_TURNS, f"the timers of {due} stay at {at}: tick does not advance them"
            for name in due:
                self.carry_out(self.nodes[name], self.nodes[name].engine.tick(at))
        for look in self.after_step:
            look()

    def _set_timer(self, node: FakeNode) -> None:
        timer = node.engine.next_timer()
        if timer is None:
            self._timers.drop(node.name)
        else:
            self._timers.set(node.name, timer)

    # ── random faults ───────────────────────────────────────────────────────────────────────

    def _outcome(self, source: Address, dest: Address, path: FakePath) -> Outcome:
        if dest not in self.nodes:
            return Outcome.NOWHERE
        if self._sides.get(source) != self._sides.get(dest) and source in self._sides and dest in self._sides:
            return Outcome.CUT
        if path.loss and self._random.random() < path.loss:
            return Outcome.LOST
        return Outcome.TWICE if path.duplication and self._random.random() < path.duplication else Outcome.ARRIVES

    def _wait_s(self, source: Address, dest: Address, size: int, path: FakePath) -> float:
        """Return how long a datagram waits for earlier ones and for its own transmission."""
        now = self.clock.now
        free_at = max(self._busy_until.get((source, dest), now), now)
        # A datagram that would wait too long is dropped at the tail and does not occupy the link.
        wait_s = free_at - now + size / path.bandwidth
        if wait_s <= path.queue_s:
            self._busy_until[source, dest] = now + wait_s
        return wait_s

    def _note(self, passage: Passage) -> None:
        at, source, dest, datagram, kind, outcome = passage
        self._digest.update(f"{at!r} {source!r} {dest!r} {kind} {outcome} {len(datagram)} ".encode())
        self._digest.update(datagram)
        if self._record:
            self.passages.append(passage)
        for tap in self.taps:
            tap(passage)
