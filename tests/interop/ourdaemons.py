"""The compute handlers of meshbus on a node, driven here by hand, so that a test has a whole party of a move to itself."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec

from meshbus.compute.daemon import Daemon, DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import MigrationSettings, Outbound, Phase, Seat
from meshbus.compute.migration.handler import MigrationSubprotocolHandler
from meshbus.compute.migration.orchestrator import MoveEnded
from meshbus.compute.registry import DaemonRegistry, Factory
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer
from meshbus.engine.settings import EngineSettings
from meshbus.names.identity import Identity
from meshbus.node.driving.setup import engine_settings
from meshbus.node.node import Node
from meshbus.testing.realdaemons import KINDS
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.migration import MigrationMessage, decode_migration, encode_migration
from tests.compute.memorystore import MemoryStore
from tests.interop.lab import Lab, eventually
from tests.patience import PATIENCE_S


async def carrying_node(lab: Lab) -> Node:
    """Start a node that takes part in moves."""

    def settings(*arguments: Any) -> EngineSettings:
        carries = frozenset({Subprotocol.MIGRATION})
        return msgspec.structs.replace(engine_settings(*arguments), carries=carries)

    with mock.patch("meshbus.node.node.engine_settings", settings):
        return await lab.node()


QUICK = MigrationSettings(resend_s=0.1, max_resend_s=0.2, give_up_s=1.5)
"""For moves in which messages are lost, or that end by a time-out."""
TICK_S = 0.005


class OurDaemons:
    """The daemons of one of our nodes, with a disk in memory."""

    def __init__(self, node: Node, settings: MigrationSettings = QUICK) -> None:
        self.node = node
        self.registry = DaemonRegistry()
        self.counters = Counters()
        self.keys: dict[int, bytes] = {}
        """Noise keys of nodes for which this one seals."""
        self.handler = MigrationSubprotocolHandler(
            Seat(
                own=node.node_id,
                registry=self.registry,
                store=MemoryStore(),
                counters=self.counters,
                settings=settings,
                wall=lambda _now: time.time_ns(),
                entropy=os.urandom,
                static_private_key=node.identity.noise_private_key,
                noise_key_of=self.keys.get,
            )
        )
        self._ended: dict[int, MoveEnded] = {}
        node.live.engine.reception.handlers[Subprotocol.MIGRATION] = self._hear

    def spawn(self, size: int, kind: str = "counter") -> tuple[bytes, int]:
        """Start a daemon, give it one event, and return its seed and origin hash."""
        seed = os.urandom(32)
        identity = Identity.from_seed(seed)
        self.registry.add(DaemonHost(identity, _create(kind, size)()))
        assert self.deliver(identity.origin_hash, 1) == [b"1"]
        return seed, identity.origin_hash

    def expect(self, seed: bytes, origin: int, *, envelope: bool, kind: str = "counter") -> None:
        """Take a daemon that moves here."""
        identity = None if envelope else Identity.from_seed(seed)
        self.registry.offer(origin, Factory(create=_create(kind, 8), identity=identity))

    def deliver(self, origin: int, sequence: int) -> list[bytes]:
        """Deliver an event to a daemon that runs here; return its outputs, which are published at once."""
        outputs = self.handler.deliver(origin, DaemonEvent(7, sequence, b"event"))
        self._publish()
        return [output.payload for output in outputs]

    async def runs(self, origin: int) -> None:
        """Wait until a daemon runs here."""
        await eventually(lambda: origin in self.registry, "the daemon to run here")

    async def freed(self, origin: int) -> None:
        """Wait until a daemon that was to leave goes on here."""
        async with asyncio.timeout(PATIENCE_S):
            while self.phase(origin) is not None:
                await asyncio.sleep(TICK_S)
                self.tick()

    def phase(self, origin: int) -> Phase | None:
        """Return how far a move is."""
        return self.handler.phase(origin)

    async def move(self, origin: int, source: int, target: int) -> MoveEnded:
        """Move a daemon as its orchestrator, and wait until the move has ended."""
        self.begin(origin, source, target)
        return await self.ended(origin)

    def begin(self, origin: int, source: int, target: int) -> None:
        """Begin to move a daemon."""
        now = asyncio.get_running_loop().time()
        self.node.live.act(
            lambda _engine, _now, out: self._send(self.handler.start(origin, source, target, now, numbered=False), out)
        )

    def cancel(self, origin: int) -> None:
        """Take a move back that began here."""
        now = asyncio.get_running_loop().time()
        self.node.live.act(lambda _engine, _now, out: self._send(self.handler.cancel(origin, now), out))

    async def ended(self, origin: int) -> MoveEnded:
        """Wait until a move that began here has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while origin not in self._ended:
                await asyncio.sleep(TICK_S)
                self.tick()
        return self._ended.pop(origin)

    def say(self, node_id: int, message: MigrationMessage) -> None:
        """Send a message that no handler has asked for."""
        self.node.live.act(lambda _engine, _now, out: self._send([(node_id, message)], out))

    def tick(self, after_s: float = 0.0) -> None:
        """Do what is due, or will be after some time."""
        now = asyncio.get_running_loop().time() + after_s
        self.node.live.act(lambda _engine, _now, out: self._send(self.handler.tick(now), out))
        self._ended |= {ended.origin: ended for ended in self.handler.take_ended()}

    def _hear(self, peer: Peer, message: memoryview, _now: float, out: Output) -> None:
        now = asyncio.get_running_loop().time()
        self._send(self.handler.handle(decode_migration(message), peer.node_id, now), out)
        self._publish()

    def _send(self, outbound: list[Outbound], out: Output) -> None:
        for to, message in outbound:
            self.node.live.engine.peers.require(to).send_message(Subprotocol.MIGRATION, encode_migration(message), out)

    def _publish(self) -> None:
        for host in self.registry:
            host.published()


def _create(kind: str, size: int) -> Callable[[], Daemon]:
    return lambda: KINDS[kind](size)
