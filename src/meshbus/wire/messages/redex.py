"""RedEX replication (0x0E00): a replica asks its leader for events of a channel's log, and both exchange heartbeats.

Every message starts with the subprotocol id and a dispatch code, then the id of the channel. Bytes after a complete
message are ignored, as 0.23 nodes do (redex.md §3). Codes 0x24 to 0x2F are reserved: they decode to `Reserved`, which
is counted and not answered. No message about elections exists here; leadership.py has those between meshbus nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import IntEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import MAX_EVENT, Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_HEAD = Layout("redex", "<HB")
_SHORT_REQUEST = Layout("redex request", "<HB32sQI")
_REQUEST = Layout("redex request", "<HB32sQIQ")
_RESPONSE = Layout("redex response", "<HB32sQQQI")
_EVENT = Layout("redex event", "<QI")
_HEARTBEAT = Layout("redex heartbeat", "<HB32sQBQ")
_NACK = Layout("redex nack", "<HB32sQBQQH")

CHANNEL_ID_BYTES = 32
EVENT_COST = _EVENT.size
"""12: what an event of a response costs in addition to its payload."""
RESPONSE_ROOM = MAX_EVENT - _RESPONSE.size
"""8041: the room of a response for events, if it has to fit one packet."""
MAX_REPLICATED = RESPONSE_ROOM - EVENT_COST
"""8029: the largest payload that 0.23 nodes can replicate."""
MAX_DETAIL = 65_535

# The first and the last code that the founding documents reserve.
_RESERVED = range(0x24, 0x30)


class _Dispatch(IntEnum):
    REQUEST = 0x20
    RESPONSE = 0x21
    HEARTBEAT = 0x22
    NACK = 0x23


class BandwidthClass(IntEnum):
    """How urgent a request is; the leader's budget treats the classes differently."""

    FOREGROUND = 0
    BACKGROUND = 1
    REALTIME = 2


class Role(IntEnum):
    """What a node is for a replicated channel."""

    LEADER = 0
    REPLICA = 1
    CANDIDATE = 2
    IDLE = 3


class NackCode(IntEnum):
    """Why a request is rejected; decides how the replica tries again."""

    NOT_LEADER = 1
    BAD_RANGE = 2
    BACKPRESSURE = 3
    CHANNEL_CLOSED = 4


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for the events of a channel, from a sequence on."""

    channel_id: bytes
    since_seq: int
    chunk_max: int
    """How many bytes of events the answer may have; 0 means as many as the leader allows."""
    request_id: int
    """Chosen at random by the replica; the answer repeats it."""
    bandwidth_class: BandwidthClass = BandwidthClass.FOREGROUND


class SyncResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a leader's log, in order; whether they fit the replica's log is checked when they are applied."""

    channel_id: bytes
    first_seq: int
    """The sequence of the first event; without events, the requested one."""
    leader_first_retained_seq: int
    """0 if the leader's log is empty."""
    request_id: int
    events: tuple[tuple[int, bytes], ...] = ()
    """Sequence and payload of each event."""


class SyncHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Show that a member is alive, its role, and how far its log goes."""

    channel_id: bytes
    tail_seq: int
    """The next sequence of the sender's log. meshbus counts only what is on disk."""
    role: Role
    wall_clock_ms: int
    """Unix milliseconds; informative only."""


class SyncNack(msgspec.Struct, frozen=True, kw_only=True):
    """Reject a request."""

    channel_id: bytes
    since_seq: int
    code: NackCode
    leader_first_retained_seq: int = 0
    """Meaningful for BAD_RANGE."""
    request_id: int
    detail: str = ""


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """A message with a reserved dispatch code."""

    code: int


RedexMessage: TypeAlias = SyncRequest | SyncResponse | SyncHeartbeat | SyncNack


def channel_id(name: str) -> bytes:
    """Return the id of a channel on this wire: 32 bytes of BLAKE2s."""
    # redex.md §2: the label is the key of the hash, not a prefix of the message.
    return hashlib.blake2s(name.encode(), key=b"redex-channel-id-v1").digest()


def chain_of(channel_id: bytes) -> int:
    """Return the number that names the chain of a replicated channel in tags."""
    # redex.md §8: 0.23 nodes take one number for all channels of a node, which tells nobody what they hold.
    return int.from_bytes(channel_id[:8], "little")


def encode_redex(message: RedexMessage) -> bytes:
    """Write a message; a request always has 56 bytes.

    A response may be longer than a packet: the sender decides how much it packs (`RESPONSE_ROOM`).
    """
    if len(message.channel_id) != CHANNEL_ID_BYTES:
        raise LocalProtocolError(f"redex: a channel id has 32 bytes, got {len(message.channel_id)}")
    match message:
        case SyncRequest():
            return _encode_request(message)
        case SyncResponse():
            return _encode_response(message)
        case SyncHeartbeat():
            head = Subprotocol.REDEX, _Dispatch.HEARTBEAT, message.channel_id
            return _HEARTBEAT.pack(*head, message.tail_seq, message.role, message.wall_clock_ms)
        case SyncNack():
            return _encode_nack(message)


