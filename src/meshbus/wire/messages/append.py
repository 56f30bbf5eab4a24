"""Append (0x4D09): a node hands events to the leader of a replicated channel, which answers when they are durable.

Messages use the reliable stream 0x4D09. A batch that does not fit one packet takes several APPEND messages with the same
request number, which all but the last announce with MORE; the leader appends them at once or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import SIZE_BYTES, Layout, pack_sized, unpack_sized
from meshbus.wire.messages.leadership import MAX_MESSAGE

_APPEND = Layout("append", "<BQ32sBI")
_APPENDED = Layout("appended", "<BQBQIQ")

APPEND_ROOM = MAX_MESSAGE - _APPEND.size
"""8040: the room of an APPEND message for records."""


class _Kind(IntEnum):
    APPEND = 1
    APPENDED = 2


class AppendFlags(IntFlag):
    """How records are to be appended."""

    NONE = 0
    LOCAL = 1
    """Acknowledge when they are on the leader's disk, not on those of a majority."""
    ONCE = 2
    """Leave out what the log has already, by writer, batch and place in the headers of the records."""
    MORE = 4
    """The same request goes on in the next message."""


class Outcome(IntEnum):
    """What became of an append. Only after OK and UNCONFIRMED it is stored; after UNRESOLVED it may be."""

    OK = 0
    UNCONFIRMED = 1
    """Stored by a leader that does not hear from a majority: another leader may set it aside."""
    NOT_LEADER = 2
    NO_MAJORITY = 3
    BACKPRESSURE = 4
    TOO_LARGE = 5
    UNRESOLVED = 6
    UNKNOWN_CHANNEL = 7
    DENIED = 8


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the leader of a channel to append records."""

    req: int
    channel_id: bytes
    flags: AppendFlags = AppendFlags.NONE
    records: tuple[bytes, ...] = ()


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Answer an append."""

    req: int
    outcome: Outcome
    first_seq: int = 0
    """The sequence of the first record that was appended; meaningful for OK and UNCONFIRMED."""
    count: int = 0
    """How many records were appended; with ONCE perhaps fewer than were sent."""
    leader: int = 0
    """For NOT_LEADER, the node that the sender follows; 0 if it knows none."""


AppendMessage: TypeAlias = Append | Appended


def encode_append(message: AppendMessage) -> bytes:
    """Write a message; raise LocalProtocolError for what does not fit one packet."""
    if isinstance(message, Appended):
        outcome = message.outcome, message.first_seq, message.count, message.leader
        return _APPENDED.pack(_Kind.APPENDED, message.req, *outcome)
    head = _APPEND.pack(_Kind.APPEND, message.req, message.channel_id, message.flags, len(message.records))
    event = head + pack_sized(message.records)
    if len(event) > MAX_MESSAGE:
        raise LocalProtocolError(f"append: {len(event)} bytes do not fit one packet of {MAX_MESSAGE}")
    return event


def decode_append(event: Buffer) -> AppendMessage:
    """Read a message; records are copied."""
    view = memoryview(event)
    kind = view[0] if view else 0
    if kind == _Kind.APPEND:
        _, req, channel_id, flags, count = _APPEND.unpack_prefix(view)
        if flags > sum(AppendFlags):
            raise MalformedPacket("append", Fault.BAD_VALUE, f"flags {flags}")
        records = unpack_sized("append", view[_APPEND.size :], count)
        return Append(req=req, channel_id=channel_id, flags=AppendFlags(flags), records=records)
    if kind == _Kind.APPENDED:
        _, req, outcome, first_seq, count, leader = _APPENDED.unpack(view)
        if outcome not in set(Outcome):
            raise MalformedPacket("appended", Fault.BAD_VALUE, f"outcome {outcome}")
        return Appended(req=req, outcome=Outcome(outcome), first_seq=first_seq, count=count, leader=leader)
    raise MalformedPacket("append", Fault.UNKNOWN_KIND, f"kind {kind}")


def split_append(req: int, channel_id: bytes, records: Sequence[bytes], flags: AppendFlags) -> Iterator[Append]:
    """Yield the messages of one append, each of which fits a packet; at least one."""
    start = size = 0
    for place, record in enumerate(records):
        size += SIZE_BYTES + len(record)
        if size > APPEND_ROOM and place > start:
            part = tuple(records[start:place])
            yield Append(req=req, channel_id=channel_id, flags=flags | AppendFlags.MORE, records=part)
            start, size = place, SIZE_BYTES + len(record)
    yield Append(req=req, channel_id=channel_id, flags=flags, records=tuple(records[start:]))
