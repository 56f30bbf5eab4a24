"""Things that happen to a node, as the engine tells them: one small value each, none per event."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import HandshakeFault
from meshbus.names.channel import ChannelName
from meshbus.wire.messages.membership import AckReason


class SessionUp(msgspec.Struct, frozen=True):
    """A handshake ended in a session."""

    node_id: int
    session_id: int
    initiated: bool


class HandshakeFailed(msgspec.Struct, frozen=True):
    """A handshake that we began did not end in a session."""

    node_id: int
    fault: HandshakeFault
    problem: str


class DownReason(StrEnum):
    """Why a peer counts as failed."""

    SILENT = "silent"
    EVICTED = "evicted"
    CLOSED = "closed"


class PeerFailed(msgspec.Struct, frozen=True):
    """A peer went silent; its subscriptions are gone, its session may come back."""

    node_id: int
    reason: DownReason


class PeerRecovered(msgspec.Struct, frozen=True):
    """A failed peer was heard again; it must announce and subscribe anew."""

    node_id: int


class PeerGone(msgspec.Struct, frozen=True):
    """A peer and its session were removed."""

    node_id: int
    reason: DownReason


class Path(StrEnum):
    """How a node that may be behind a NAT was reached."""

    DIRECT = "direct"
    PUNCHED = "punched"
    """Without a relay, after both sides sent at the same moment."""
    RELAYED = "relayed"


class Reached(msgspec.Struct, frozen=True):
    """A node that we wanted to reach past NATs has a session with us."""

    node_id: int
    path: Path


class Acked(msgspec.Struct, frozen=True):
    """A publisher answered our subscribe or unsubscribe, or did not answer in time."""

    request: int
    node_id: int
    channel: ChannelName
    accepted: bool
    reason: AckReason = AckReason.NONE
    timed_out: bool = False


class Subscribed(msgspec.Struct, frozen=True):
    """A peer subscribed to a channel of ours."""

    node_id: int
    channel: ChannelName
    queue_group: str = ""


class Unsubscribed(msgspec.Struct, frozen=True):
    """A peer's subscription to a channel of ours ended."""

    node_id: int
    channel: ChannelName
    reason: str


class Matched(msgspec.Struct, frozen=True):
    """A publisher told which of its channels a prefix of ours leads to, or did not answer in time.

    The first one for a request is the answer: what it added, and what further ones of the same answer add, is live.
    """

    request: int
    node_id: int
    added: tuple[ChannelName, ...] = ()
    removed: tuple[ChannelName, ...] = ()
    refused: tuple[tuple[ChannelName, AckReason], ...] = ()
    timed_out: bool = False


class Announced(msgspec.Struct, frozen=True):
    """A node's capabilities became known or changed."""

    node_id: int
    direct: bool


class Negotiated(msgspec.Struct, frozen=True):
    """A meshbus peer and we agreed on what to use with each other."""

    node_id: int
    compatible: frozenset[int]


class StreamFailed(msgspec.Struct, frozen=True):
    """A reliable stream to a peer ended early: what it had not acknowledged is lost."""

    node_id: int
    stream_id: int
    problem: str


class Replied(msgspec.Struct, frozen=True):
    """A reply to a request of ours came; more follow unless it is the last."""

    request: int
    node_id: int
    payload: bytes
    last: bool


class RequestFault(StrEnum):
    """Why a request of ours got no answer, or no further one."""

    NO_RESPONDER = "no_responder"
    UNKNOWN_CHANNEL = "unknown_channel"
    DENIED = "denied"
    FAILED = "failed"
    """The responder ran into an error."""
    BUSY = "busy"
    EXPIRED = "expired"
    """The responder says that it came too late."""
    TIMEOUT = "timeout"
    PEER_GONE = "peer_gone"


class RequestFailed(msgspec.Struct, frozen=True):
    """A request of ours is over without a last reply."""

    request: int
    node_id: int
    channel: ChannelName
    fault: RequestFault
    problem: str = ""
    """What the responder says about it."""


class Requested(msgspec.Struct, frozen=True):
    """A peer asks a responder of ours; answer under its node id and request."""

    node_id: int
    request: int
    channel: ChannelName
    payload: bytes
    deadline: float
    """Until then the peer waits (monotonic)."""


class EndReason(StrEnum):
    """Why a peer no longer waits for an answer."""

    CANCELED = "canceled"
    EXPIRED = "expired"
    PEER_GONE = "peer_gone"


class RequestEnded(msgspec.Struct, frozen=True):
    """A peer no longer waits for an answer of ours."""

    node_id: int
    request: int
    reason: EndReason


class HistoryWanted(msgspec.Struct, frozen=True):
    """A peer reads a log of ours: read a page of it, and hand it to `engine.history` under its node id and request."""

    node_id: int
    request: int
    channel: ChannelName
    next_seq: int
    """The first sequence that the peer lacks."""
    max_bytes: int
    """How many bytes of payloads are wanted, about; at least one event."""


class HistoryOpened(msgspec.Struct, frozen=True):
    """A publisher lets us read the log of a channel: events follow."""

    reading: int
    node_id: int
    channel: ChannelName


class HistoryCaughtUp(msgspec.Struct, frozen=True):
    """Everything that a publisher had logged has come; what follows is new."""

    reading: int
    node_id: int
    channel: ChannelName
    next_seq: int


class HistoryGap(msgspec.Struct, frozen=True):
    """Events that we wanted are gone from the log of a publisher."""

    reading: int
    node_id: int
    channel: ChannelName
    expected: int
    first_available: int
    """It goes on here; everything from `expected` up to it is lost."""


class HistoryFault(StrEnum):
    """Why a log of a publisher is not read, or no longer."""

    UNKNOWN_CHANNEL = "unknown_channel"
    DENIED = "denied"
    RANGE_GONE = "range_gone"
    BUSY = "busy"
    BROKEN = "broken"
    """The publisher does not keep to the protocol."""


class HistoryEnded(msgspec.Struct, frozen=True):
    """A log of a publisher was read to its end, or can be read no further."""

    reading: int
    node_id: int
    channel: ChannelName
    fault: HistoryFault | None = None
    """None when everything came that was wanted."""
    first_available: int = 0
    """With RANGE_GONE."""


Control: TypeAlias = (
    SessionUp
    | HandshakeFailed
    | PeerFailed
    | PeerRecovered
    | PeerGone
    | Reached
    | Acked
    | Subscribed
    | Unsubscribed
    | Matched
    | Announced
    | Negotiated
    | StreamFailed
    | Replied
    | RequestFailed
    | Requested
    | RequestEnded
    | HistoryWanted
    | HistoryOpened
    | HistoryCaughtUp
    | HistoryGap
    | HistoryEnded
)
