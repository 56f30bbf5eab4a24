"""What somebody reads who has the mesh keys and a tap on the path between two nodes: everything of 0.23 sessions."""

from cryptography.exceptions import InvalidTag

from meshbus.wire.header import aad_of, unpack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.seal import Opener
from tests.eavesdrop import End, handshake_hash
from tests.interop.tap import HANDSHAKE, HEADER_BYTES, NET, ROUTE_BYTES, ROUTED, Tap


class Reader:
    """Opens every packet that the keys of a 0.23 handshake open; `near` begins the session."""

    def __init__(self, tap: Tap, psks: list[bytes], near: End, far: End) -> None:
        self.psks = psks
        """The mesh keys in hand; more may come."""
        self.plain = b""
        self.sealed = 0
        """Packets that could not be opened."""
        self._near, self._far = near, far
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
        for psk in self.psks:
            for first in self._first:  # a repeated message 1 has another key
                hashed = handshake_hash(psk, self._near, self._far, first, message)
                self._openers += [
                    (Opener(derive_keys(hashed, Role.RESPONDER)), True),
                    (Opener(derive_keys(hashed, Role.INITIATOR)), False),
                ]
