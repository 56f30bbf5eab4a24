"""The 68-byte packet header (transport.md §3): one packet at a time, and many as columns.

Below about ten packets the scalar struct is faster (performance.md §5); above, headers are rows of one structured array
(`HEADER_DTYPE`), which kernels take as a single argument. Payloads are not read here. What the columns mean is decided
in wire/headerbatch.py and policy/gateway.py.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket, UnknownVersion
from meshbus.wire.constants import (
    AAD_BYTES,
    HEADER_BYTES,
    MAX_EVENTS,
    MAX_PAYLOAD,
    NET_MAGIC,
    NONCE_BYTES,
    VERSION,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Buffer: TypeAlias = "bytes | bytearray | memoryview"

# transport.md §3 gives this format.
_LAYOUT = struct.Struct("<HBBBBBBHH12sQQQQIHHHH")

HEADER_DTYPE = np.dtype(
    [
        ("magic", "<u2"),
        ("version", "u1"),
        ("flags", "u1"),
        ("priority", "u1"),
        ("hop_ttl", "u1"),
        ("hop_count", "u1"),
        ("frag_flags", "u1"),
        ("subprotocol_id", "<u2"),
        ("channel_hash", "<u2"),
        ("nonce_prefix", "<u4"),
        ("counter", "<u8"),
        ("session_id", "<u8"),
        ("stream_id", "<u8"),
        ("sequence", "<u8"),
        ("origin_hash", "<u8"),
        ("subnet_id", "<u4"),
        ("fragment_id", "<u2"),
        ("fragment_offset", "<u2"),
        ("payload_len", "<u2"),
        ("event_count", "<u2"),
    ]
)
"""One row is one header, byte for byte, with the nonce split into prefix and counter."""


class Header(msgspec.Struct, frozen=True):
    """The fields of one packet header, in wire order; magic and version are implied."""

    flags: int = 0
    priority: int = 0
    hop_ttl: int = 0
    hop_count: int = 0
    """The only byte that a forwarder may change, because it is not authenticated."""
    frag_flags: int = 0
    subprotocol_id: int = 0
    channel_hash: int = 0
    nonce: bytes = bytes(NONCE_BYTES)
    session_id: int = 0
    stream_id: int = 0
    sequence: int = 0
    origin_hash: int = 0
    subnet_id: int = 0
    fragment_id: int = 0
    fragment_offset: int = 0
    payload_len: int = 0
    """Bytes of plaintext; the tag is not counted."""
    event_count: int = 0

    @property
    def counter(self) -> int:
        """The packet counter inside the nonce."""
        return int.from_bytes(self.nonce[4:], "little")


def pack_header(header: Header) -> bytes:
    """Write a header; a field that does not fit its place raises LocalProtocolError."""
    try:
        return _LAYOUT.pack(NET_MAGIC, VERSION, *msgspec.structs.astuple(header))
    except struct.error as error:
        raise LocalProtocolError(f"header: {error}") from error


def unpack_header(buffer: Buffer) -> Header:
    """Read the header at the start of a buffer; what follows is ignored.

    Raises MalformedPacket or UnknownVersion for a header that every receiver refuses.
    """
    if len(buffer) < HEADER_BYTES:
        raise MalformedPacket("header", Fault.TRUNCATED, f"{len(buffer)} of {HEADER_BYTES} bytes")
    fields = _LAYOUT.unpack_from(buffer)
    magic, version = fields[:2]
    if magic != NET_MAGIC:
        raise MalformedPacket("header", Fault.BAD_MAGIC, f"{magic:04x}")
    if version != VERSION:
        raise UnknownVersion(version)
    payload_len, event_count = fields[-2:]
    # transport.md §3: these two limits are part of a valid header. The exact length is checked where the body is.
    if payload_len > MAX_PAYLOAD or event_count > MAX_EVENTS:
        raise MalformedPacket("header", Fault.BAD_LENGTH, f"{payload_len} bytes, {event_count} events")
    return Header(*fields[2:])


def aad_of(header: Buffer) -> bytes:
    """Return the 56 authenticated bytes of a packed header: all but the nonce, with hop_count as 0."""
    raw = bytes(header[:HEADER_BYTES])
    # transport.md §4: relays change hop_count (byte 6), and the nonce (bytes 12 to 23) enters the cipher by itself.
    return raw[:12] + raw[24:] if raw[6:7] == b"\0" else raw[:6] + b"\0" + raw[7:12] + raw[24:]


def aad_columns(headers: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return the authenticated bytes of many headers, one row of 56 each."""
    raw = np.ascontiguousarray(headers).view(np.uint8).reshape(-1, HEADER_BYTES)
    aad = np.empty((len(raw), AAD_BYTES), np.uint8)
    # The same as `aad_of`: byte 6 as 0, without bytes 12 to 23.
    aad[:, :12] = raw[:, :12]
    aad[:, 6] = 0
    aad[:, 12:] = raw[:, 24:]
    return aad
