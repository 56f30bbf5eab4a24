"""A real node whose driver is called with attackers' datagrams, on a clock that moves only when the benchmark says so.

Rate limits depend on time. On a clock that stands still they are used up after a while, and what a message costs then is
what refusing it costs; on one that moves, the difference is what the limits admit. The node is opened as an application
opens one: with a socket, logs, channels and a responder. Its answers really leave through the socket. Members are engines
with sockets of their own, which the benchmark pumps until they have sessions.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypedDict
from unittest import mock

from meshbus.config.policyfile import signed_content
from meshbus.engine.base.packets import Address, Output, PacketBatch
from meshbus.engine.core import Engine
from meshbus.engine.settings import EngineSettings
from meshbus.names.identity import Identity
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.node import Node
from meshbus.policy.capability import CapabilitySet
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.fleetpolicy import PolicyStatement

PSK = bytes(range(32))
CHANNELS = 100
"""Channels of the victim: what a prefix of an interest may match."""
LOGGED = "plant/logged"
ASKED = "plant/asked"
LOGGED_EVENTS = 20_000
ISSUER = Identity.from_seed(bytes(31) + b"i")
POLICY_VERSION = 7
_POLICY = b'unlisted_channels = "open"\n' + b"# a long policy is sent in many chunks\n" * 500
_MEETING_TURNS = 2_000


class SignedPolicy(TypedDict):
    """Options of a node that takes signed policies."""

    policy_file: Path
    policy_issuers: list[bytes]


class Clock:
    """Monotonic time that the benchmark moves."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        """Return the time, as a driver's clock does."""
        return self.now


class Member:
    """A node of the same mesh, without a loop: an engine and a socket that are pumped by hand."""

    def __init__(self, clock: Callable[[], float], *, recording: bool = False) -> None:
        self.clock = clock
        self.sent: list[bytes] | None = [] if recording else None
        """Every datagram that it sent, for those who recorded it."""
        self.socket = UdpSocket.bind("127.0.0.1", 0)
        self.engine = Engine(
            Identity.generate(os.urandom),
            EngineSettings(
                psk=PSK,
                loopback=True,
                carries=frozenset({Subprotocol.POLICY}),
                policy_issuers=(ISSUER.entity_id,),
            ),
            now=clock(),
            wall=lambda _: time.time_ns(),
            entropy=os.urandom,
        )
        self.engine.announce(CapabilitySet(), clock(), Output())

        self.address: Address = self.socket.address
        """Where its datagrams come from."""

    def act(self, call: Callable[[Engine, float, Output], object]) -> None:
        """Call the engine and send what it wants sent."""
        out = Output()
        call(self.engine, self.clock(), out)
        self._send(out)

    def pump(self) -> None:
        """Handle everything that has arrived, and what is due."""
        while (batch := self.socket.drain()) is not None:
            self._send(self.engine.receive(batch, self.clock()))
        self._send(self.engine.tick(self.clock()))

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _send(self, out: Output) -> None:
        if self.sent is not None:
            self.sent += [datagram for train in out.trains for datagram in train.datagrams()]
        self.socket.send(out.trains)


class Target(Protocol):
    """What attackers know about the node that they attack."""

    node_id: int

    def take(self, batch: PacketBatch) -> None:
        """Receive datagrams."""

    def another_peer(self, member: Member) -> int:
        """Return a peer of the node that is not this member."""

    def next_sequence(self, member: Member, stream_id: int) -> int | None:
        """Return up to which packet of a reliable stream the node has acknowledged."""


class Victim:
    """A node under attack, in this process."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self.node = node
        self.clock = clock
        self.engine = node.live.engine
        self.driver = node.live.driver
        self.node_id = node.node_id

    def take(self, batch: PacketBatch) -> None:
        """Handle a drain exactly as the driver does."""
        try:
            out = self.engine.receive(batch, self.clock())
        except Exception as error:  # noqa: BLE001 - as the driver does
            out = self.driver._failed(error)
        self.driver.apply(out)

    def another_peer(self, member: Member) -> int:
        """Return a peer that is not this member."""
        return next(peer.node_id for peer in self.engine.peers if peer.node_id != member.engine.node_id)

    def next_sequence(self, member: Member, stream_id: int) -> int | None:
        """Return the next packet that a reliable stream needs."""
        peer = self.engine.peers.require(member.engine.node_id)
        receiving = self.engine.streams.traffic_of(peer).reliable._receiving.get(stream_id)
        return None if receiving is None else receiving.rx.next_sequence

    async def settle(self) -> None:
        """Let the node's tasks and threads finish what the last drains caused, and its timers run."""
        for _ in range(3):
            await asyncio.sleep(0)
        pages = self.node._opened.pages._tasks
        while len(pages):  # noqa: ASYNC110 - pages of logs are read in threads, which nobody announces
            await asyncio.sleep(0)

    def leave(self, member: Member) -> None:
        """Remove a member, and close it."""
        self.node.disconnect(member.engine.node_id)
        member.close()

    async def meet(self, member: Member) -> None:
        """Give a member a session, and the profile."""
        host, port = self.node.address.rsplit(":", 1)
        address = (host, int(port))
        member.act(
            lambda engine, now, out: engine.connect(self.node.node_id, address, self.node.noise_public_key, now, out)
        )
        for _ in range(_MEETING_TURNS):
            await asyncio.sleep(0.001)
            self.clock.now += 0.01
            member.pump()
            peer = member.engine.peers.get(self.node.node_id)
            ours = self.engine.peers.get(member.engine.node_id)
            if all(one is not None and one.uses(Subprotocol.HISTORY) for one in (peer, ours)):
                return
        raise RuntimeError("the victim and a member did not agree on the profile")


@asynccontextmanager
async def victim(folder: Path) -> AsyncIterator[Victim]:
    """Open a node with channels, a log and a responder, on a clock that stands still."""
    clock = Clock()
    logged = {"name": LOGGED, "log": "published", "log_fsync": "never"}
    with mock.patch.object(Driver, "now", staticmethod(clock)):
        async with Node.open(
            psk=PSK.hex(), ephemeral=True, log_dir=folder, channels=[logged], **signed_policy(folder)
        ) as node:
            publishers = [node.publisher(f"plant/{number:03}") for number in range(CHANNELS)]
            log = node.publisher(LOGGED)
            for _ in range(20):
                await log.publish_batch([bytes(100)] * (LOGGED_EVENTS // 20))

            async def answer(question: bytes) -> bytes:
                return question

            async with node.respond(ASKED, answer):
                yield Victim(node, clock)
            del publishers


def signed_policy(folder: Path) -> SignedPolicy:
    """Write a policy that is open for all channels, signed by the issuer, and return the options of a node that takes it."""
    file = folder / "policy.toml"
    file.write_bytes(signed_content(PolicyStatement.sign(ISSUER, POLICY_VERSION, _POLICY), _POLICY))
    return {"policy_file": file, "policy_issuers": [ISSUER.entity_id]}


def drains(datagrams: Sequence[tuple[Address, bytes]], size: int) -> list[PacketBatch]:
    """Cut datagrams into drains of a socket."""
    return [PacketBatch.of(datagrams[start : start + size]) for start in range(0, len(datagrams), size)]
