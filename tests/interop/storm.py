"""A fleet of two meshbus nodes and a real net-mesh node whose members are restarted at random, again and again.

`west` and `east` are configured with each other and with `real`. What a real node needs from its application is done
here as an application would: it connects after every start, because its Noise key is a new one each time, and it asks
for its subscriptions again whenever a publisher was restarted. Nothing here helps the meshbus nodes: they come back by
themselves.

    news     every member publishes it and subscribes to it
    orders   reliable, from `west` to `east` and back
    log      logged by `west`, read by `east` from where its last life ended
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from meshbus.errors import MeshError, PartialDelivery
from meshbus.names.identity import Identity
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer, RealPeerError
from tests.interop.lab import PSK, Lab, eventually

NEWS, ORDERS, LOG = "storm/news", "storm/orders", "storm/log"
WHOLE_S = 60.0
"""How long the fleet may take to be whole again on a busy machine; a second or two is usual."""
TIMES: dict[str, Any] = {"heartbeat_s": 0.1, "session_timeout_s": 1.0, "membership_ack_timeout_s": 1.0}
REAL_TIMES = {"heartbeat_interval_ms": 100, "session_timeout_ms": 500}
PAUSE_S = 0.02


class Member:
    """One meshbus node of the fleet, over all its lives, and the application on it."""

    def __init__(self, lab: Lab, name: str, home: Path) -> None:
        self._lab = lab
        self.name = name
        self.place = free_place()
        self.home = home / name
        self.settings: dict[str, Any] = {"name": name, "identity": home / f"{name}.toml", "bind": self.place, **TIMES}
        self.identity: Identity = Node.open(psk=PSK.hex(), **self.settings).identity
        self._life: Node | None = None
        self.news: list[bytes] = []
        self.orders: list[bytes] = []
        """What came in this life."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def node(self) -> Node:
        """The node of this life."""
        assert self._life is not None
        return self._life

    @property
    def entry(self) -> dict[str, Any]:
        """What the others have about it in their configuration."""
        return {"address": self.place, "public_key": self.identity.entity_id.hex()}

    async def start(self, peers: list[dict[str, Any]], **settings: Any) -> None:
        """Begin a life."""
        self._life = await self._lab.node(**self.settings, **settings, peers=peers)
        self.news, self.orders = [], []
        for channel, into in ((NEWS, self.news), (ORDERS, self.orders)):
            subscription = await self.node.subscribe(channel).__aenter__()
            self.run(_collect(subscription, into))

    def run(self, work: Any) -> None:
        """Do something until the life ends."""
        self._tasks.append(asyncio.ensure_future(work))

    async def end(self, *, crash: bool) -> None:
        """End a life, with or without a goodbye."""
        if self._life is None:
            return
        if crash:
            self.node.live.driver.close()  # nothing is sent any more
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.node.close()

    def reaches(self, others: dict[int, bool]) -> bool:
        """Return whether it has live sessions with these nodes, which speak the profile or not, and they get its news."""
        peers = {peer.node_id: bool(peer.profile) for peer in self.node.peers if peer.health == "alive"}
        return peers == others and set(self.node.roster.members(NEWS)) == set(others)


