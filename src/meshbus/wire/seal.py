"""Seals and opens the packets of one session, one at a time.

A `Sealer` owns the sending direction: its key, and the counter that events, control messages and heartbeats share. An
`Opener` owns the receiving direction: its key and the replay window. Their `aead`, `nonce_prefix` and counters are
public, because engine/session/link.py works on batches with the same state. The content of payloads is in
wire/frames.py.
"""

from __future__ import annotations

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from meshbus.errors import BadTag, Fault, LocalProtocolError, MalformedPacket, Replayed
from meshbus.wire.constants import HEADER_BYTES, MAX_EVENTS, MAX_PAYLOAD, PACKET_COST, Flags
from meshbus.wire.header import Buffer, Header, aad_of, pack_header, unpack_header
from meshbus.wire.keys import SessionKeys
from meshbus.wire.replaywindow import COUNTER_LIMIT, ReplayWindow

# Plain ints: arithmetic on enum members costs more than the rest of a check.
_HEARTBEAT = int(Flags.HEARTBEAT)
_NOT_DATA = int(Flags.HANDSHAKE | Flags.HEARTBEAT)


class Sealer:
    """The sending direction of a session."""

    __slots__ = ("_next", "aead", "nonce_prefix", "session_id")

    def __init__(self, keys: SessionKeys) -> None:
        self.aead = ChaCha20Poly1305(keys.tx_key)
        self.nonce_prefix = keys.nonce_prefix
        self.session_id = keys.session_id
        self._next = 0

    @property
    def sent(self) -> int:
        """How many counters were used."""
        return self._next

    def take(self, count: int = 1) -> int:
        """Use `count` packet counters, and return the first one.

        Raises LocalProtocolError if the session has none left: no counter is used twice, and the last one never.
        """
        first = self._next
        if first + count > COUNTER_LIMIT:
            raise LocalProtocolError("the packet counter of this session is used up; open a new session")
        self._next = first + count
        return first

    def seal(self, header: Header, payload: Buffer) -> bytes:  # hot
        """Return a complete datagram; nonce, session id and payload length of the header are filled in here."""
        if len(payload) > MAX_PAYLOAD or header.event_count > MAX_EVENTS:
            raise LocalProtocolError(
                f"{len(payload)} bytes in {header.event_count} events do not fit one packet"
                f" of {MAX_PAYLOAD} bytes and {MAX_EVENTS} events"
            )
        if header.flags & _NOT_DATA:
            raise LocalProtocolError("a data packet cannot carry the HANDSHAKE or HEARTBEAT flag")
        return self._seal(header, payload)

    def heartbeat(self) -> bytes:
        """Return a heartbeat packet: 84 bytes without a payload (transport.md §16)."""
        return self._seal(Header(flags=_HEARTBEAT), b"")

    def _seal(self, header: Header, payload: Buffer) -> bytes:
        # transport.md §11: one counter for everything that is sent in this direction, heartbeats included.
        nonce = self.nonce_prefix + self.take().to_bytes(8, "little")
        packed = pack_header(
            msgspec.structs.replace(header, nonce=nonce, session_id=self.session_id, payload_len=len(payload))
        )
        return packed + self.aead.encrypt(nonce, payload, aad_of(packed))


class Opener:
    """The receiving direction of a session."""

    __slots__ = ("aead", "nonce_prefix", "session_id", "window")

    def __init__(self, keys: SessionKeys) -> None:
        self.aead = ChaCha20Poly1305(keys.rx_key)
        self.session_id = keys.session_id
        self.nonce_prefix = keys.nonce_prefix
        self.window = ReplayWindow()

    def open(self, datagram: Buffer) -> tuple[Header, bytes]:  # hot
        """Verify a packet, and return its header and plaintext; that of a heartbeat is empty.

        Raises MalformedPacket or UnknownVersion for a bad header or length, BadTag for a forged or damaged packet and
        Replayed for a counter that is not new. Only a packet that passes all of it moves the replay window.
        """
        header = unpack_header(datagram)
        return header, self.decrypt(header, datagram)

    def decrypt(self, header: Header, datagram: Buffer) -> bytes:  # hot: bench_publish
        """Do the same for a packet whose header was parsed already, and return the plaintext."""
        # transport.md §16: a heartbeat of any length but 84 is dropped, whatever its payload_len says.
        body = 0 if header.flags & _HEARTBEAT else header.payload_len
        if len(datagram) != PACKET_COST + body:
            raise MalformedPacket("packet", Fault.BAD_LENGTH, f"{len(datagram)} bytes, expected {PACKET_COST + body}")
        # transport.md §4: the prefix on the wire is not authenticated, so it is rebuilt instead of read.
        number = header.nonce[4:]
        try:
            payload = self.aead.decrypt(self.nonce_prefix + number, datagram[HEADER_BYTES:], aad_of(datagram))
        except InvalidTag:
            raise BadTag from None
        # transport.md §12: after the tag. Otherwise a forged packet could move the window.
        counter = int.from_bytes(number, "little")
        if not self.window.admit(counter):
            raise Replayed(counter)
        return payload
