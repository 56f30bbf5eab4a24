"""Channel membership (0x0A00): subscribe, unsubscribe and the answer to both (policy.md §4).

Reading is as strict as in net-mesh: neither side answers a message that it cannot read, so both must refuse the same.
A token is opaque here; engine/channels/authorize.py verifies it, and an invalid one counts as none.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TypeAlias

import msgspec

from meshbus.errors import ChannelError, Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

# policy.md §4.2: one byte for the length of a queue group, two for that of a token.
MAX_GROUP_BYTES = 255
MAX_TOKEN_BYTES = 0xFFFF

_HEAD = Struct("<BQB")
"""Kind, nonce and length of the name."""
_ACK = Layout("membership ack", "<BQBB")


class _Kind(IntEnum):
    SUBSCRIBE = 0
    UNSUBSCRIBE = 1
    ACK = 2


class AckReason(IntEnum):
    """Why a subscription was refused; the codes of policy.md §4.2."""

    NONE = 0
    UNAUTHORIZED = 1
    UNKNOWN_CHANNEL = 2
    RATE_LIMITED = 3
    TOO_MANY_CHANNELS = 4
    IDENTITY_NOT_PROVED = 5
    """From net-mesh 0.37 on: the subscriber has to prove its identity first (dialects.md §2.7)."""
    OTHER = 255
    """A reason that this version does not know."""

    @classmethod
    def _missing_(cls, value: object) -> AckReason:  # noqa: ARG003 - every unknown number means the same
        # dialects.md §3.2: a reason of a later version is read, not dropped, or the subscriber would wait in vain.
        return cls.OTHER


class Subscribe(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a publisher for the events of a channel."""

    nonce: int
    """Random; the answer repeats it."""
    channel: ChannelName
    token: bytes = b""
    """A permission token, or nothing."""
    queue_group: str = ""
    """Share the events with the other members of this group; empty for every event."""


class Unsubscribe(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a publisher to stop sending the events of a channel."""

    nonce: int
    channel: ChannelName


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """Answer a Subscribe or an Unsubscribe."""

    nonce: int
    accepted: bool
    reason: AckReason = AckReason.NONE
    """Ignored if accepted; a refusal without a reason is valid (policy.md §4.3)."""


MembershipMessage: TypeAlias = Subscribe | Unsubscribe | Ack


def encode_membership(message: MembershipMessage) -> bytes:
    """Write a membership message."""
    match message:
        case Subscribe():
            return _encode_head(_Kind.SUBSCRIBE, message) + _encode_options(message)
        case Unsubscribe():
            return _encode_head(_Kind.UNSUBSCRIBE, message)
        case Ack(nonce=nonce, accepted=accepted, reason=reason):
            return _ACK.pack(_Kind.ACK, nonce, accepted, reason)


def decode_membership(event: Buffer) -> MembershipMessage:
    """Read a membership message."""
    view = memoryview(event)
    if not view:
        raise MalformedPacket("membership", Fault.TRUNCATED, "empty")
    match view[0]:
        case _Kind.SUBSCRIBE:
            nonce, channel, end = _decode_head("subscribe", view)
            token, queue_group = _decode_options(view[end:])
            return Subscribe(nonce=nonce, channel=channel, token=token, queue_group=queue_group)
        case _Kind.UNSUBSCRIBE:
            nonce, channel, end = _decode_head("unsubscribe", view)
            if end != len(view):
                raise MalformedPacket("unsubscribe", Fault.TRAILING, f"{len(view) - end} bytes")
            return Unsubscribe(nonce=nonce, channel=channel)
        case _Kind.ACK:
            return _decode_ack(view)
        case kind:
            raise MalformedPacket("membership", Fault.UNKNOWN_KIND, f"kind {kind}")


def _encode_head(kind: _Kind, message: Subscribe | Unsubscribe) -> bytes:
    try:
        name = ChannelName(message.channel).encode()
    except ChannelError as error:
        raise LocalProtocolError(str(error)) from error
    if not 0 <= message.nonce <= 0xFFFFFFFFFFFFFFFF:
        raise LocalProtocolError(f"membership: nonce {message.nonce} does not fit 64 bits")
    return _HEAD.pack(kind, message.nonce, len(name)) + name


def _encode_options(message: Subscribe) -> bytes:
    """Write the token and the queue group; without a group, its length byte is omitted too (policy.md §4.2)."""
    try:
        group = message.queue_group.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"subscribe: the queue group is not text: {error}") from error
    if len(group) > MAX_GROUP_BYTES:
        raise LocalProtocolError(f"subscribe: a queue group of {len(group)} bytes, at most {MAX_GROUP_BYTES} fit")
    if len(message.token) > MAX_TOKEN_BYTES:
        raise LocalProtocolError(f"subscribe: a token of {len(message.token)} bytes, at most {MAX_TOKEN_BYTES} fit")
    suffix = bytes((len(group),)) + group if group else b""
    return len(message.token).to_bytes(2, "little") + message.token + suffix


def _decode_head(what: str, view: memoryview) -> tuple[int, ChannelName, int]:
    """Read the nonce and the name; return them and the end of the name."""
    if len(view) < _HEAD.size:
        raise MalformedPacket(what, Fault.TRUNCATED, f"{len(view)} of {_HEAD.size} bytes")
    _, nonce, name_length = _HEAD.unpack_from(view)
    end = _HEAD.size + name_length
    if len(view) < end:
        raise MalformedPacket(what, Fault.TRUNCATED, f"a name of {name_length} bytes in {len(view) - _HEAD.size}")
    try:
        # A legal name is ASCII; another byte becomes a character that the rules for names refuse.
        channel = ChannelName(str(view[_HEAD.size : end], "ascii", "replace"))
    except ChannelError as error:
        raise MalformedPacket(what, Fault.BAD_NAME, str(error)) from error
    return nonce, channel, end


def _decode_options(rest: memoryview) -> tuple[bytes, str]:
    """Read the token and the queue group; both, or only the group, may be missing."""
    if not rest:
        return b"", ""
    # policy.md §4.2: exactly one byte after the name is refused, not read as an empty token.
    if len(rest) < 2:
        raise MalformedPacket("subscribe", Fault.TRUNCATED, "half a token length")
    token_end = 2 + int.from_bytes(rest[:2], "little")
    if len(rest) < token_end:
        raise MalformedPacket("subscribe", Fault.TRUNCATED, f"a token of {token_end - 2} bytes in {len(rest) - 2}")
    return bytes(rest[2:token_end]), _decode_group(rest[token_end:])


def _decode_group(rest: memoryview) -> str:
    if not rest:
        return ""
        # policy.md §4.2: a length of 0 with nothing after it is legal and means no group.
    length = rest[0]
    if length != len(rest) - 1:
        fault = Fault.TRUNCATED if length >= len(rest) else Fault.TRAILING
        raise MalformedPacket("subscribe", fault, f"a queue group of {length} bytes in {len(rest) - 1}")
    try:
        return str(rest[1:], "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedPacket("subscribe", Fault.BAD_TEXT, "the queue group is not UTF-8") from error


def _decode_ack(view: memoryview) -> Ack:
    _, nonce, accepted, reason = _ACK.unpack(view)
    # policy.md §4.2: a 0.23 node refuses such an Ack as a whole.
    if accepted > 1:
        raise MalformedPacket("membership ack", Fault.BAD_VALUE, f"accepted {accepted}, reason {reason}")
    return Ack(nonce=nonce, accepted=bool(accepted), reason=AckReason(reason))
