"""A fleet whose applications keep a ledger of what they sent and what they received, for tests/spark/test_truth.py.

    robot ── lossy proxy ── base          the base logs everything that it receives
    robot ── relay ── far                 so does the far reader
    robot ── gateway ── outside           the gateway records packets, and drops those of one channel
    legacy ── base                        a publisher that does not speak the profile

The robot runs three times and the base twice. Nothing here reads a log, a record or a table: the ledger has only what
`publish` returned and what subscriptions delivered.
"""

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from meshbus.config.node import NodeConfig
from meshbus.errors import ChannelError
from meshbus.names.identity import Identity
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.node import Node
from tests.patience import PATIENCE_S

PSK = bytes(32).hex()
SUBNETS = {
    "robot": "3.1",
    "base": "3.2",
    "far": "3.2",
    "relay": "3",
    "gateway": "3",
    "outside": "9",
    "legacy": "global",
}
LOGGED, LIVE, POSE, SECRET, PUBLIC, LOCAL, OLD = (
    "plan/steps", "state/battery", "state/pose", "plan/secret", "news/public", "news/local", "old/ticks"
)  # fmt: skip
RELIABLE = {LOGGED, LIVE}
LOSS = 0.1
FRAME_BYTES = 4
"""Each event of a packet is preceded by its length (transport.md)."""


class Sent(NamedTuple):
    """An event that an application published."""

    publisher: str
    channel: str
    payload: bytes
    copies: int
    """Subscribers that `publish` attempted to reach."""
    at_ns: int


class Got(NamedTuple):
    """An event that an application received."""

    receiver: str
    channel: str
    payload: bytes
    session: tuple[int, int]
    """Which runs of the publisher and of the receiver met: a session of their own."""
    timed: bool
    at_ns: int


class Ledger:
    """What the applications know."""

    def __init__(self, keys: dict[str, Identity]) -> None:
        self.keys = keys
        self.sent: list[Sent] = []
        self.got: list[Got] = []
        self.refused: list[str] = []
        self.runs = dict.fromkeys(keys, 0)

    def received(self, receiver: str, channel: str) -> list[Got]:
        return [got for got in self.got if (got.receiver, got.channel) == (receiver, channel)]


