"""Encode and decode the ZMTP greeting: the first 64 bytes in each direction (pubsub.md §3.1).

    0       ff
    1-8     ignored (libzmq writes the length of an old identity frame)
    9       7f (only bit 0 is checked, as in libzmq)
    10, 11  major 3, minor
    12-31   mechanism, padded with zeros
    32      as-server; libzmq never sets it, so it is sent but never required
    33-63   zeros

libzmq sends its greeting in three steps and waits for the peer's bytes in between, so the whole greeting is sent at once,
before anything is received. A wrong peer is recognized by its first bytes, without waiting for all 64.
"""

from __future__ import annotations

import msgspec

from meshbus.edge.zmtp.closereason import CloseReason, Violation

GREETING_BYTES = 64
MINOR = 1
"""Minor version: ZMTP 3.1."""

_SIGNATURE = b"\xff\0\0\0\0\0\0\0\x01\x7f"
_MAJOR = 3
_MECHANISM_BYTES = 20


class Greeting(msgspec.Struct, frozen=True):
    """A decoded greeting."""

    minor: int
    """0 for ZMTP 3.0; every later version, including 4, is treated as 3.1, as in libzmq."""
    mechanism: bytes
    as_server: bool


def encode_greeting(mechanism: bytes, *, as_server: bool = False) -> bytes:
    """Encode a greeting."""
    name = mechanism.ljust(_MECHANISM_BYTES, b"\0")
    return (_SIGNATURE + bytes((_MAJOR, MINOR)) + name + bytes((as_server,))).ljust(GREETING_BYTES, b"\0")


def decode_greeting(data: bytes | bytearray | memoryview) -> Greeting | None:
    """Decode a greeting; return None while bytes are missing. Raises Violation as soon as it is invalid."""
    if len(data) > 0 and data[0] != 0xFF:
        raise Violation(CloseReason.BAD_SIGNATURE, f"the first byte must be 0xff, got {data[0]:#04x}")
    # pubsub.md §3.1: older versions are out of scope. Each test needs only the bytes up to its own.
    if len(data) > 9 and not data[9] & 1:
        raise Violation(CloseReason.OLD_VERSION, "the peer uses ZMTP 1.0; 3.0 or later is required")
    if len(data) > 10 and data[10] < _MAJOR:
        raise Violation(CloseReason.OLD_VERSION, f"the peer uses ZMTP {data[10]}.x; 3.0 or later is required")
    if len(data) < GREETING_BYTES:
        return None
    major, minor = data[10], data[11]
    mechanism = bytes(data[12 : 12 + _MECHANISM_BYTES]).rstrip(b"\0")
    # pubsub.md §3.1: libzmq also treats every later version as 3.1.
    return Greeting(MINOR if major > _MAJOR else min(minor, MINOR), mechanism, bool(data[32]))
