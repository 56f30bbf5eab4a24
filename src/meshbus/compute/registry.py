"""Which daemons a node runs, and which it could run: hosts and factories, by the daemon's origin hash."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from meshbus.compute.daemon import DaemonFactory
from meshbus.compute.host import DaemonHost
from meshbus.errors import DaemonError, DaemonFault
from meshbus.names.identity import Identity


class Factory(msgspec.Struct, frozen=True, kw_only=True):
    """How a node creates a daemon that may move to it."""

    create: DaemonFactory
    identity: Identity | None = None
    """The daemon's key; None if the snapshot's envelope must bring it."""
    orchestrators: frozenset[int] | None = None
    """Nodes that may move the daemon, here or away from here; None for any peer. This node always may."""
    has_ledger: bool = False
    """Whether its checkpoints are in a ledger (compute/ledger.py)."""


class DaemonRegistry:
    """The daemons of one node."""

    def __init__(self) -> None:
        self._hosts: dict[int, DaemonHost] = {}
        self._factories: dict[int, Factory] = {}

    def __iter__(self) -> Iterator[DaemonHost]:
        return iter(list(self._hosts.values()))

    def __len__(self) -> int:
        return len(self._hosts)

    def __contains__(self, origin: object) -> bool:
        return origin in self._hosts

    def add(self, host: DaemonHost) -> None:
        """Take a daemon; raise DaemonError if it runs here already."""
        if host.origin in self._hosts:
            raise DaemonError(DaemonFault.DUPLICATE, host.origin, "it runs on this node already")
        self._hosts[host.origin] = host

    def get(self, origin: int) -> DaemonHost | None:
        """Return a daemon, or None."""
        return self._hosts.get(origin)

    def remove(self, origin: int) -> DaemonHost:
        """Remove a daemon and return it; raise DaemonError if it does not run here."""
        host = self._hosts.pop(origin, None)
        if host is None:
            raise DaemonError(DaemonFault.UNKNOWN, origin, "it does not run on this node")
        return host

    def offer(self, origin: int, factory: Factory) -> None:
        """Add the factory of a daemon that may move here; raise DaemonError if it has one already."""
        if origin in self._factories:
            raise DaemonError(DaemonFault.DUPLICATE, origin, "it has a factory on this node already")
        self._factories[origin] = factory

    def factory(self, origin: int) -> Factory | None:
        """Return the factory of a daemon, or None."""
        return self._factories.get(origin)

    def withdraw(self, origin: int) -> None:
        """Remove the factory of a daemon; nothing happens if there is none."""
        self._factories.pop(origin, None)
