"""Why a connection ended: one closed set of words for logs, counters and errors.

A `Violation` is how the parts of a session tell each other that the peer broke the rules. It never leaves the session,
which turns it into the last event of the connection.
"""

from __future__ import annotations

from enum import StrEnum

from meshbus.errors import RemoteProtocolError


class CloseReason(StrEnum):
    """Why a connection ended; also the label of its counter."""

    BAD_SIGNATURE = "bad_signature"
    """The first bytes are not those of a ZMTP peer."""
    OLD_VERSION = "old_version"
    """A peer from before ZMTP 3.0."""
    MECHANISM_MISMATCH = "mechanism_mismatch"
    """The two sides are configured for different security."""
    INCOMPATIBLE_SOCKET = "incompatible_socket"
    """A socket that is no counterpart of ours, such as PUSH for SUB."""
    BAD_FLAGS = "bad_flags"
    MALFORMED = "malformed"
    TOO_LONG = "too_long"
    """A frame, a message or a handshake above its limit."""
    UNEXPECTED = "unexpected"
    """Something that has no place at this point, such as data during the handshake."""
    BAD_BOX = "bad_box"
    """A CURVE box that our keys do not open: a wrong key, or tampering."""
    REPLAYED = "replayed"
    """A CURVE counter that did not grow."""
    DENIED = "denied"
    """We refused the peer's credentials."""
    REFUSED = "refused"
    """The peer told us, with ERROR, that it does not want us."""
    CLOSED_IN_HANDSHAKE = "closed_in_handshake"
    """The peer hung up before the handshake was done; libzmq does so where the keys do not fit."""
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    SILENT = "silent"
    """Nothing arrived for longer than the heartbeat allows."""
    STALLED = "stalled"
    """The peer does not read what we have to tell it."""
    TOO_MANY_SUBSCRIPTIONS = "too_many_subscriptions"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    UNREACHABLE = "unreachable"
    """Nobody answers at the address."""
    EOF = "eof"
    """The peer hung up."""
    LOCAL = "local"
    """We closed it ourselves."""


LASTING = frozenset(
    {
        CloseReason.BAD_SIGNATURE,
        CloseReason.OLD_VERSION,
        CloseReason.MECHANISM_MISMATCH,
        CloseReason.INCOMPATIBLE_SOCKET,
        CloseReason.BAD_BOX,
        CloseReason.DENIED,
        CloseReason.REFUSED,
    }
)
"""Reasons that the same attempt will most likely meet again: retried at the slowest pace."""


class Violation(RemoteProtocolError):
    """Report that the peer broke a rule of the protocol."""

    def __init__(self, reason: CloseReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