def decode_redex(event: Buffer, *, compat_47: bool = False) -> RedexMessage | Reserved:
    """Read a message.

    With `compat_47`, a request may have the 47 bytes of the documentation, without a request id: it decodes with
    request id 0. 0.23 nodes reject that form.
    """
    view = memoryview(event)
    inner, dispatch = _HEAD.unpack_prefix(view)
    if inner != Subprotocol.REDEX:
        raise MalformedPacket("redex", Fault.BAD_MAGIC, f"inner id 0x{inner:04x}")
    match dispatch:
        case _Dispatch.REQUEST:
            return _decode_request(view, compat_47=compat_47)
        case _Dispatch.RESPONSE:
            return _decode_response(view)
        case _Dispatch.HEARTBEAT:
            return _decode_heartbeat(view)
        case _Dispatch.NACK:
            return _decode_nack(view)
        case _ if dispatch in _RESERVED:
            return Reserved(code=dispatch)
        case _:
            raise MalformedPacket("redex", Fault.UNKNOWN_KIND, f"dispatch code 0x{dispatch:02x}")


def response_size(payload_sizes: Iterable[int]) -> int:
    """Return how many bytes a response with payloads of these sizes has."""
    return _RESPONSE.size + sum(EVENT_COST + size for size in payload_sizes)


def _encode_request(request: SyncRequest) -> bytes:
    head = Subprotocol.REDEX, _Dispatch.REQUEST, request.channel_id
    fields = _REQUEST.pack(*head, request.since_seq, request.chunk_max, request.request_id)
    return fields + bytes((request.bandwidth_class,))


def _encode_response(response: SyncResponse) -> bytes:
    head = _RESPONSE.pack(
        Subprotocol.REDEX,
        _Dispatch.RESPONSE,
        response.channel_id,
        response.first_seq,
        response.leader_first_retained_seq,
        response.request_id,
        len(response.events),
    )
    return head + b"".join(_EVENT.pack(seq, len(payload)) + payload for seq, payload in response.events)


def _encode_nack(nack: SyncNack) -> bytes:
    # Cut where a character ends: the receiver decodes the detail as UTF-8.
    detail = nack.detail.encode()[:MAX_DETAIL].decode(errors="ignore").encode()
    head = Subprotocol.REDEX, _Dispatch.NACK, nack.channel_id
    first = nack.leader_first_retained_seq
    return _NACK.pack(*head, nack.since_seq, nack.code, first, nack.request_id, len(detail)) + detail


def _decode_request(view: memoryview, *, compat_47: bool) -> SyncRequest:
    if compat_47 and len(view) == _SHORT_REQUEST.size:
        _, _, channel, since_seq, chunk_max = _SHORT_REQUEST.unpack(view)
        return SyncRequest(channel_id=channel, since_seq=since_seq, chunk_max=chunk_max, request_id=0)
    _, _, channel, since_seq, chunk_max, request_id = _REQUEST.unpack_prefix(view)
    # Without the byte, or with an unknown one, a request is in the foreground (redex.md §3).
    number = view[_REQUEST.size] if len(view) > _REQUEST.size else 0
    known = BandwidthClass(number) if number <= BandwidthClass.REALTIME else BandwidthClass.FOREGROUND
    return SyncRequest(
        channel_id=channel, since_seq=since_seq, chunk_max=chunk_max, request_id=request_id, bandwidth_class=known
    )


def _decode_response(view: memoryview) -> SyncResponse:
    _, _, channel, first_seq, first_retained, request_id, count = _RESPONSE.unpack_prefix(view)
    # Checked first, so that a huge count costs nothing.
    if count * EVENT_COST > len(view) - _RESPONSE.size:
        raise MalformedPacket("redex response", Fault.TRUNCATED, f"{count} events in {len(view)} bytes")
    return SyncResponse(
        channel_id=channel,
        first_seq=first_seq,
        leader_first_retained_seq=first_retained,
        request_id=request_id,
        events=tuple(_decode_events(view[_RESPONSE.size :], count)),
    )


def _decode_events(view: memoryview, count: int) -> Iterable[tuple[int, bytes]]:
    at = 0
    for _ in range(count):
        seq, size = _EVENT.unpack_prefix(view[at:])
        at += EVENT_COST + size
        if at > len(view):
            raise MalformedPacket("redex event", Fault.TRUNCATED, f"a payload of {size} bytes ends early")
        yield seq, bytes(view[at - size : at])


def _decode_heartbeat(view: memoryview) -> SyncHeartbeat:
    _, _, channel, tail_seq, role, wall_clock_ms = _HEARTBEAT.unpack_prefix(view)
    if role > Role.IDLE:
        raise MalformedPacket("redex heartbeat", Fault.BAD_VALUE, f"role {role}")
    return SyncHeartbeat(channel_id=channel, tail_seq=tail_seq, role=Role(role), wall_clock_ms=wall_clock_ms)


def _decode_nack(view: memoryview) -> SyncNack:
    _, _, channel, since_seq, code, first_retained, request_id, size = _NACK.unpack_prefix(view)
    if not NackCode.NOT_LEADER <= code <= NackCode.CHANNEL_CLOSED:
        raise MalformedPacket("redex nack", Fault.BAD_VALUE, f"code {code}")
    detail = view[_NACK.size : _NACK.size + size]
    if len(detail) < size:
        raise MalformedPacket("redex nack", Fault.TRUNCATED, "the detail ends early")
    return SyncNack(
        channel_id=channel,
        since_seq=since_seq,
        code=NackCode(code),
        leader_first_retained_seq=first_retained,
        request_id=request_id,
        detail=_text(detail),
    )


def _text(raw: memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedPacket("redex nack", Fault.BAD_TEXT, str(error)) from error
