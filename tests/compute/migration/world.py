"""A world of machines under virtual time, between which one daemon moves: bad network, crashes at every write.

Everything follows from one seed. Messages take the real codec. The daemon reads one log and publishes into the log of
the machine on which it runs, each batch under its number, as `publish_once` does. The checker holds that at most one
machine owns the daemon at any time, and in the end that all logs together have what a single machine would have
published.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import MigrationSettings, Outbound, Phase, Seat
from meshbus.compute.migration.handler import MigrationSubprotocolHandler
from meshbus.compute.recovery import keep, revive
from meshbus.compute.registry import DaemonRegistry, Factory
from meshbus.compute.store import Status
from meshbus.engine.base.counters import Counters
from meshbus.errors import MigrationError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.wire.messages.checkpoint import InputPosition
from meshbus.wire.messages.migration import decode_migration, encode_migration
from tests.compute.counter import Counter, run_alone
from tests.compute.memorystore import MemoryStore

DAEMON = Identity.from_seed(bytes(range(32)))
INPUT = InputPosition(99, ChannelName("numbers"))
STEP_S = 0.05
SETTINGS = MigrationSettings(
    resend_s=0.1, max_resend_s=0.8, give_up_s=3.0, burst=2, pace_s=0.01, cutover_lag=8, event_window=32
)


class Violation(AssertionError):
    """A promise was broken."""


class Crash(Exception):
    """The machine stops here and now."""


@dataclass
class Net:
    """How bad the network is."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_s: float = 0.005
    slow: float = 0.0
    """The share of messages that takes seconds, and so arrives in a later attempt."""


@dataclass
class Machine:
    """One node: what survives a crash, and the rest."""

    node: int
    store: MemoryStore = field(default_factory=MemoryStore)
    output: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """Batches by writer and number."""
    life: int = 0
    registry: DaemonRegistry = field(default_factory=DaemonRegistry)
    handler: MigrationSubprotocolHandler | None = None


