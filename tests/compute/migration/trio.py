"""Three nodes without a network: messages are passed by hand, so that a test sees and changes each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from meshbus.compute.daemon import Daemon
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import MigrationSettings, Outbound, Seat
from meshbus.compute.migration.handler import MigrationSubprotocolHandler
from meshbus.compute.registry import DaemonRegistry, Factory
from meshbus.engine.base.counters import Counters
from meshbus.names.identity import Identity
from meshbus.policy.reason import Reason
from meshbus.wire.messages.migration import MigrationMessage, decode_migration, encode_migration
from meshbus.wire.noise import derive_public_key
from tests.compute.counter import Stubborn
from tests.compute.memorystore import MemoryStore

DAEMON = Identity.from_seed(bytes(range(32)))
ORIGIN = DAEMON.origin_hash
SOURCE, TARGET, OTHER = 1, 2, 3


@dataclass
class Member:
    """One node, and the handler with its surroundings."""

    node: int
    registry: DaemonRegistry = field(default_factory=DaemonRegistry)
    store: MemoryStore = field(default_factory=MemoryStore)
    counters: Counters = field(default_factory=Counters)
    settings: MigrationSettings = field(default_factory=MigrationSettings)
    envelopes: bool = False

    def __post_init__(self) -> None:
        seat = Seat(
            own=self.node,
            registry=self.registry,
            store=self.store,
            counters=self.counters,
            settings=self.settings,
            wall=lambda now: int(now * 1e9),
            entropy=lambda size: bytes([self.node]) * size,
            static_private_key=_private_key(self.node),
            noise_key_of=lambda node: derive_public_key(_private_key(node)) if self.envelopes else None,
        )
        self.handler = MigrationSubprotocolHandler(seat)

    def counted(self, reason: Reason) -> int:
        return self.counters.get(*reason.counter)


class Trio:
    """A source with a daemon, a target with a factory, and a third node."""

    def __init__(
        self,
        create: Callable[[], Daemon] = Stubborn,
        *,
        identity: Identity | None = DAEMON,
        envelopes: bool = False,
        settings: MigrationSettings | None = None,
    ) -> None:
        chosen = settings or MigrationSettings()
        self.members = {node: Member(node, settings=chosen, envelopes=envelopes) for node in (SOURCE, TARGET, OTHER)}
        self.now = 0.0
        self.log: list[tuple[int, int, MigrationMessage]] = []
        """What was sent: from, to, message."""
        self.lost: Callable[[int, int, MigrationMessage], bool] = lambda _source, _to, _message: False
        self.host = DaemonHost(DAEMON, create())
        self[SOURCE].registry.add(self.host)
        self[SOURCE].registry.offer(ORIGIN, Factory(create=create, identity=DAEMON))
        self[TARGET].registry.offer(ORIGIN, Factory(create=create, identity=identity))

    def __getitem__(self, node: int) -> Member:
        return self.members[node]

    def start(self, driver: int = SOURCE, *, numbered: bool = True) -> None:
        self.carry(driver, self[driver].handler.start(ORIGIN, SOURCE, TARGET, self.now, numbered=numbered))

    def tick(self, after_s: float = 0.0) -> None:
        self.now += after_s
        for member in self.members.values():
            self.carry(member.node, member.handler.tick(self.now))

    def say(self, source: int, to: int, message: MigrationMessage) -> list[Outbound]:
        """Let one node say something to another, and return the answers instead of delivering them."""
        return self[to].handler.handle(decode_migration(encode_migration(message)), source, self.now)

    def carry(self, source: int, out: list[Outbound]) -> None:
        """Deliver messages, and the answers to them, in order."""
        waiting = [(source, to, message) for to, message in out]
        while waiting:
            source, to, message = waiting.pop(0)
            self.log.append((source, to, message))
            if not self.lost(source, to, message):
                waiting += [(to, answer_to, answer) for answer_to, answer in self.say(source, to, message)]

    def sequence(self) -> list[str]:
        """Return who sent what to whom, for instance `1>2 ActivateTarget`."""
        return [f"{source}>{to} {type(message).__name__}" for source, to, message in self.log]

    def runs_on(self) -> list[int]:
        return [node for node, member in self.members.items() if ORIGIN in member.registry]


def _private_key(node: int) -> bytes:
    return bytes([node]) * 32
