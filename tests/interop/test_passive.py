"""Read what two nodes say to each other on real sockets, with nothing but the mesh key and a tap on the path."""

import pytest
from cryptography.exceptions import InvalidTag

from meshbus.node.node import Node
from meshbus.wire.header import aad_of, unpack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.seal import Opener
from tests.eavesdrop import End, handshake_hash
from tests.interop.lab import PSK, Lab, eventually, take
from tests.interop.tap import HANDSHAKE, HEADER_BYTES, NET, ROUTE_BYTES, ROUTED, Tap

CHANNEL = "convoy/position"
SECRET = b"the position of the convoy"


class Reader:
    """Opens every packet that the keys of a 0.23 handshake open; `near` begins the session."""

    def __init__(self, tap: Tap, near: Node, far: Node) -> None:
        self.plain = b""
        self.sealed = 0
        """Packets that could not be opened."""
        self._ends = [End(node.node_id, node.noise_public_key) for node in (near, far)]
        self._first: list[bytes] = []
        self._openers: list[tuple[Opener, bool]] = []
        tap.judge = self._look

    def _look(self, datagram: bytes, outgoing: bool) -> bool:
        packet = datagram[ROUTE_BYTES:] if datagram[:2] == ROUTED else datagram
        if packet[:2] != NET or len(packet) < HEADER_BYTES:
            return True
        header = unpack_header(packet)
        if header.flags == HANDSHAKE:
            self._handshake(packet[HEADER_BYTES:], outgoing)
            return True
        for opener, way in self._openers:
            if way is outgoing:
                try:
                    nonce = opener.nonce_prefix + header.nonce[4:]
                    self.plain += opener.aead.decrypt(nonce, packet[HEADER_BYTES:], aad_of(packet))
                except InvalidTag:
                    continue
                return True
        self.sealed += 1
        return True

    def _handshake(self, message: bytes, outgoing: bool) -> None:
        if outgoing:
            self._first.append(message)
            return
        for first in self._first:  # a repeated message 1 has another key
            hashed = handshake_hash(PSK, self._ends[0], self._ends[1], first, message)
            self._openers += [
                (Opener(derive_keys(hashed, Role.RESPONDER)), True),
                (Opener(derive_keys(hashed, Role.INITIATOR)), False),
            ]


@pytest.mark.parametrize("secure", ["off", "auto", "require"])
async def test_a_holder_of_the_mesh_key_reads_0_23_sessions_and_not_secure_ones(lab: Lab, secure: str) -> None:
    near, far = await lab.node(secure=secure), await lab.node(secure=secure)
    with Tap(near.address, far.address) as tap:  # not the lab's: those lead to plain peers
        reader = Reader(tap, near, far)
        await near.connect(tap.peer_address, public_key=far.public_key)
        await eventually(lambda: all(peer.profile for peer in (*near.peers, *far.peers)), "the nodes agree")
        async with far.subscribe(CHANNEL) as subscription:
            await near.publisher(CHANNEL).publish(SECRET)
            await near.publisher(CHANNEL, reliable=True).publish_batch([SECRET] * 100)
            assert await take(subscription, 101) == [SECRET] * 101
    if secure == "off":
        assert reader.plain.count(SECRET) >= 101
        assert not reader.sealed
    else:
        assert SECRET not in reader.plain
        assert CHANNEL.encode() not in reader.plain, "nor what was subscribed to"
        assert b"subprotocol:0x4d04" in reader.plain, "announcements can be read"
        assert reader.sealed
