"""Reads the messages of one subprotocol that pass between two nodes, and may hold some of them back.

Session keys follow from the mesh key and the two handshake messages, which anyone on the way sees (mesh.md §3), so a tap
can read what real nodes say to each other. The hash of the handshake is computed by other code than that of nodes.
"""

from collections.abc import Callable

from meshbus.wire.header import unpack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.migration import MigrationMessage, decode_migration
from meshbus.wire.seal import Opener
from tests.eavesdrop import End, handshake_hash
from tests.interop.tap import HANDSHAKE, HEADER_BYTES, NET, ROUTE_BYTES, ROUTED, Tap

MIGRATION = 0x0500


class Spy:
    """What two nodes say about moves, whichever of them began the session."""

    def __init__(self, tap: Tap, psk: bytes, near: End, far: End) -> None:
        """Listen at a tap; `near` is the end whose datagrams are outgoing."""
        self.heard: list[tuple[int, MigrationMessage]] = []
        """Messages with the node id of their sender."""
        self.raw: list[bytes] = []
        """The same messages as bytes."""
        self.drops: Callable[[int, MigrationMessage], bool] = lambda _sender, _message: False
        """Whether a message of a sender is held back; it is noted all the same."""
        self._psk = psk
        self._ends = {True: near, False: far}
        self._first: list[tuple[bool, bytes]] = []
        """The first messages of handshakes."""
        self._openers: dict[tuple[int, bool], Opener] = {}
        """By session id and direction."""
        tap.judge = self._judge

    def order(self, near: str, far: str) -> list[str]:
        """Return the same as `names` without repetitions, of which there may be some on a busy machine."""
        return list(dict.fromkeys(self.names(near, far)))

    def names(self, near: str, far: str) -> list[str]:
        """Return what was said as text, such as `A SnapshotReady`, with names for both ends."""
        spelled = {self._ends[True].node_id: near, self._ends[False].node_id: far}
        return [f"{spelled[sender]} {type(message).__name__}" for sender, message in self.heard]

    def _judge(self, datagram: bytes, outgoing: bool) -> bool:
        packet = datagram[ROUTE_BYTES:] if datagram[:2] == ROUTED else datagram
        if packet[:2] != NET or len(packet) < HEADER_BYTES:
            return True
        header = unpack_header(packet)
        if header.flags == HANDSHAKE:
            self._handshake(packet[HEADER_BYTES:], outgoing)
            return True
        if header.subprotocol_id != MIGRATION:
            return True
        payload = self._openers[header.session_id, outgoing].decrypt(header, packet)
        assert header.event_count == 1, "one message is one packet (compute.md §4)"
        raw = payload[4:]
        sender, message = self._ends[outgoing].node_id, decode_migration(raw)
        self.heard.append((sender, message))
        self.raw.append(raw)
        return not self.drops(sender, message)

    def _handshake(self, message: bytes, outgoing: bool) -> None:
        for initiates, first in self._first:
            if initiates is not outgoing:
                found = handshake_hash(self._psk, self._ends[initiates], self._ends[not initiates], first, message)
                for role, way in ((Role.RESPONDER, initiates), (Role.INITIATOR, outgoing)):
                    keys = derive_keys(found, role)
                    self._openers[keys.session_id, way] = Opener(keys)
        self._first.append((outgoing, message))