class Storm:
    """The fleet, and what happens to it."""

    def __init__(self, lab: Lab, home: Path, seed: int) -> None:
        self._lab = lab
        self._random = Random(seed)
        self.west, self.east = Member(lab, "west", home), Member(lab, "east", home)
        self._place, self._seed = free_place(), self._random.randbytes(32)
        self.real: RealPeer
        self.logged: list[bytes] = []
        """What `west` has logged."""
        self.read: list[bytes] = []
        """What `east` has read of it."""
        self._logging = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Start every member."""
        self.real = self._new_real()
        await self._start_west()
        await self._start_east()
        await self._start_real()

    def turns(self, restarts: int) -> list[str]:
        """Return who is restarted when: in random order, and all about as often."""
        turns = (["west", "east", "real"] * restarts)[:restarts]
        self._random.shuffle(turns)
        return turns

    async def restart(self, who: str) -> str:
        """Restart a member, cleanly or not, and return what was done."""
        crash = self._random.random() < 0.5
        match who:
            case "west":
                await self._stop_logging()
                await self.west.end(crash=crash)
                await self._start_west()
            case "east":
                await self.east.end(crash=crash)
                await self._start_east()
            case _:
                await asyncio.to_thread(self.real.kill if crash else self.real.close)
                self.real = await asyncio.to_thread(self._new_real)
                await self._start_real()
        return f"{who} {'crashed' if crash else 'stopped'}"

    async def breathe(self) -> None:
        """Wait for less time than the fleet needs to recover."""
        await asyncio.sleep(self._random.uniform(0.0, 0.5))

    async def whole(self) -> float:
        """Wait until every session and every subscription is there, and return how long it took, in seconds."""
        clock = asyncio.get_running_loop().time
        began = clock()
        west, east, real = self.west.identity.node_id, self.east.identity.node_id, self.real.node_id
        async with asyncio.timeout(WHOLE_S):
            while True:
                whole = self.west.reaches({east: True, real: False}) and self.east.reaches({west: True, real: False})
                if whole and (await asyncio.to_thread(self.real.publish, NEWS, b"whole?"))["attempted"] == 2:
                    return clock() - began
                await self._resubscribe_real()
                await asyncio.sleep(PAUSE_S)

    async def end(self) -> None:
        """End the lives of the meshbus nodes."""
        for member in (self.west, self.east):
            await member.end(crash=False)

    async def finish_log(self) -> None:
        """Stop logging, and wait until everything was read."""
        await self._stop_logging()
        await eventually(lambda: len(self.read) >= len(self.logged), "the end of the log", WHOLE_S)

    # ── lives ───────────────────────────────────────────────────────────────────────────────

    async def _start_west(self) -> None:
        channels = [{"name": LOG, "log": "published"}, {"prefix": "storm/"}]
        await self.west.start([self.east.entry, self._real_entry()], channels=channels, log_dir=self.west.home)
        self._logging.set()
        self.west.run(self._write_log(self.west.node))

    async def _start_east(self) -> None:
        await self.east.start([self.west.entry, self._real_entry()])
        self.east.run(self._read_log(self.east.node))

    def _new_real(self) -> RealPeer:
        return self._lab.peer(seed=self._seed, bind=self._place, permissive_channels=True, **REAL_TIMES)

    async def _start_real(self) -> None:
        await asyncio.to_thread(self.real.start)
        for member in (self.west, self.east):
            key = member.node.noise_public_key
            await asyncio.to_thread(self.real.connect, member.place, key, member.identity.node_id)

    def _real_entry(self) -> dict[str, Any]:
        return {
            "address": self._place,
            "public_key": self.real.public_key.hex(),
            "node_id": f"{self.real.node_id:016x}",
        }

    async def _resubscribe_real(self) -> None:
        for member in (self.west, self.east):
            # Not before there is a session: it would wait 5 s for an answer on the old one.
            has_session = self.real.node_id in {peer.node_id for peer in member.node.peers}
            if has_session and self.real.node_id not in member.node.roster.members(NEWS):
                with suppress(RealPeerError, MeshError):
                    await asyncio.to_thread(self.real.subscribe_channel, member.identity.node_id, NEWS)

    # ── the log ─────────────────────────────────────────────────────────────────────────────

    async def _write_log(self, west: Node) -> None:
        publisher = west.publisher(LOG, wait_s=0.2)
        while self._logging.is_set():
            event = b"%d" % len(self.logged)
            self._idle.clear()
            with suppress(PartialDelivery):  # it was logged all the same
                await publisher.publish(event)
            self.logged.append(event)
            self._idle.set()
            await asyncio.sleep(PAUSE_S)

    async def _stop_logging(self) -> None:
        """Stop between two events, so that it is known what was logged."""
        self._logging.clear()
        async with asyncio.timeout(WHOLE_S):
            await self._idle.wait()

    async def _read_log(self, east: Node) -> None:
        while True:
            with suppress(MeshError):  # `west` is not there
                async with east.subscribe(LOG, publisher=self.west.identity.node_id, since=len(self.read)) as events:
                    await _collect(events, self.read)
            await asyncio.sleep(PAUSE_S)


def free_place() -> str:
    """Return a free address."""
    with UdpSocket.bind("127.0.0.1", 0) as chosen:
        return f"127.0.0.1:{chosen.address[1]}"


async def _collect(subscription: Subscription, into: list[bytes]) -> None:
    async for batch in subscription.batches():
        into += batch.payloads()


async def weather(home: Path, *, restarts: int, seed: int) -> None:
    """Restart nodes of a fleet at random; it must recover by itself, and everything reliable must be exact."""
    lab = Lab()
    storm = Storm(lab, home, seed)
    try:
        await storm.start()
        await storm.whole()
        done = []
        for who in storm.turns(restarts):
            await storm.breathe()
            done.append(await storm.restart(who))
        took_s = await storm.whole()
        print(f"whole {took_s:.2f} s after the last of {restarts} restarts: {', '.join(done)}")  # noqa: T201 - a measurement
        await _assert_news_flow(storm)
        await _assert_orders_are_exact(storm)
        await storm.finish_log()
        assert storm.read == storm.logged == [b"%d" % number for number in range(len(storm.logged))]
    finally:
        await storm.end()
        await lab.close()


async def _assert_news_flow(storm: Storm) -> None:
    west, east, real = storm.west, storm.east, storm.real
    await asyncio.to_thread(real.publish, NEWS, b"from real")
    for member, other in ((west, east), (east, west)):
        report = await member.node.publisher(NEWS).publish(f"from {member.name}")
        assert report.delivered == report.attempted == 2, report
        await _there(other.news, f"from {member.name}".encode())
        await _there(member.news, b"from real")
    heard: set[str] = set()
    async with asyncio.timeout(WHOLE_S):
        while not {"from west", "from east"} <= heard:
            heard |= {event.raw for event in await asyncio.to_thread(real.collect, 1)}


async def _assert_orders_are_exact(storm: Storm) -> None:
    """Live reliable streams: what the last life published arrives once and in order."""
    for member, other in ((storm.west, storm.east), (storm.east, storm.west)):
        expected = [b"%s %d" % (member.name.encode(), number) for number in range(500)]
        publisher = member.node.publisher(ORDERS, reliable=True)
        for order in expected:
            assert (await publisher.publish(order)).delivered == 1
        await _there(other.orders, expected[-1])
        assert other.orders == expected


async def _there(received: list[bytes], event: bytes) -> None:
    await eventually(lambda: event in received, f"{event!r}", WHOLE_S)
