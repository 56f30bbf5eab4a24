"""Notices: what happened in the engine, as small immutable values; never one per event.

They are collected in `Output.control`, in the order in which they happened. node/node.py turns them into results,
errors and callbacks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import HandshakeFault
from meshbus.names.channel import ChannelName
from meshbus.policy.registry import Mismatch
from meshbus.wire.messages.append import Appended
from meshbus.wire.messages.fleetpolicy import PolicyStatement
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.revocation import Revocation
from meshbus.wire.messages.token import PermissionToken


class SessionUp(msgspec.Struct, frozen=True):
    """A session with a node was established."""

    node_id: int
    session_id: int
    initiated: bool


class HandshakeFailed(msgspec.Struct, frozen=True):
    """A handshake that this node began failed."""

    node_id: int
    fault: HandshakeFault
    problem: str


class HandshakeUnanswered(msgspec.Struct, frozen=True):
    """A handshake that this node began has no answer yet; given once, while the tries go on."""

    node_id: int
    problem: str


class DownReason(StrEnum):
    """Why a peer failed or was removed."""

    SILENT = "silent"
    """No heartbeat for `session_timeout_s`."""
    EVICTED = "evicted"
    """Its session was idle for too long, or was never proved."""
    CLOSED = "closed"
    """This node disconnected it."""
    LEFT = "left"
    """It said goodbye."""
    OVERRUN = "overrun"
    """More than a million of its packets in a row were lost, so that its session cannot go on; connect again."""
    REVOKED = "revoked"
    """Its key was revoked by an issuer of the fleet; it gets no other session."""
    RETIRED = "retired"
    """Its session began with a mesh key that was replaced, and it did not prove that it has the new one."""


class TokenIssued(msgspec.Struct, frozen=True):
    """This node issued a token in place of one that it had issued before, for the peer that asked for it."""

    node_id: int
    token: PermissionToken


class TokenRenewed(msgspec.Struct, frozen=True):
    """A token of this node was renewed by its issuer."""

    node_id: int
    """The issuer's node."""
    old: PermissionToken
    new: PermissionToken


class TokenNotRenewed(msgspec.Struct, frozen=True):
    """The issuer of a token of this node refuses to renew it. Reported once for each token and reason."""

    node_id: int
    token: PermissionToken
    why: str


class PeerFailed(msgspec.Struct, frozen=True):
    """A peer went silent. Its subscriptions are gone; its session is still usable and may recover."""

    node_id: int
    reason: DownReason


class PeerRecovered(msgspec.Struct, frozen=True):
    """A failed peer was heard again. It has to announce itself and subscribe again."""

    node_id: int


class PeerGone(msgspec.Struct, frozen=True):
    """A peer and its session were removed."""

    node_id: int
    reason: DownReason


class Path(StrEnum):
    """How a node was reached that may be behind a NAT."""

    DIRECT = "direct"
    PUNCHED = "punched"
    """Without a relay, by hole punching: both sides sent at the same moment."""
    RELAYED = "relayed"


class Reached(msgspec.Struct, frozen=True):
    """A connect through NATs succeeded."""

    node_id: int
    path: Path


class Acked(msgspec.Struct, frozen=True):
    """A publisher answered a subscribe or unsubscribe request of this node, or did not answer in time."""

    request: int
    node_id: int
    channel: ChannelName
    accepted: bool
    reason: AckReason = AckReason.NONE
    timed_out: bool = False
    gone: bool = False
    """The publisher left, or was removed, before it answered."""
    leaving: bool = False
    """Whether this node had asked to unsubscribe."""


class Subscribed(msgspec.Struct, frozen=True):
    """A peer subscribed to a channel of this node."""

    node_id: int
    channel: ChannelName
    queue_group: str = ""


class Unsubscribed(msgspec.Struct, frozen=True):
    """A peer's subscription to a channel of this node ended."""

    node_id: int
    channel: ChannelName
    reason: str


class Matched(msgspec.Struct, frozen=True):
    """A publisher named its channels under a prefix that this node follows, or did not answer in time.

    The first notice for a request is the answer. An answer may take several; what they add is subscribed.
    """

    request: int
    node_id: int
    added: tuple[ChannelName, ...] = ()
    removed: tuple[ChannelName, ...] = ()
    refused: tuple[tuple[ChannelName, AckReason], ...] = ()
    timed_out: bool = False
    gone: bool = False
    """The publisher left, or was removed, before it answered."""


class Announced(msgspec.Struct, frozen=True):
    """The capabilities of a node became known or changed."""

    node_id: int
    direct: bool


class Negotiated(msgspec.Struct, frozen=True):
    """The set of profile subprotocols to use with a peer changed; it may be empty."""

    node_id: int
    compatible: frozenset[int]
    incompatible: tuple[Mismatch, ...] = ()
    """What both have at versions that do not fit, and therefore do not use."""


class PeerPlain(msgspec.Struct, frozen=True):
    """A peer does not use the meshbus profile, at least until it announces it: it knows single channels only."""

    node_id: int


class PeerSecured(msgspec.Struct, frozen=True):
    """The session with a peer is secure now: only the two nodes have its keys."""

    node_id: int
    entity_id: bytes
    pinned: bool
    """Whether it was secure for the first time: from now on, nothing less is accepted from it."""


class NodeRenamed(msgspec.Struct, frozen=True):
    """A node goes on under another key, and so under another id; what belonged to the old one belongs to the new one now."""

    old_id: int
    node_id: int


class PeerInsecure(msgspec.Struct, frozen=True):
    """The session with a peer should be secure and is not: data is neither sent to it nor accepted from it."""

    node_id: int
    problem: str


