"""The 64 bytes that open a ZMTP connection, in both directions.

    0       ff
    1-8     ignored (libzmq writes the length of an old identity frame)
    9       7f (only bit 0 is looked at, as libzmq does)
    10, 11  major 3, minor
    12-31   mechanism, padded with zeros
    32      as-server, which libzmq never sets: told, and never required
    33-63   zeros

libzmq sends them in three steps and waits for ours in between, so the whole greeting is sent at once, before anything
was received. A wrong peer is told by its first bytes, without waiting for all 64.
"""

from __future__ import annotations

import msgspec

from meshbus.edge.zmtp.closereason import CloseReason, Violation

GREETING_BYTES = 64
MINOR = 1
"""We speak 3.1."""

_SIGNATURE = b"\xff\0\0\0\0\0\0\0\x01\x7f"
_MAJOR = 3
_MECHANISM_BYTES = 20


class Greeting(msgspec.Struct, frozen=True):
    """What the peer says about itself."""

    minor: int
    """0 for ZMTP 3.0; every later version, 4 included, is spoken to as 3.1."""
    mechanism: bytes
    as_server: bool


def encode_greeting(mechanism: bytes, *, as_server: bool = False) -> bytes:
    """Write our greeting."""
    name = mechanism.ljust(_MECHANISM_BYTES, b"\0")
    return (_SIGNATURE + bytes((_MAJOR, MINOR)) + name + bytes((as_server,))).ljust(GREETING_BYTES, b"\0")


def decode_greeting(data: bytes | bytearray | memoryview) -> Greeting | None:
    """Read a greeting; None while bytes are missing. Raises Violation as soon as it cannot become one."""
    if len(data) > 0 and data[0] != 0xFF:
        raise Violation(CloseReason.BAD_SIGNATURE, f"the first byte is {data[0]:#04x}")
    if len(data) > 9 and not data[9] & 1:
        raise Violation(CloseReason.OLD_VERSION, "the peer speaks ZMTP 1.0")
    if len(data) > 10 and data[10] < _MAJOR:
        raise Violation(CloseReason.OLD_VERSION, f"the peer speaks ZMTP {data[10]}.x")
    if len(data) < GREETING_BYTES:
        return None
    major, minor = data[10], data[11]
    mechanism = bytes(data[12 : 12 + _MECHANISM_BYTES]).rstrip(b"\0")
    return Greeting(MINOR if major > _MAJOR else min(minor, MINOR), mechanism, bool(data[32]))