class Proxy(asyncio.DatagramProtocol):
    """Carries datagrams between whoever sends to it and one address, and drops some on the way there."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.loss = 0.0
        self.dropped = 0
        self._rng = random.Random(3)
        self._client: Any = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if addr == self.target:
            self._transport.sendto(data, self._client)
            return
        self._client = addr
        if self._rng.random() < self.loss:
            self.dropped += 1
        else:
            self._transport.sendto(data, self.target)


class Fleet:
    """The nodes, and what their applications do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        keys = {name: Identity.from_seed(hashlib.sha256(name.encode()).digest()) for name in SUBNETS}
        self.ledger = Ledger(keys)
        self._nodes: dict[str, Node] = {}
        self._stacks: dict[str, AsyncExitStack] = {}
        self._tasks = {name: TaskOwner("an application", logging.getLogger(__name__)) for name in SUBNETS}
        self._changed = asyncio.Event()

    async def start(self, name: str) -> Node:
        """Start a node, for the first time or again."""
        node = Node(NodeConfig.load(env={}, **self._settings(name)), self.ledger.keys[name])
        stack = self._stacks[name] = AsyncExitStack()
        await stack.enter_async_context(node)
        node.watch(lambda _: self._changed.set())
        self._nodes[name] = node
        self.ledger.runs[name] += 1
        return node

    async def stop(self, name: str) -> None:
        await self._tasks[name].close()
        await self._stacks[name].aclose()
        del self._nodes[name]

    async def stop_all(self) -> None:
        for name in list(self._nodes):
            await self.stop(name)

    async def listen(self, name: str, channel: str, publisher: str) -> None:
        """Subscribe, and write down what arrives until the node stops."""
        subscription = self._nodes[name].subscribe(channel)
        await self._stacks[name].enter_async_context(subscription)
        self._tasks[name].start(self._collect(name, channel, publisher, subscription))

    async def _collect(self, name: str, channel: str, publisher: str, subscription: Subscription) -> None:
        async for event in subscription:
            runs = self.ledger.runs
            session = runs[publisher], runs[name]
            timed = event.ts_ns is not None
            self.ledger.got.append(Got(name, channel, event.payload, session, timed, time.time_ns()))
            self._changed.set()

    async def publish(self, name: str, channel: str, count: int) -> bytes:
        """Publish events one by one, and return the last."""
        ledger = self.ledger
        payload = b""
        publisher = self._nodes[name].publisher(channel, reliable=channel in RELIABLE, wait_s=30.0)
        for _ in range(count):
            payload = b"%s %d " % (channel.encode(), len(ledger.sent)) + bytes(len(ledger.sent) % 50)
            at_ns = time.time_ns()
            report = await publisher.publish(payload)
            assert not report.errors, report
            ledger.sent.append(Sent(name, channel, payload, report.attempted, at_ns))
            await asyncio.sleep(0)
        if channel in RELIABLE:
            await publisher.flush(30.0)
        return payload

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.05):  # some of it is not announced by a notice
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def arrived(self, name: str, payload: bytes) -> None:
        """Wait until a node received an event."""
        await self.until(lambda: any(got.receiver == name and got.payload == payload for got in self.ledger.got))

    async def subscribed(self, publisher: str, name: str, *channels: str) -> None:
        """Wait until a publisher knows a subscriber, and the subscriber the publisher's clock."""
        node, other = self._nodes[publisher], self._nodes[name]
        await self.until(lambda: all(other.node_id in node.roster.members(channel) for channel in channels))

        def knows_clock() -> bool:
            peer = other.live.engine.peers.get(node.node_id)
            return peer is not None and peer.clock is not None

        if node.config.profile and other.config.profile:
            await self.until(knows_clock)

    async def reach(self, name: str, other: str) -> None:
        """Connect two nodes through the mesh."""
        node, target = self._nodes[name], self._nodes[other]
        await self.until(lambda: target.node_id in {route.node_id for route in node.mesh.routes})
        await node.connect(public_key=target.public_key)

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def _settings(self, name: str) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "psk": PSK,
            "heartbeat_s": 0.2,
            "session_timeout_s": 20.0,
            "subnet": SUBNETS[name],
            "tags": [f"at:{SUBNETS[name]}"],
            "name": None if name == "relay" else f"the-{name}",
        }
        rules = [{"match_tags": [f"at:{place}"], "target_subnet": place} for place in sorted({*SUBNETS.values()})]
        received = {"channels": [{"prefix": "", "log": "received"}]}
        match name:
            case "robot":
                secret = {"name": SECRET, "log": "published", "subscribe_caps": {"require_tags": ["role:boss"]}}
                logged = [{"name": channel, "log": "published"} for channel in (LOGGED, PUBLIC, LOCAL)]
                settings |= {"channels": [secret, *logged, {"prefix": "state/"}], "log_dir": self.folder / "site"}
            case "base":
                settings |= {"log_dir": self.folder / "site", **received}
            case "far":
                settings |= {"log_dir": self.folder / "far", **received}
            case "gateway":
                settings |= {
                    "gateway": True, "peer_subnets": ["3.1", "9"], "subnet_rules": rules,
                    "log_dir": self.folder / "site", "record_packets": True,
                    "channels": [{"name": PUBLIC}, {"name": LOCAL, "visibility": "subnet-local"}],
                }  # fmt: skip
            case "legacy":
                settings |= {"profile": False}
        return settings


async def run_fleet(folder: Path) -> Ledger:
    """Run the fleet, and return what its applications wrote down."""
    fleet = Fleet(folder)
    try:
        await _live(fleet)
    finally:
        await fleet.stop_all()
    return fleet.ledger


async def _live(fleet: Fleet) -> None:
    for name in SUBNETS:
        await fleet.start(name)
    port = int(fleet["base"].address.rpartition(":")[2])
    loop = asyncio.get_running_loop()
    transport, proxy = await loop.create_datagram_endpoint(
        lambda: Proxy(("127.0.0.1", port)), local_addr=("127.0.0.1", 0)
    )
    lossy = "{}:{}".format(*transport.get_extra_info("sockname"))

    async def meet() -> None:
        await fleet["robot"].connect(lossy, public_key=fleet["base"].public_key)

    try:
        await _first_run(fleet, proxy, meet)
        await _second_run(fleet, proxy, meet)
        await _third_run(fleet, proxy, meet)
    finally:
        transport.close()