class StreamFailed(msgspec.Struct, frozen=True):
    """A reliable stream to a peer ended early; what the peer had not acknowledged is lost."""

    node_id: int
    stream_id: int
    problem: str


class Replied(msgspec.Struct, frozen=True):
    """A reply to a request of this node arrived; more follow unless it is the last."""

    request: int
    node_id: int
    payload: bytes
    last: bool


class RequestFault(StrEnum):
    """Why a request of this node ended without a last reply."""

    NO_RESPONDER = "no_responder"
    UNKNOWN_CHANNEL = "unknown_channel"
    DENIED = "denied"
    FAILED = "failed"
    """The responder raised an error."""
    BUSY = "busy"
    EXPIRED = "expired"
    """The request reached the responder after its deadline."""
    TIMEOUT = "timeout"
    PEER_GONE = "peer_gone"


class RequestFailed(msgspec.Struct, frozen=True):
    """A request of this node ended without a last reply."""

    request: int
    node_id: int
    channel: ChannelName
    fault: RequestFault
    problem: str = ""
    """The responder's explanation, if it sent one."""


class Requested(msgspec.Struct, frozen=True):
    """A peer sent a request to a responder of this node; reply with the same node id and request number."""

    node_id: int
    request: int
    channel: ChannelName
    payload: bytes
    deadline: float
    """How long the peer waits (monotonic seconds)."""


class EndReason(StrEnum):
    """Why a peer no longer waits for a reply."""

    CANCELED = "canceled"
    EXPIRED = "expired"
    PEER_GONE = "peer_gone"
    REVOKED = "revoked"
    """Its key may not send requests any more."""


class RequestEnded(msgspec.Struct, frozen=True):
    """A peer no longer waits for a reply of this node."""

    node_id: int
    request: int
    reason: EndReason


class HistoryWanted(msgspec.Struct, frozen=True):
    """A peer reads a log of this node: read one page and pass it to `engine.history` with the node id and request.

    The engine never reads a log itself.
    """

    node_id: int
    request: int
    channel: ChannelName
    next_seq: int
    """The first sequence that the peer does not have yet."""
    max_bytes: int
    """Approximate number of payload bytes wanted; read at least one event."""


class HistoryOpened(msgspec.Struct, frozen=True):
    """A publisher accepted the reading of a channel's log; events follow."""

    reading: int
    node_id: int
    channel: ChannelName


class HistoryCaughtUp(msgspec.Struct, frozen=True):
    """Everything that the publisher had logged has arrived; what follows is new."""

    reading: int
    node_id: int
    channel: ChannelName
    next_seq: int


class HistoryGap(msgspec.Struct, frozen=True):
    """Events that were requested are no longer in the publisher's log."""

    reading: int
    node_id: int
    channel: ChannelName
    expected: int
    first_available: int
    """The reading continues here; the events from `expected` up to it are lost."""


class HistoryFault(StrEnum):
    """Why the reading of a publisher's log failed."""

    UNKNOWN_CHANNEL = "unknown_channel"
    DENIED = "denied"
    RANGE_GONE = "range_gone"
    BUSY = "busy"
    BROKEN = "broken"
    """The publisher violated the protocol."""


class HistoryEnded(msgspec.Struct, frozen=True):
    """The reading of a publisher's log completed or failed."""

    reading: int
    node_id: int
    channel: ChannelName
    fault: HistoryFault | None = None
    """None if the reading completed."""
    first_available: int = 0
    """The first sequence that is still in the log, if the fault is RANGE_GONE."""


class AppendAsked(msgspec.Struct, frozen=True):
    """A peer wants records appended to a replicated channel; answer with the same node id and request."""

    node_id: int
    request: int
    channel_id: bytes
    flags: int
    """Of wire/messages/append.py."""
    records: tuple[bytes, ...]


class AppendAnswered(msgspec.Struct, frozen=True):
    """An append that this node asked a leader for has its outcome."""

    node_id: int
    answer: Appended


class ReplicaWork(msgspec.Struct, frozen=True):
    """A replicated channel has something for the disk and for the application: carry the writes out, in this order.

    The types are those of engine/replicas/records.py, which is above this room.
    """

    channel_id: bytes
    writes: tuple[object, ...]
    notices: tuple[object, ...]


class Carried(msgspec.Struct, frozen=True):
    """A message of a subprotocol that is handled above the engine; release it when it was handled (engine/carriage)."""

    node_id: int
    """The peer that sent it."""
    subprotocol_id: int
    message: bytes


class PolicyArrived(msgspec.Struct, frozen=True):
    """A newer policy of the fleet has arrived: an issuer that this node trusts signed it, and it is complete."""

    node_id: int
    """The neighbor that sent it."""
    statement: PolicyStatement
    policy: bytes


class RevocationTaken(msgspec.Struct, frozen=True):
    """A revocation came into effect at this node."""

    record: Revocation
    source: int | None
    """The neighbor that sent it; None if it was given to this node."""


Control: TypeAlias = (
    SessionUp
    | HandshakeFailed
    | HandshakeUnanswered
    | PeerFailed
    | PeerRecovered
    | PeerGone
    | TokenIssued
    | TokenRenewed
    | TokenNotRenewed
    | Reached
    | Acked
    | Subscribed
    | Unsubscribed
    | Matched
    | Announced
    | Negotiated
    | PeerPlain
    | PeerSecured
    | NodeRenamed
    | PeerInsecure
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
    | AppendAsked
    | AppendAnswered
    | ReplicaWork
    | Carried
    | PolicyArrived
    | RevocationTaken
)
