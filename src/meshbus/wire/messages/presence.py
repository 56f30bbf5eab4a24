"""Presence (0x4D08): compares clocks with a peer, and announces the end of a session.

A PROBE carries the sender's wall clock. The ECHO returns it with the receiver's own, so that the sender can estimate
the offset between the two clocks. A GOODBYE ends the session at once; without it the peer would wait for a timeout.
engine/session/presence.py handles the messages; docs/wire/profile.md has the bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_PROBE = Layout("presence probe", "<Bq")
_ECHO = Layout("presence echo", "<Bqq")
_GOODBYE = Layout("presence goodbye", "<B")


class _Kind(IntEnum):
    PROBE = 1
    ECHO = 2
    GOODBYE = 3


class Probe(msgspec.Struct, frozen=True):
    """Ask a peer for its wall clock."""

    sent_ns: int
    """Wall clock of the sender, Unix nanoseconds."""


class Echo(msgspec.Struct, frozen=True):
    """Answer a probe."""

    sent_ns: int
    """The value of the probe."""
    clock_ns: int
    """Wall clock of the answering node."""


class Goodbye(msgspec.Struct, frozen=True):
    """End the session: the sender is closing."""


PresenceMessage: TypeAlias = Probe | Echo | Goodbye


def encode_presence(message: PresenceMessage) -> bytes:
    """Write a presence message."""
    match message:
        case Probe(sent_ns=sent_ns):
            return _PROBE.pack(_Kind.PROBE, sent_ns)
        case Echo(sent_ns=sent_ns, clock_ns=clock_ns):
            return _ECHO.pack(_Kind.ECHO, sent_ns, clock_ns)
        case Goodbye():
            return _GOODBYE.pack(_Kind.GOODBYE)


def decode_presence(event: Buffer) -> PresenceMessage:
    """Read a presence message."""
    match event[0] if len(event) else None:
        case _Kind.PROBE:
            return Probe(_PROBE.unpack(event)[1])
        case _Kind.ECHO:
            _, sent_ns, clock_ns = _ECHO.unpack(event)
            return Echo(sent_ns, clock_ns)
        case _Kind.GOODBYE:
            # Only to check the length: the message has no content.
            _GOODBYE.unpack(event)
            return Goodbye()
        case None:
            raise MalformedPacket("presence", Fault.TRUNCATED, "empty")
        case kind:
            raise MalformedPacket("presence", Fault.UNKNOWN_KIND, f"kind {kind}")
