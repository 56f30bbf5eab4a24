"""Somebody between the nodes of a fake network who has the mesh key: listens, and changes or drops what he can read.

The hash of a 0.23 handshake is computed from what passes on the wire and the mesh key alone (tests/eavesdrop.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from meshbus.engine.base.packets import Address
from meshbus.testing.fakenet import PSK, FakeNet, FakeNode
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES, Flags
from meshbus.wire.datagram import DatagramKind, classify
from meshbus.wire.header import Header, aad_of, pack_header, unpack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.seal import Opener
from tests.eavesdrop import End, handshake_hash


class Read(NamedTuple):
    """A packet that the middle could decrypt."""

    source: Address
    header: Header
    payload: bytes


Change = Callable[[Read], bytes | None]
"""Returns the payload to pass on, or None to drop the packet."""


def unchanged(packet: Read) -> bytes:
    return packet.payload


class TappedNet(FakeNet):
    """A network on which everything passes through one place."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(seed, **options)
        self.change: Change = unchanged
        self.read: list[Read] = []
        """What could be decrypted, in order; heartbeats are left out."""
        self.unread: list[Header] = []
        """Headers of what could not."""
        self._firsts: dict[tuple[Address, Address], bytes] = {}
        self._keys: dict[tuple[int, Address], Opener] = {}
        """By session id and sender."""

    def inject(self, source: Address, dest: Address, datagram: bytes) -> None:
        """Look at a datagram, and pass it on, perhaps changed."""
        passed = self._look(source, dest, datagram)
        if passed is not None:
            super().inject(source, dest, passed)

    def seal(self, source: FakeNode, session_id: int, header: Header, payload: bytes) -> bytes:
        """Return a packet as if a node had sent it in a 0.23 session, with the counter of the header."""
        opener = self._keys[session_id, source.name]
        packed = pack_header(msgspec.structs.replace(header, payload_len=len(payload), session_id=session_id))
        nonce = opener.nonce_prefix + header.nonce[4:]
        return packed + opener.aead.encrypt(nonce, payload, aad_of(packed))

    def _look(self, source: Address, dest: Address, datagram: bytes) -> bytes | None:
        packet = datagram
        if classify(datagram) is DatagramKind.ROUTED:
            packet = datagram[ROUTE_BYTES:]
        elif classify(datagram) is not DatagramKind.NET:
            return datagram
        header = unpack_header(packet)
        if header.flags & Flags.HANDSHAKE:
            self._handshake(source, dest, packet[HEADER_BYTES:])
            return datagram
        if header.flags & Flags.HEARTBEAT or source not in self.nodes:
            return datagram
        opener = self._keys.get((header.session_id, source))
        if opener is None:
            self.unread.append(header)
            return datagram
        try:
            payload = opener.aead.decrypt(opener.nonce_prefix + header.nonce[4:], packet[HEADER_BYTES:], aad_of(packet))
        except Exception as error:  # InvalidTag: the keys are not those of the handshake
            raise AssertionError("a packet with the id of the handshake has other keys") from error
        self.read.append(Read(source, header, payload))
        changed = self.change(self.read[-1])
        if changed is None or changed == payload:
            return None if changed is None else datagram
        return datagram[: len(datagram) - len(packet)] + self.seal(
            self.nodes[source], header.session_id, header, changed
        )

    def _handshake(self, source: Address, dest: Address, message: bytes) -> None:
        first = self._firsts.pop((dest, source), None)
        if first is None or dest not in self.nodes:
            self._firsts[source, dest] = message
            return
        initiator, responder = (
            End(node.node_id, node.engine.public_key) for node in (self.nodes[dest], self.nodes[source])
        )
        hashed = handshake_hash(PSK, initiator, responder, first, message)
        for sender, role in ((source, Role.INITIATOR), (dest, Role.RESPONDER)):
            keys = derive_keys(hashed, role)
            self._keys[keys.session_id, sender] = Opener(keys)


def frames(payload: bytes) -> list[bytes]:
    """Return the events of a payload."""
    events = []
    while payload:
        size = int.from_bytes(payload[:4], "little")
        events.append(payload[4 : 4 + size])
        payload = payload[4 + size :]
    return events


def framed(event: bytes) -> bytes:
    """Return the payload of one event."""
    return len(event).to_bytes(4, "little") + event
