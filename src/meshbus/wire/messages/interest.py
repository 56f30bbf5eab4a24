"""Interest (0x4D03): subscribe to every channel under a prefix, now and when channels appear.

The publisher answers with the channels that it added, removed or refused. It checks permissions for each channel, as
for a single subscription (wire/messages/membership.py). The bytes are in docs/wire/profile.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Self, TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import MAX_NAME_BYTES, ChannelName
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, pack_channel, take_field, unpack_channel
from meshbus.wire.messages.membership import MAX_GROUP_BYTES, AckReason

_INTEREST = Layout("interest", "<BQ")
_MATCHES = Layout("matches", "<BQH")
_CANCEL = Layout("interest cancel", "<BQ")
_MATCH = Struct("<BB")
"""Verdict and length of the name."""


class _Kind(IntEnum):
    INTEREST = 1
    MATCHES = 2
    CANCEL = 3


class Verdict(IntEnum):
    """The result for a channel under the prefix; a refusal is its AckReason + 1."""

    # AckReason 0 means "no reason", so refusals start at 2, and 0 and 1 are free.
    ADDED = 0
    REMOVED = 1
    UNAUTHORIZED = AckReason.UNAUTHORIZED + 1
    UNKNOWN_CHANNEL = AckReason.UNKNOWN_CHANNEL + 1
    RATE_LIMITED = AckReason.RATE_LIMITED + 1
    TOO_MANY_CHANNELS = AckReason.TOO_MANY_CHANNELS + 1

    @classmethod
    def refused(cls, reason: AckReason) -> Self:
        """Return the verdict that carries a reason; a refusal without one reads as unauthorized."""
        return cls(max(reason, AckReason.UNAUTHORIZED) + 1)

    @property
    def reason(self) -> AckReason:
        """The reason of a refusal; NONE for a channel that was added or removed."""
        return AckReason.NONE if self <= Verdict.REMOVED else AckReason(self - 1)


class Interest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a publisher for the events of all channels whose names start with a prefix."""

    req: int
    """Chosen by the subscriber; the answers repeat it."""
    prefix: str
    """Compared byte by byte, such as `sensors/`; empty for all channels."""
    queue_group: str = ""
    """Share the events with the other members of this group; empty for every event."""
    token: bytes = b""
    """A permission token, or nothing."""


class Match(msgspec.Struct, frozen=True):
    """One channel under the prefix, and the result for it."""

    verdict: Verdict
    channel: ChannelName


class Matches(msgspec.Struct, frozen=True, kw_only=True):
    """Answer an interest with its matches; an answer without matches is valid."""

    req: int
    matches: tuple[Match, ...] = ()


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """Cancel an interest and all subscriptions that it created."""

    req: int


InterestMessage: TypeAlias = Interest | Matches | Cancel


def split_matches(req: int, matches: Iterable[Match]) -> Iterator[Matches]:
    """Divide matches into as few messages as possible, in order; without matches, yield one empty message."""
    held: list[Match] = []
    size = _MATCHES.size
    for match in matches:
        wanted = _MATCH.size + len(match.channel)
        # A single match always fits: a name has at most 255 bytes.
        if size + wanted > MAX_EVENT:
            yield Matches(req=req, matches=tuple(held))
            held, size = [], _MATCHES.size
        held.append(match)
        size += wanted
    yield Matches(req=req, matches=tuple(held))


def encode_interest(message: InterestMessage) -> bytes:
    """Write an interest message.

    Raises LocalProtocolError for what does not fit one packet; `split_matches` makes matches fit.
    """
    match message:
        case Interest():
            return _encode_interest(message)
        case Matches(req=req, matches=matches):
            return _fitting(_MATCHES.pack(_Kind.MATCHES, req, len(matches)) + b"".join(map(_encode_match, matches)))
        case Cancel(req=req):
            return _CANCEL.pack(_Kind.CANCEL, req)


