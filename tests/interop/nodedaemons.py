"""Daemons on one of our nodes as an application has them, under the names of tests: by origin hash."""

import itertools
from pathlib import Path
from typing import Any

from meshbus.compute.daemon import derive_daemon
from meshbus.keyfile import create_identity
from meshbus.node.daemons.daemoninfo import DaemonState
from meshbus.node.node import Node
from meshbus.testing.realdaemons import KINDS
from tests.interop.lab import PSK, Lab, eventually


class NodeDaemons:
    """The daemons of one of our nodes."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self._folder = folder
        self._names = map("daemon-{}".format, itertools.count())

    @classmethod
    async def open(cls, lab: Lab, folder: Path, **settings: Any) -> "NodeDaemons":
        """Start a node that runs daemons."""
        return cls(await lab.node(daemons_dir=folder / "daemons", **settings), folder)

    async def spawn(self, size: int, kind: str = "counter") -> tuple[bytes, int]:
        """Start a daemon, give it one event, and return its seed and origin hash."""
        name = next(self._names)
        identity = derive_daemon(PSK, name)
        await self.node.daemons.run(name, lambda: KINDS[kind](size))
        assert await self.deliver(identity.origin_hash, 1) == [b"1"]
        return identity.seed, identity.origin_hash

    async def expect(self, seed: bytes, origin: int, kind: str = "counter") -> None:
        """Take a daemon that moves here."""
        key = self._folder / f"{origin:016x}.key"
        create_identity(key, lambda _size: seed)
        await self.node.daemons.offer(next(self._names), KINDS[kind], key=str(key))

    async def deliver(self, origin: int, sequence: int) -> list[bytes]:
        """Deliver an event to a daemon that runs here; return its outputs."""
        return list(await self.node.daemons.deliver(origin, b"event", origin=7, sequence=sequence))

    async def move(self, origin: int, source: int, target: int) -> None:
        """Move a daemon as its orchestrator, and wait."""
        await self.node.daemons.move(origin, target, source=source)

    def runs(self, origin: int) -> bool:
        """Return whether a daemon runs here."""
        return self.node.daemons.get(origin).state is DaemonState.RUNNING

    async def started(self, origin: int) -> None:
        """Wait until a daemon runs here."""
        await eventually(lambda: self.runs(origin), "the daemon to run here")