async def _first_run(fleet: Fleet, proxy: Proxy, meet: Callable[[], Awaitable[None]]) -> None:
    """Everybody is there: a lossy link, a relay, a gateway, a refusal, a publisher without the profile."""
    await meet()
    await fleet["legacy"].connect(fleet["base"].address, public_key=fleet["base"].public_key)
    for helper, reader in (("relay", "far"), ("gateway", "outside")):
        for name in ("robot", reader):
            await fleet[name].connect(fleet[helper].address, public_key=fleet[helper].public_key)
        await fleet.reach("robot", reader)
    for channel in (LOGGED, LIVE, POSE):
        await fleet.listen("base", channel, "robot")
    await fleet.listen("base", OLD, "legacy")
    await fleet.listen("far", LIVE, "robot")
    for channel in (PUBLIC, LOCAL):
        await fleet.listen("outside", channel, "robot")
    try:
        await fleet["base"].subscribe_channel(fleet["robot"].node_id, SECRET)
    except ChannelError as error:
        fleet.ledger.refused.append(error.reason or "")
    await fleet.subscribed("robot", "base", LOGGED, LIVE, POSE)
    await fleet.subscribed("robot", "far", LIVE)
    await fleet.subscribed("robot", "outside", PUBLIC, LOCAL)
    await fleet.subscribed("legacy", "base", OLD)
    await fleet.publish("robot", SECRET, 5)
    await fleet.publish("robot", LOCAL, 30)
    await fleet.arrived("outside", await fleet.publish("robot", PUBLIC, 40))
    await fleet.arrived("base", await fleet.publish("legacy", OLD, 25))
    proxy.loss = LOSS
    await fleet.publish("robot", POSE, 300)
    await fleet.publish("robot", LIVE, 60)
    await fleet.publish("robot", LOGGED, 60)
    proxy.loss = 0.0
    await fleet.arrived("base", await fleet.publish("robot", POSE, 1))
    last = await fleet.publish("robot", LIVE, 1)
    await fleet.arrived("base", last)
    await fleet.arrived("far", last)
    await fleet.arrived("base", await fleet.publish("robot", LOGGED, 1))


async def _second_run(fleet: Fleet, proxy: Proxy, meet: Callable[[], Awaitable[None]]) -> None:
    """The robot restarts; then the base does, and misses what is published meanwhile."""
    for name in ("far", "outside", "legacy", "relay", "gateway", "robot"):
        await fleet.stop(name)
    await fleet.start("robot")
    await meet()
    await fleet.subscribed("robot", "base", LOGGED, LIVE, POSE)
    for channel in (LOGGED, LIVE, POSE):
        await fleet.arrived("base", await fleet.publish("robot", channel, 20))
    await fleet.stop("base")
    await fleet.until(lambda: not fleet["robot"].roster.members(LOGGED))
    for channel in (LOGGED, LIVE, POSE):
        await fleet.publish("robot", channel, 7)
    await fleet.start("base")
    proxy.target = ("127.0.0.1", int(fleet["base"].address.rpartition(":")[2]))
    await meet()
    for channel in (LOGGED, LIVE, POSE):
        await fleet.listen("base", channel, "robot")
    await fleet.subscribed("robot", "base", LOGGED, LIVE, POSE)
    for channel in (LOGGED, LIVE, POSE):
        await fleet.arrived("base", await fleet.publish("robot", channel, 20))


async def _third_run(fleet: Fleet, proxy: Proxy, meet: Callable[[], Awaitable[None]]) -> None:
    """The robot restarts once more."""
    await fleet.stop("robot")
    await fleet.start("robot")
    await meet()
    await fleet.subscribed("robot", "base", LOGGED, LIVE, POSE)
    proxy.loss = LOSS
    await fleet.publish("robot", POSE, 100)
    proxy.loss = 0.0
    for channel in (POSE, LIVE, LOGGED):
        await fleet.arrived("base", await fleet.publish("robot", channel, 10))