def decode_interest(event: Buffer) -> InterestMessage:
    """Read an interest message."""
    view = memoryview(event)
    if not view:
        raise MalformedPacket("interest", Fault.TRUNCATED, "empty")
    match view[0]:
        case _Kind.INTEREST:
            return _decode_interest(view)
        case _Kind.MATCHES:
            return _decode_matches(view)
        case _Kind.CANCEL:
            _, req = _CANCEL.unpack(view)
            return Cancel(req=req)
        case kind:
            raise MalformedPacket("interest", Fault.UNKNOWN_KIND, f"kind {kind}")


def _encode_interest(interest: Interest) -> bytes:
    try:
        # Channel names are ASCII (policy.md §1.1); the name of a queue group may be any text (policy.md §4.2).
        prefix = interest.prefix.encode("ascii")
        group = interest.queue_group.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"interest: a channel prefix is ASCII and a queue group is text: {error}") from error
    if len(prefix) > MAX_NAME_BYTES:
        raise LocalProtocolError(f"interest: a prefix of {len(prefix)} bytes, at most {MAX_NAME_BYTES} fit")
    if len(group) > MAX_GROUP_BYTES:
        raise LocalProtocolError(f"interest: a queue group of {len(group)} bytes, at most {MAX_GROUP_BYTES} fit")
    if len(interest.token) > MAX_EVENT:
        raise LocalProtocolError(f"interest: a token of {len(interest.token)} bytes does not fit one packet")
    head = _INTEREST.pack(_Kind.INTEREST, interest.req)
    names = bytes((len(prefix),)) + prefix + bytes((len(group),)) + group
    return _fitting(head + names + len(interest.token).to_bytes(2, "little") + interest.token)


def _fitting(event: bytes) -> bytes:
    if len(event) > MAX_EVENT:
        raise LocalProtocolError(f"interest: {len(event)} bytes do not fit one packet of {MAX_EVENT}")
    return event


def _encode_match(match: Match) -> bytes:
    name = pack_channel(match.channel)
    return _MATCH.pack(match.verdict, len(name)) + name


def _decode_interest(view: memoryview) -> Interest:
    _, req = _INTEREST.unpack_prefix(view)
    prefix, rest = take_field("interest", "prefix", view[_INTEREST.size :], 1)
    group, rest = take_field("interest", "queue group", rest, 1)
    token, rest = take_field("interest", "token", rest, 2)
    if rest:
        raise MalformedPacket("interest", Fault.TRAILING, f"{len(rest)} bytes")
    try:
        texts = str(prefix, "ascii"), str(group, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedPacket("interest", Fault.BAD_TEXT, "the prefix or the queue group is not text") from error
    return Interest(req=req, prefix=texts[0], queue_group=texts[1], token=bytes(token))


def _decode_matches(view: memoryview) -> Matches:
    _, req, count = _MATCHES.unpack_prefix(view)
    matches: list[Match] = []
    position = _MATCHES.size
    for _ in range(count):
        start = position + _MATCH.size
        if len(view) < start:
            raise MalformedPacket("matches", Fault.TRUNCATED, f"{len(matches)} of {count} matches")
        verdict, length = _MATCH.unpack_from(view, position)
        position = start + length
        matches.append(_decode_match(verdict, view[start:position], length))
    if position != len(view):
        raise MalformedPacket("matches", Fault.TRAILING, f"{len(view) - position} bytes")
    return Matches(req=req, matches=tuple(matches))


def _decode_match(verdict: int, name: memoryview, length: int) -> Match:
    if len(name) < length:
        raise MalformedPacket("matches", Fault.TRUNCATED, f"a name of {length} bytes in {len(name)}")
    # Every code up to the highest is defined, so the conversion below cannot fail.
    if verdict > Verdict.TOO_MANY_CHANNELS:
        raise MalformedPacket("matches", Fault.BAD_VALUE, f"verdict {verdict}")
    return Match(Verdict(verdict), unpack_channel("matches", name))
