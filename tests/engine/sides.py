"""Nodes of ours and of the other implementation, and a network of virtual time between them.

`Side` is an engine with an address. `Reference` does what a net-mesh 0.23.0 node was seen to
do in a handshake, its mistakes included. `Net` carries datagrams with delay, loss, duplication and reordering.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol

from meshbus.engine.base.notices import Control
from meshbus.engine.base.packets import Address, Output, PacketBatch
from meshbus.engine.nat.reflex import Reflex
from meshbus.engine.services import SERVICES
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Row, Service
from meshbus.errors import RemoteProtocolError
from meshbus.names.identity import routing_id
from meshbus.testing.rig import PSK, replaced, rig
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES, Flags, Subprotocol
from meshbus.wire.datagram import DatagramKind, classify
from meshbus.wire.frames import unpack_frames
from meshbus.wire.handshake import (
    decode_handshake,
    decode_routed_handshake,
    encode_routed_handshake,
    pack_initiator_id,
    unpack_initiator_id,
)
from meshbus.wire.header import Buffer, unpack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.noise import Initiator, Responder, derive_public_key, prologue

OTHER_PSK = bytes(range(1, 33))
MESSAGE = 0x7777
"""A subprotocol that only tests use, for messages between sides."""


class Station(Protocol):
    """Something with an address on the simulated network."""

    address: Address

    def receive(self, source: Address, datagram: bytes, now: float) -> Output: ...
    def tick(self, now: float) -> Output: ...
    def next_timer(self) -> float | None: ...


class Mailbox(Service):
    """Keeps the messages that a side got."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes]] = []

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        self.got.append((peer.node_id, bytes(message)))


class MuteReflex(Reflex):
    """Never answers."""

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        pass


class Side:
    """A meshbus node with an address on the simulated network; options as for `rig`."""

    def __init__(
        self,
        number: int,
        *,
        node_id: int | None = None,
        address: Address | None = None,
        seed: int = 0,
        admit: Callable[[int], bool] = lambda _: True,
        answers_reflex: bool = True,
        **options: Any,
    ) -> None:
        self.node_id = number << 32 | 0xA000 + number if node_id is None else node_id
        self.address: Address = (f"10.0.0.{number}", 9000) if address is None else address
        mailbox = Mailbox()
        self.got = mailbox.got
        table = replaced(SERVICES, Handshakes, partial(Handshakes, admit=admit))
        if not answers_reflex:
            table = replaced(table, Subprotocol.REFLEX, MuteReflex)
        defaults: dict[str, Any] = {
            "static_private_key": bytes([number]) * 32,
            "entropy": random.Random(f"{number} {seed}").randbytes,
        }
        self.engine = rig(
            node_id=self.node_id,
            table=(*table, Row(lambda _context: mailbox, MESSAGE, "message")),
            **defaults | options,
        )
        self.peers, self.counters, self.handshakes = self.engine.peers, self.engine.counters, self.engine.handshakes
        self.log: list[tuple[float, Control]] = []

    @property
    def public_key(self) -> bytes:
        return self.handshakes.public_key

    def connect(
        self, other: Side | Reference, now: float, *, via: Address | None = None, key: bytes = b"", **options: Any
    ) -> Output:
        """Begin a handshake with another side, at its own address or another; options as for Handshakes.connect."""
        out = Output()
        address = other.address if via is None else via
        self.handshakes.connect(other.node_id, address, key or other.public_key, now, out, **options)
        return out

    def session_with(self, other: Side | Reference) -> int | None:
        peer = self.peers.get(other.node_id)
        return None if peer is None else peer.link.session_id

    def say(self, other: Side | Reference, message: bytes) -> Output:
        out = Output()
        self.peers.require(other.node_id).send_message(MESSAGE, message, out)
        return out

    def happened(self, kind: type) -> list[Control]:
        return [control for _, control in self.log if isinstance(control, kind)]

    def next_timer(self) -> float | None:
        return self.engine.next_timer()

    def tick(self, now: float) -> Output:
        return self._noted(self.engine.tick(now), now)

    def receive(self, source: Address, datagram: bytes, now: float) -> Output:
        return self._noted(self.engine.receive(PacketBatch.of([(source, datagram)]), now), now)

    def _noted(self, out: Output, now: float) -> Output:
        self.log += [(now, control) for control in out.control]
        return out


