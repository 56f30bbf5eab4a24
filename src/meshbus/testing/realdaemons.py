"""Daemons on a real net-mesh node: what realnode.py can be asked to do with the binding's compute runtime.

Each `do_…` method is a command of the node's process. A daemon has a kind, which says how it behaves, and a state of
any size: eight bytes with the number of events it has processed, and padding.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

PAUSE_S = 0.0001
"""Between two looks at the phase of a move. The binding's own `wait` looks every 50 ms (compute.md §7)."""


class Counter:
    """A daemon that answers each event with the number of events so far."""

    def __init__(self, size: int = 8) -> None:
        self.count = 0
        self._padding = bytes(size - 8)

    def process(self, _event: Any) -> list[bytes]:
        """Count."""
        self.count += 1
        return [str(self.count).encode()]

    def snapshot(self) -> bytes | None:
        """Return the count and the padding."""
        return self.count.to_bytes(8, "little") + self._padding

    def restore(self, state: bytes) -> None:
        """Continue."""
        self.count, self._padding = int.from_bytes(state[:8], "little"), bytes(state[8:])


class Stateless(Counter):
    """A counter that has nothing to move."""

    def snapshot(self) -> bytes | None:
        """Return None."""
        return None


class Refusing(Counter):
    """A counter that takes no state over."""

    def restore(self, state: bytes) -> None:
        """Raise an exception."""
        raise ValueError(f"refused {len(state)} bytes")


class Failing(Counter):
    """A counter that fails at every event after its first."""

    def process(self, event: Any) -> list[bytes]:
        """Raise an exception, after the first event."""
        if self.count:
            raise ValueError("failed")
        return super().process(event)


KINDS = {"counter": Counter, "stateless": Stateless, "refusing": Refusing, "failing": Failing}


class Moved(msgspec.Struct, frozen=True):
    """How a move went at its orchestrator."""

    seconds: float
    """Until the orchestrator had forgotten it."""
    phases: list[str]
    """Those that were seen; short ones may be missing."""


class RealDaemons:
    """The daemons of one real node."""

    def __init__(self, net: Any, mesh: Any) -> None:
        self._net = net
        self._runtime = net.DaemonRuntime(mesh)
        self._kinds: set[str] = set()
        self._moves: dict[int, Any] = {}

    def do_start_daemons(self) -> None:
        """Take part in moves from now on."""
        self._runtime.start()

    def do_spawn(self, kind: str, seed: bytes, size: int = 8) -> int:
        """Start a daemon with a state of `size` bytes; return its origin hash."""
        return int(self._runtime.spawn(self._kind(kind, size), self._net.Identity.from_seed(seed)).origin_hash)

    def do_expect(self, kind: str, origin: int) -> None:
        """Take a daemon that brings its key in an envelope."""
        self._runtime.expect_migration(self._kind(kind), origin)

    def do_expect_identity(self, kind: str, seed: bytes) -> None:
        """Take a daemon whose key is known here."""
        identity = self._net.Identity.from_seed(seed)
        self._runtime.register_migration_target_identity(self._kind(kind), identity)

    def do_deliver(self, origin: int, sender: int, sequence: int, payload: bytes) -> list[bytes]:
        """Deliver an event to a daemon; return its outputs."""
        event = self._net.CausalEvent(sender, sequence, payload)
        return [bytes(output) for output in self._runtime.deliver(origin, event)]

    def do_take_snapshot(self, origin: int) -> bytes | None:
        """Return a daemon's snapshot."""
        snapshot = self._runtime.snapshot(origin)
        return None if snapshot is None else bytes(snapshot)

    def do_remove(self, origin: int) -> None:
        """Stop a daemon."""
        self._runtime.stop(origin)

    def do_daemon_count(self) -> int:
        """Return the number of daemons here, including those that are only restored."""
        return int(self._runtime.daemon_count())

    async def do_move(self, origin: int, source: int, target: int, *, envelope: bool, seconds: float) -> Moved:
        """Move a daemon as its orchestrator, and wait; raises the binding's MigrationError if it fails."""
        options = {"transport_identity": envelope}
        started = time.perf_counter()
        move = self._runtime.start_migration_with(origin, source, target, options)
        self._moves[origin] = move
        phases: list[str] = []
        while (phase := move.phase()) is not None and time.perf_counter() < started + seconds:
            if phase not in phases[-1:]:
                phases.append(phase)
            await asyncio.sleep(PAUSE_S)
        elapsed = time.perf_counter() - started
        # Raises what went wrong, also that the time is up.
        await asyncio.to_thread(move.wait_with_timeout, 1)
        return Moved(elapsed, phases)

    def do_cancel(self, origin: int) -> None:
        """Cancel a move that began here."""
        self._moves[origin].cancel()

    def _kind(self, kind: str, size: int = 8) -> str:
        """Return the name of a factory, which the binding has to know by one argument."""
        name = f"{kind}/{size}"
        if name not in self._kinds:
            self._runtime.register_factory(name, lambda: KINDS[kind](size))
            self._kinds.add(name)
        return name