class World:
    """Machines, the log that they all can read, and the daemon."""

    keeps_first = True
    """Whether outputs are published after a checkpoint has them."""
    keeps_staged = True
    """Whether a daemon that is staged survives a crash."""

    def __init__(self, seed: int, events: int, *, machines: int = 4, create: Callable[[], Counter] = Counter) -> None:
        self.rng = random.Random(seed)
        self.net = Net()
        self.crashes = 0.0
        """The probability of a crash at each write."""
        self.create = create
        self.payloads = [b"%d" % number for number in range(events)]
        self.available = 0
        self.now = 0.0
        self.moved = 0
        self.failed = 0
        self.crashed: dict[Phase | None, int] = {}
        """Crashes by the phase of the move at the time."""
        self.counters = Counters()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = 0
        self.machines = {node: Machine(node) for node in range(1, machines + 1)}
        for machine in self.machines.values():
            machine.store.crash_point = lambda machine=machine: self._crash_point(machine)  # type: ignore[misc]
            self.start(machine)
        first = self.machines[1]
        host = DaemonHost(DAEMON, self.create(), [INPUT])
        first.registry.add(host)
        keep(first.store, host, 0)

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

    def run_until(self, done: Callable[[], bool], timeout_s: float = 200) -> None:
        until = self.now + timeout_s
        while not done():
            if self.now >= until:
                raise Violation("the world does not get there")
            self.run(STEP_S)

    def entropy(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    # ── machines ────────────────────────────────────────────────────────────────────────────

    def start(self, machine: Machine) -> None:
        machine.life += 1
        machine.registry = DaemonRegistry()
        machine.registry.offer(DAEMON.origin_hash, Factory(create=self.create, identity=DAEMON))
        seat = Seat(
            own=machine.node,
            registry=machine.registry,
            store=machine.store,
            counters=self.counters,
            settings=SETTINGS,
            wall=lambda now: int(now * 1e9),
            entropy=self.entropy,
            static_private_key=bytes(31) + b"\1",
            noise_key_of=lambda _: None,
        )
        stored = machine.store.load(DAEMON.origin_hash)
        if stored is not None and stored.mark.status == Status.STAGED and not self.keeps_staged:
            del machine.store.records[DAEMON.origin_hash]
        factory = machine.registry.factory(DAEMON.origin_hash)
        assert factory is not None
        if stored is not None and stored.mark.status == Status.ACTIVE:
            machine.registry.add(revive(stored, factory))
        machine.handler = MigrationSubprotocolHandler(seat)
        machine.handler.recover(self.now)
        life = machine.life
        self.at(self.rng.uniform(0, STEP_S), lambda: self._live(machine, life))
        self._tick_later(machine)

    def crash(self, machine: Machine) -> None:
        handler = machine.handler
        if handler is None:
            return
        phase = handler.phase(DAEMON.origin_hash)
        self.crashed[phase] = self.crashed.get(phase, 0) + 1
        machine.handler = None
        machine.life += 1
        # Short ones are over before anyone notices; after a long one the others have given up.
        self.at(self.rng.choice([0.01, 0.3, 1.0, 5.0]), lambda: self.start(machine))

    def _crash_point(self, machine: Machine) -> None:
        if machine.handler is not None and self.rng.random() < self.crashes:
            self.crash(machine)
            raise Crash

    def _guarded(self, machine: Machine, action: Callable[[MigrationSubprotocolHandler], list[Outbound]]) -> None:
        """Let a machine do something, and send what comes of it if it is still there."""
        handler = machine.handler
        if handler is None:
            return
        try:
            out = action(handler)
        except Crash:
            self._check_owner()
            return
        self._check_owner()
        for ended in handler.take_ended():
            self.moved += ended.error is None
            self.failed += ended.error is not None
        for to, message in out:
            self._send(machine.node, to, encode_migration(message))
        self._tick_later(machine)

    # ── the daemon at work ──────────────────────────────────────────────────────────────────

    def _live(self, machine: Machine, life: int) -> None:
        """One turn of a machine: read, process, write a checkpoint, publish."""
        if machine.life != life or machine.handler is None:
            return
        self._guarded(machine, lambda handler: self._work(machine, handler))
        self.at(STEP_S * self.rng.uniform(0.5, 1.5), lambda: self._live(machine, life))

    def _work(self, machine: Machine, handler: MigrationSubprotocolHandler) -> list[Outbound]:
        host = machine.registry.get(DAEMON.origin_hash)
        if host is None:
            return []
        self.publish(machine, host)
        if not host.paused:
            (position,) = host.inputs
            end = min(position.next_seq + self.rng.randrange(60), self.available)
            for sequence in range(position.next_seq, end):
                handler.deliver(host.origin, DaemonEvent(position.origin, sequence, self.payloads[sequence]))
            if end > position.next_seq:
                if self.keeps_first:
                    keep(machine.store, host, 0)
                self.publish(machine, host)
                if not self.keeps_first:
                    keep(machine.store, host, 0)
        return handler.tick(self.now)

    def publish(self, machine: Machine, host: DaemonHost) -> None:
        """Append `pending` to the log of this machine, once (log/once.py)."""
        if not host.pending:
            return
        self._crash_point(machine)
        payloads = [output.payload for output in host.pending]
        if machine.output.setdefault((host.writer, host.batch), payloads) != payloads:
            raise Violation(f"batch {host.batch} has other rows when it is tried again")
        self._crash_point(machine)
        host.published()

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def _send(self, source: int, to: int, raw: bytes) -> None:
        for _ in range(2 if self.rng.random() < self.net.duplication else 1):
            if self.rng.random() < self.net.loss:
                continue
            delay = self.rng.expovariate(1 / self.net.delay_s)
            if self.rng.random() < self.net.slow:
                delay += self.rng.uniform(0, 6)
            self.at(delay, lambda: self._deliver(source, to, raw))

    def _deliver(self, source: int, to: int, raw: bytes) -> None:
        message = decode_migration(raw)
        self._guarded(self.machines[to], lambda handler: handler.handle(message, source, self.now))

    def _tick_later(self, machine: Machine) -> None:
        handler, life = machine.handler, machine.life
        due = None if handler is None else handler.next_timer()
        if due is None:
            return

        def tick() -> None:
            if machine.life == life and handler is not None:
                wanted = handler.next_timer()
                if wanted is not None and self.now + 1e-9 >= wanted:
                    self._guarded(machine, lambda handler: handler.tick(self.now))

        self.at(max(0.0, due - self.now) + 1e-6, tick)

    # ── moves ───────────────────────────────────────────────────────────────────────────────

    def owner(self) -> Machine | None:
        """The machine whose disk says that the daemon runs there."""
        owners = [machine for machine in self.machines.values() if self._is_active(machine)]
        if len(owners) > 1:
            raise Violation(f"the daemon belongs to {[machine.node for machine in owners]}")
        return owners[0] if owners else None

    def is_moving(self) -> bool:
        handlers = [machine.handler for machine in self.machines.values() if machine.handler is not None]
        return any(handler.orchestrator.phase(DAEMON.origin_hash) is not None for handler in handlers)

    def move(self) -> None:
        """Ask some machine to move the daemon to some other."""
        owner = self.owner()
        if owner is None:
            return
        target = self.rng.choice([node for node in self.machines if node != owner.node])
        driver = self.machines[self.rng.choice([owner.node, target, self.rng.choice(list(self.machines))])]

        def start(handler: MigrationSubprotocolHandler) -> list[Outbound]:
            try:
                return handler.start(DAEMON.origin_hash, owner.node, target, self.now, numbered=True)
            except MigrationError:
                return []

        self._guarded(driver, start)

    def cancel(self) -> None:
        """Ask whoever moves the daemon to take it back."""

        def cancel(handler: MigrationSubprotocolHandler) -> list[Outbound]:
            try:
                return handler.cancel(DAEMON.origin_hash, self.now)
            except MigrationError:
                return []

        for machine in self.machines.values():
            self._guarded(machine, cancel)

    # ── checks ──────────────────────────────────────────────────────────────────────────────

    def heal(self) -> None:
        """Repair everything, and wait until all events are processed."""
        self.net, self.crashes = Net(), 0.0
        self.available = len(self.payloads)
        self.run_until(self._is_done)

    def check(self) -> None:
        """Compare with a machine that runs alone."""
        state, outputs = run_alone(self.payloads)
        numbered: dict[int, bytes] = {}
        for machine in self.machines.values():
            for (_, batch), rows in machine.output.items():
                for number, row in enumerate(rows, batch):
                    if number in numbered:
                        raise Violation(f"output {number} was published twice")
                    numbered[number] = row
        published = [numbered[number] for number in sorted(numbered)]
        if sorted(numbered) != list(range(1, len(outputs) + 1)) or published != outputs:
            raise Violation(f"{len(published)} outputs were published, and {len(outputs)} expected, or others")
        owner = self.owner()
        host = None if owner is None else owner.registry.get(DAEMON.origin_hash)
        if host is None or self._state_of(host) != state:
            raise Violation("the state is not that of a single machine")

    def _is_done(self) -> bool:
        owner = self.owner()
        host = None if owner is None else owner.registry.get(DAEMON.origin_hash)
        if host is None or host.pending or host.paused or self.is_moving():
            return False
        return host.inputs[0].next_seq == len(self.payloads)

    def _is_active(self, machine: Machine) -> bool:
        mark = machine.store.marked(DAEMON.origin_hash)
        return mark is not None and mark.status == Status.ACTIVE

    def _check_owner(self) -> None:
        self.owner()

    @staticmethod
    def _state_of(host: DaemonHost) -> bytes:
        daemon = host.daemon
        assert isinstance(daemon, Counter)
        return Counter.snapshot(daemon)