class Reference:
    """A running net-mesh 0.23.0 node in a routed handshake, as observed: what comes while it waits is its message 2."""

    TRIES, TIMEOUT_S, PAUSE_S, HEARTBEAT_S = 3, 5.0, 0.1, 5.0

    def __init__(self, number: int, *, node_id: int | None = None, seed: int = 0, gives_up_early: bool = False) -> None:
        self.node_id = number << 32 | 0xA000 + number if node_id is None else node_id
        self.address: Address = (f"10.0.0.{number}", 9000)
        self.public_key = derive_public_key(bytes([number]) * 32)
        self._static = bytes([number]) * 32
        self._entropy = random.Random(f"reference {number} {seed}").randbytes
        self._gives_up_early = gives_up_early
        self._target: Side | None = None
        self._initiator: Initiator | None = None
        self._due: float | None = None
        self._waiting = False
        self._try = 0
        self._beat_at = self.HEARTBEAT_S
        self.sessions: dict[int, Link] = {}
        self.failed = False
        self.got: list[bytes] = []

    def connect(self, other: Side, now: float) -> Output:
        self._target, self._try = other, 0
        out = Output()
        self._send(now, out)
        return out

    def session_with(self, other: Side) -> int | None:
        link = self.sessions.get(other.node_id)
        return None if link is None else link.session_id

    def next_timer(self) -> float | None:
        return self._beat_at if self._due is None else min(self._due, self._beat_at)

    def tick(self, now: float) -> Output:
        out = Output()
        if now >= self._beat_at:
            self._beat_at += self.HEARTBEAT_S
            for link in self.sessions.values():
                out.send(link.address, link.sealer.heartbeat())
        if self._due is not None and now >= self._due:
            if not self._waiting:
                self._send(now, out)
            else:
                self._pause(now)
        return out

    def receive(self, source: Address, datagram: bytes, now: float) -> Output:
        out = Output()
        match classify(datagram):
            case DatagramKind.ROUTED if datagram[ROUTE_BYTES + 3] & Flags.HANDSHAKE:
                self._handshake(source, datagram, now, out)
            case DatagramKind.NET if not datagram[3] & Flags.HANDSHAKE:
                self._data(datagram)
            case _:
                pass
        return out

    def _handshake(self, source: Address, datagram: bytes, now: float, out: Output) -> None:
        route, message = decode_routed_handshake(datagram)
        if (
            self._initiator is not None
            and self._target is not None
            and route.src_id == routing_id(self._target.node_id)
        ):
            self._read_answer(source, message, now)
            return
        responder = Responder(psk=PSK, prologue=prologue(route.src_id, self.node_id), static_private_key=self._static)
        try:
            node_id = unpack_initiator_id(responder.read(message), route.src_id)
        except RemoteProtocolError:
            return
        old = self.sessions.get(node_id)
        if old is not None and old.role is Role.INITIATOR:
            return  # "a different static key" while the old session is in use
        answer = responder.write(self._entropy(32))
        out.send(source, encode_routed_handshake(answer, sender=self.node_id, receiver=node_id))
        keys = derive_keys(responder.handshake_hash, Role.RESPONDER)
        self.sessions[node_id] = Link(keys, Role.RESPONDER, source, now)

    def _read_answer(self, source: Address, message: bytes, now: float) -> None:
        initiator, self._initiator = self._initiator, None
        assert initiator is not None
        assert self._target is not None
        try:
            initiator.read(message)
        except RemoteProtocolError:
            if self._gives_up_early:
                self._pause(now)
            return
        keys = derive_keys(initiator.handshake_hash, Role.INITIATOR)
        self.sessions[self._target.node_id] = Link(keys, Role.INITIATOR, source, now)
        self._due = None

    def _send(self, now: float, out: Output) -> None:
        assert self._target is not None
        self._initiator = Initiator(
            psk=PSK,
            prologue=prologue(self.node_id, self._target.node_id),
            responder_public_key=self._target.public_key,
            ephemeral_private_key=self._entropy(32),
        )
        message = self._initiator.write(pack_initiator_id(self.node_id))
        datagram = encode_routed_handshake(message, sender=self.node_id, receiver=self._target.node_id)
        out.send(self._target.address, datagram)
        self._try += 1
        self._waiting, self._due = True, now + self.TIMEOUT_S

    def _pause(self, now: float) -> None:
        self._initiator = None
        self._waiting = False
        self._due = None if self._try >= self.TRIES else now + self.PAUSE_S * self._try
        self.failed = self._due is None

    def _data(self, datagram: bytes) -> None:
        session_id = unpack_header(datagram).session_id
        for link in self.sessions.values():
            if link.session_id == session_id:
                header, payload = link.opener.open(datagram)
                for frame in unpack_frames(payload, header.event_count):
                    if header.subprotocol_id == MESSAGE:
                        self.got.append(bytes(frame))


