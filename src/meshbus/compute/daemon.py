"""What a daemon is: an object that turns events into outputs, and that can write down and restore its state.

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def process(self, event: DaemonEvent) -> list[bytes]:
            self.count += 1
            return [str(self.count).encode()]

        def snapshot(self) -> bytes:
            return str(self.count).encode()

        def restore(self, state: bytes) -> None:
            self.count = int(state)

A daemon reads no clock and does no I/O of its own: everything it knows comes from events. It declares by attributes,
all optional, what it needs: `requirements` (a CapabilityFilter for the nodes it may run on) and `deterministic` (the
same events in the same order always give the same outputs, so that a move can copy a large state while it runs).
compute/host.py runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2s
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from meshbus.names.identity import KEY_BYTES, Identity
from meshbus.policy.capability import CapabilityFilter

_DAEMON_LABEL = b"meshbus-daemon-v1/"


class DaemonEvent(NamedTuple):
    """An event as a daemon sees it."""

    origin: int
    """Who emitted it: the origin hash of a daemon or node, or the name of a log in links (`InputPosition.origin`)."""
    sequence: int
    """Its number at the origin."""
    payload: bytes


@runtime_checkable
class Daemon(Protocol):
    """What every daemon can do."""

    def process(self, event: DaemonEvent) -> Sequence[bytes]:
        """Process one event, quickly, and return the payloads to publish."""
        ...


@runtime_checkable
class StatefulDaemon(Daemon, Protocol):
    """A daemon whose state can be kept and moved."""

    def snapshot(self) -> bytes | None:
        """Return the whole state, or None if there is none to keep."""
        ...

    def restore(self, state: bytes) -> None:
        """Take over a state, once, on a fresh instance before its first event."""
        ...


DaemonFactory: TypeAlias = Callable[[], Daemon]
"""Creates a fresh instance."""


def derive_daemon(psk: bytes, name: str) -> Identity:
    """Return the identity of a daemon that has no key of its own: every node of the mesh derives the same from its name."""
    return Identity.from_seed(blake2s(_DAEMON_LABEL + name.encode(), key=psk, digest_size=KEY_BYTES).digest())


def requirements_of(daemon: Daemon) -> CapabilityFilter:
    """Return the filter for nodes on which a daemon may run; without one it may run on any."""
    declared = getattr(daemon, "requirements", None)
    return declared if isinstance(declared, CapabilityFilter) else CapabilityFilter()


def is_deterministic(daemon: Daemon) -> bool:
    """Return whether a daemon declares that the same events always give the same outputs."""
    return bool(getattr(daemon, "deterministic", False))
