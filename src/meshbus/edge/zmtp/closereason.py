"""Reasons for which a ZMTP connection is closed, as used in logs, counters and errors.

The modules of this package raise `Violation` when the peer breaks the protocol. It never leaves the session, which turns
it into the last event of the connection.
"""

from __future__ import annotations

from enum import StrEnum

from meshbus.errors import RemoteProtocolError


class CloseReason(StrEnum):
    """Why a connection was closed; also the label of the counter."""

    BAD_SIGNATURE = "bad_signature"
    """The first bytes are not a ZMTP greeting."""
    OLD_VERSION = "old_version"
    """The peer uses a version before ZMTP 3.0."""
    MECHANISM_MISMATCH = "mechanism_mismatch"
    """The two sides use different security mechanisms."""
    INCOMPATIBLE_SOCKET = "incompatible_socket"
    """The peer's socket type does not match, such as PUSH with SUB."""
    BAD_FLAGS = "bad_flags"
    MALFORMED = "malformed"
    TOO_LONG = "too_long"
    """A frame, a message or a handshake exceeds its limit."""
    UNEXPECTED = "unexpected"
    """A frame is not allowed in this state, such as data during the handshake."""
    BAD_BOX = "bad_box"
    """A CURVE box cannot be decrypted: wrong key or tampering."""
    REPLAYED = "replayed"
    """A CURVE counter did not increase."""
    DENIED = "denied"
    """The peer's credentials were refused here."""
    REFUSED = "refused"
    """The peer refused the connection with ERROR."""
    CLOSED_IN_HANDSHAKE = "closed_in_handshake"
    """The peer closed the connection during the handshake; libzmq does so if the keys do not match."""
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    SILENT = "silent"
    """Nothing was received for longer than the heartbeat allows."""
    STALLED = "stalled"
    """The peer does not read control data."""
    TOO_MANY_SUBSCRIPTIONS = "too_many_subscriptions"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    UNREACHABLE = "unreachable"
    """Nothing listens at the address."""
    EOF = "eof"
    """The peer closed the connection."""
    LOCAL = "local"
    """It was closed here."""


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
"""Reasons that another attempt will most likely meet again: retried with the longest pause."""


class Violation(RemoteProtocolError):
    """The peer broke a rule of the protocol."""

    def __init__(self, reason: CloseReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