class Net:
    """Datagrams on their way, in virtual time."""

    def __init__(
        self,
        *stations: Station,
        seed: int = 0,
        loss: float = 0.0,
        duplicate: float = 0.0,
        latency: float = 0.01,
        spread: float = 0.0,
    ) -> None:
        self.stations: dict[Address, Station] = {station.address: station for station in stations}
        self.now = 0.0
        self.sent: list[tuple[float, Address, Address, bytes]] = []
        self.loss, self.duplicate, self.latency, self.spread = loss, duplicate, latency, spread
        self._rng = random.Random(seed)
        self._flying: list[tuple[float, int, Address, Address, bytes]] = []
        self._number = count()

    def put(self, station: Station) -> None:
        """Attach a station, replacing the one that had its address."""
        self.stations[station.address] = station

    def emit(self, source: Address, out: Output) -> None:
        """Send the output of a station."""
        for train in out.trains:
            for datagram in train.datagrams():
                self.inject(source, train.address, datagram)

    def inject(self, source: Address, dest: Address, datagram: bytes) -> None:
        """Send one datagram, with any source address."""
        self.sent.append((self.now, source, dest, datagram))
        if self._rng.random() < self.loss:
            return
        for _ in range(2 if self._rng.random() < self.duplicate else 1):
            arrival = self.now + self.latency + self._rng.random() * self.spread
            heapq.heappush(self._flying, (arrival, next(self._number), dest, source, datagram))

    def run(self, until: float) -> None:
        """Advance the time."""
        while True:
            timers = [(timer, station) for station in self.stations.values() if (timer := station.next_timer())]
            timer, station = min(timers, key=lambda pair: pair[0])
            arrival = self._flying[0][0] if self._flying else float("inf")
            if min(timer, arrival) > until:
                self.now = until
                return
            if arrival <= timer:
                self.now, _, dest, source, datagram = heapq.heappop(self._flying)
                if dest in self.stations:
                    receiver = self.stations[dest]
                    self.emit(receiver.address, receiver.receive(source, datagram, self.now))
            else:
                self.now = max(self.now, timer)
                self.emit(station.address, station.tick(self.now))


def message_of(datagram: bytes) -> bytes:
    """Return the Noise message of a handshake datagram, routed or not."""
    if classify(datagram) is DatagramKind.ROUTED:
        return decode_routed_handshake(datagram)[1]
    return decode_handshake(datagram)


def is_handshake(datagram: bytes) -> bool:
    """Return whether a datagram carries a handshake packet."""
    offset = ROUTE_BYTES if classify(datagram) is DatagramKind.ROUTED else 0
    return len(datagram) >= offset + HEADER_BYTES and bool(datagram[offset + 3] & Flags.HANDSHAKE)
