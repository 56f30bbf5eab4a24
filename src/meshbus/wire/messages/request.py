"""Request and reply (0x4D06): ask the responder of a channel, and receive replies up to the last one.

A request is subject to the policy of its channel. engine/channels/request.py matches replies with requests, and drops
late ones. A message may be larger than a packet: it is then sent in parts (wire/messages/large.py). The bytes are in
docs/wire/profile.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, pack_channel, unpack_channel
from meshbus.wire.messages.large import MAX_MESSAGE

_REQUEST = Layout("request", "<BQIB")
_REPLY = Layout("reply", "<BQBB")
_CANCEL = Layout("request cancel", "<BQ")

MAX_REPLY_PAYLOAD = MAX_EVENT - _REPLY.size
"""8093: a longer reply does not fit a packet."""


class _Kind(IntEnum):
    REQUEST = 1
    REPLY = 2
    CANCEL = 3


class ReplyStatus(IntEnum):
    """Result of a request."""

    OK = 0
    NO_RESPONDER = 1
    """The channel is known, but has no responder."""
    UNKNOWN_CHANNEL = 2
    DENIED = 3
    """The channel's policy refuses the requester."""
    FAILED = 4
    """The responder failed; the payload may describe the error as text."""
    BUSY = 5
    """Too many requests at once."""
    EXPIRED = 6
    """The deadline passed before the answer was ready."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the responder of a channel."""

    req: int
    """Chosen by the requester; every reply repeats it."""
    deadline_ms: int
    """How long the requester waits, counted from receipt, so that the clocks of both need not agree."""
    channel: ChannelName
    payload: bytes = b""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer a request, in part or in full."""

    req: int
    status: ReplyStatus = ReplyStatus.OK
    last: bool = True
    """No more replies follow."""
    payload: bytes = b""


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """Withdraw a request: no answer is needed any more."""

    req: int


RequestMessage: TypeAlias = Request | Reply | Cancel


def encode_request(message: RequestMessage) -> bytes:
    """Write a request message.

    Raises LocalProtocolError for what not even parts can carry.
    """
    match message:
        case Request():
            return _encode_request(message)
        case Reply(req=req, status=status, last=last, payload=payload):
            return _fitting(_REPLY.pack(_Kind.REPLY, req, status, last) + payload)
        case Cancel(req=req):
            return _CANCEL.pack(_Kind.CANCEL, req)


def decode_request(event: Buffer) -> RequestMessage:
    """Read a request message; payloads are copied."""
    view = memoryview(event)
    if not view:
        raise MalformedPacket("request", Fault.TRUNCATED, "empty")
    match view[0]:
        case _Kind.REQUEST:
            return _decode_request(view)
        case _Kind.REPLY:
            return _decode_reply(view)
        case _Kind.CANCEL:
            _, req = _CANCEL.unpack(view)
            return Cancel(req=req)
        case kind:
            raise MalformedPacket("request", Fault.UNKNOWN_KIND, f"kind {kind}")


def _encode_request(request: Request) -> bytes:
    name = pack_channel(request.channel)
    head = _REQUEST.pack(_Kind.REQUEST, request.req, request.deadline_ms, len(name))
    return _fitting(head + name + request.payload)


def _fitting(event: bytes) -> bytes:
    if len(event) > MAX_MESSAGE:
        raise LocalProtocolError(f"request: {len(event)} bytes are too large; at most {MAX_MESSAGE} can be sent")
    return event


def _decode_request(view: memoryview) -> Request:
    _, req, deadline_ms, length = _REQUEST.unpack_prefix(view)
    end = _REQUEST.size + length
    if len(view) < end:
        raise MalformedPacket("request", Fault.TRUNCATED, f"a name of {length} bytes in {len(view) - _REQUEST.size}")
    channel = unpack_channel("request", view[_REQUEST.size : end])
    # Copied, so that keeping the payload does not keep the memory of its whole batch.
    return Request(req=req, deadline_ms=deadline_ms, channel=channel, payload=bytes(view[end:]))


def _decode_reply(view: memoryview) -> Reply:
    _, req, status, last = _REPLY.unpack_prefix(view)
    # A status or flag of a later version must not be mistaken for a known one.
    if status > ReplyStatus.EXPIRED or last > 1:
        raise MalformedPacket("reply", Fault.BAD_VALUE, f"status {status}, last {last}")
    return Reply(req=req, status=ReplyStatus(status), last=bool(last), payload=bytes(view[_REPLY.size :]))
