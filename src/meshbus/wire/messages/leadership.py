"""Leadership (0x4D05): epochs, promises and replicated events between meshbus members of a replicated channel.

A candidate proposes an epoch and collects promises, copies what the best promiser has more than itself, and then sends
its log with DATA, which every member confirms with STORED once it is on disk. All messages carry the epoch in which
they were sent, so that nothing that was delayed can be taken for something newer. docs/wire/profile.md has the bytes,
docs/decisions/0033 the reasons. The counterpart for 0.23 members is redex.py, which has no epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import FRAME_PREFIX_BYTES, ROUTED_PAYLOAD
from meshbus.wire.header import Buffer
from meshbus.wire.layout import SIZE_BYTES, Layout, pack_sized, unpack_sized

# Kind, channel id and epoch begin every message.
_HEAD = Layout("leadership", "<B32sQ")
_PROPOSE = Layout("leadership propose", "<B32sQQQBQ")
_PROMISE = Layout("leadership promise", "<B32sQBQQQ")
_STORED = Layout("leadership stored", "<B32sQQQQQQI")
_FETCH = Layout("leadership fetch", "<B32sQQI")
_DATA = Layout("leadership data", "<B32sQQQQQQQI")
_CONFIG = Layout("leadership config", "<QIB")
_MEMBER = Layout("leadership config", "<QQ")

# redex.md §8: a replica set has at most 16 members.
MAX_MEMBERS = 16
MAX_SEQ = (1 << 63) - 1
"""The highest sequence of a log, and the highest epoch."""
EVENT_COST = SIZE_BYTES
"""4: what an event of a DATA message costs in addition to its payload."""
DATA_HEAD = _DATA.size
"""93: what a DATA message has before the sizes of its events."""
DATA_PREV_AT, DATA_FIRST_AT = 49, 81
"""Where in it the epoch before its first event is, and the sequence of that event."""
MAX_MESSAGE = ROUTED_PAYLOAD - FRAME_PREFIX_BYTES
"""8086: the longest message, so that it passes a relay too."""
DATA_ROOM = MAX_MESSAGE - DATA_HEAD
"""7993: the room of a DATA message for events."""
MAX_REPLICATED = DATA_ROOM - EVENT_COST
"""7989: the largest record of a channel that is replicated with epochs."""


class _Kind(IntEnum):
    PROPOSE = 1
    PROMISE = 2
    STALE = 3
    STORED = 4
    FETCH = 5
    DATA = 6
    CONFIG = 7
    TRANSFER = 8


class _Flags(IntFlag):
    NONE = 0
    TRIAL = 1


class Member(msgspec.Struct, frozen=True, order=True):
    """A node of a replica set, with the incarnation of its memory: a node that lost its disk has a new one."""

    node: int
    incarnation: int


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The voting members of a replica set. A config of a later epoch replaces all earlier ones."""

    epoch: int
    """The epoch whose leader made or confirmed it."""
    version: int
    members: tuple[Member, ...]

    @property
    def rank(self) -> tuple[int, int]:
        """Which of two configs is newer."""
        return self.epoch, self.version


class Propose(msgspec.Struct, frozen=True, kw_only=True):
    """Ask to be the leader of an epoch, or in a trial, whether that would be promised."""

    channel_id: bytes
    epoch: int
    leader: int
    incarnation: int
    trial: bool = False
    founding: int = 0
    """A hash of the nodes that are to found the set (`founding_of`); 0 if the sender knows that it is founded."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """Promise to accept nothing of earlier epochs, and report the own log and config. A trial promises nothing."""

    channel_id: bytes
    epoch: int
    trial: bool = False
    incarnation: int
    last_epoch: int
    """The epoch of the end of the log."""
    tail: int
    """The next sequence, of what is on disk."""
    config: Config | None = None
    """The newest config that the sender has stored; None if it has none."""


class Stale(msgspec.Struct, frozen=True, kw_only=True):
    """Reject a message of an old epoch; `epoch` is the highest that the sender has promised."""

    channel_id: bytes
    epoch: int


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Confirm that the log equals the leader's up to `tail` and is on disk."""

    channel_id: bytes
    epoch: int
    incarnation: int
    round: int
    """The highest round of DATA that was received in this epoch."""
    last_epoch: int
    tail: int
    config_epoch: int
    config_version: int


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for events from a sequence on: a member asks its leader, a candidate the best promiser."""

    channel_id: bytes
    epoch: int
    first: int
    max_bytes: int


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive events that one epoch appended; without events, a heartbeat or the start of an epoch."""

    channel_id: bytes
    epoch: int
    round: int
    """Counts the leader's heartbeats; 0 if the sender is a promiser that answers a candidate."""
    prev_epoch: int
    """The epoch of the event before the first one; 0 if there is none."""
    entry_epoch: int
    """The epoch in which the events were appended."""
    committed: int
    """All events below this sequence are on disk at a majority."""
    first_retained: int
    """The first sequence that the sender still has."""
    first_seq: int
    payloads: Sequence[bytes] = ()


class Configure(msgspec.Struct, frozen=True, kw_only=True):
    """Store a config; confirmed by the next STORED."""

    channel_id: bytes
    epoch: int
    config: Config


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a member to lead next: the leader has stopped appending, and the member has everything."""

    channel_id: bytes
    epoch: int


LeadershipMessage: TypeAlias = Propose | Promise | Stale | Stored | Fetch | Data | Configure | Transfer


def encode_leadership(message: LeadershipMessage) -> bytes:
    """Write a message; raise LocalProtocolError for what does not fit one packet."""
    channel, epoch = message.channel_id, message.epoch
    if len(channel) != 32:
        raise LocalProtocolError(f"leadership: a channel id has 32 bytes, got {len(channel)}")
    match message:
        case Propose():
            fields = message.leader, message.incarnation, message.trial, message.founding
            return _PROPOSE.pack(_Kind.PROPOSE, channel, epoch, *fields)
        case Promise():
            return _encode_promise(message)
        case Stale():
            return _HEAD.pack(_Kind.STALE, channel, epoch)
        case Stored():
            return _encode_stored(message)
        case Fetch():
            return _FETCH.pack(_Kind.FETCH, channel, epoch, message.first, message.max_bytes)
        case Data():
            return _encode_data(message)
        case Configure():
            return _HEAD.pack(_Kind.CONFIG, channel, epoch) + _encode_config(message.config)
        case Transfer():
            return _HEAD.pack(_Kind.TRANSFER, channel, epoch)


def decode_leadership(event: Buffer) -> LeadershipMessage:
    """Read a message; payloads are copied."""
    view = memoryview(event)
    kind, channel, epoch = _HEAD.unpack_prefix(view)
    _seq(epoch)  # epochs are limited like sequences: tables store both as BIGINT
    match kind:
        case _Kind.PROPOSE:
            return _decode_propose(view)
        case _Kind.PROMISE:
            return _decode_promise(view)
        case _Kind.STALE:
            _HEAD.unpack(view)
            return Stale(channel_id=channel, epoch=epoch)
        case _Kind.STORED:
            return _decode_stored(view)
        case _Kind.FETCH:
            *_, first, max_bytes = _FETCH.unpack(view)
            return Fetch(channel_id=channel, epoch=epoch, first=_seq(first), max_bytes=max_bytes)
        case _Kind.DATA:
            return _decode_data(view)
        case _Kind.CONFIG:
            return _decode_configure(view)
        case _Kind.TRANSFER:
            _HEAD.unpack(view)
            return Transfer(channel_id=channel, epoch=epoch)
        case _:
            raise MalformedPacket("leadership", Fault.UNKNOWN_KIND, f"kind {kind}")


def _encode_config(config: Config | None) -> bytes:
    if config is None:
        return _CONFIG.pack(0, 0, 0)
    if not 1 <= len(config.members) <= MAX_MEMBERS:
        raise LocalProtocolError(f"leadership: a config has 1 to {MAX_MEMBERS} members, got {len(config.members)}")
    members = b"".join(_MEMBER.pack(member.node, member.incarnation) for member in config.members)
    return _CONFIG.pack(config.epoch, config.version, len(config.members)) + members


def _decode_config(view: memoryview) -> Config | None:
    epoch, version, count = _CONFIG.unpack_prefix(view)
    if len(view) != _CONFIG.size + count * _MEMBER.size:
        fault = Fault.TRUNCATED if len(view) < _CONFIG.size + count * _MEMBER.size else Fault.TRAILING
        raise MalformedPacket("leadership config", fault, f"{count} members in {len(view)} bytes")
    if not count and not epoch and not version:
        return None
    rows = (_MEMBER.unpack_prefix(view[_CONFIG.size + place * _MEMBER.size :]) for place in range(count))
    members = tuple(Member(*row) for row in rows)
    nodes = {member.node for member in members}
    if not 1 <= len(nodes) == count <= MAX_MEMBERS or not epoch or not version:
        raise MalformedPacket("leadership config", Fault.BAD_VALUE, f"version {version}, {count} members")
    return Config(epoch=epoch, version=version, members=members)


def _encode_promise(promise: Promise) -> bytes:
    fields = promise.trial, promise.incarnation, promise.last_epoch, promise.tail
    return _PROMISE.pack(_Kind.PROMISE, promise.channel_id, promise.epoch, *fields) + _encode_config(promise.config)


def _encode_stored(stored: Stored) -> bytes:
    return _STORED.pack(
        _Kind.STORED,
        stored.channel_id,
        stored.epoch,
        stored.incarnation,
        stored.round,
        stored.last_epoch,
        stored.tail,
        stored.config_epoch,
        stored.config_version,
    )


def pack_data_head(data: Data, prev_epoch: int, first_seq: int, count: int) -> bytes:
    """Write the head of a DATA message with some of the events."""
    return _DATA.pack(
        _Kind.DATA,
        data.channel_id,
        data.epoch,
        data.round,
        prev_epoch,
        data.entry_epoch,
        data.committed,
        data.first_retained,
        first_seq,
        count,
    )


def check_size(size: int) -> None:
    """Raise LocalProtocolError for a DATA message that does not fit one packet."""
    if size > MAX_MESSAGE:
        raise LocalProtocolError(f"leadership data: {size} bytes do not fit one packet of {MAX_MESSAGE}")


def _encode_data(data: Data) -> bytes:
    event = pack_data_head(data, data.prev_epoch, data.first_seq, len(data.payloads)) + pack_sized(data.payloads)
    check_size(len(event))
    return event


def _decode_propose(view: memoryview) -> Propose:
    _, channel, epoch, leader, incarnation, flags, founding = _PROPOSE.unpack(view)
    return Propose(
        channel_id=channel,
        epoch=epoch,
        leader=leader,
        incarnation=incarnation,
        trial=_trial(flags),
        founding=founding,
    )


def _decode_promise(view: memoryview) -> Promise:
    _, channel, epoch, flags, incarnation, last_epoch, tail = _PROMISE.unpack_prefix(view)
    return Promise(
        channel_id=channel,
        epoch=epoch,
        trial=_trial(flags),
        incarnation=incarnation,
        last_epoch=last_epoch,
        tail=_seq(tail),
        config=_decode_config(view[_PROMISE.size :]),
    )


def _decode_stored(view: memoryview) -> Stored:
    _, channel, epoch, incarnation, round_, last_epoch, tail, config_epoch, config_version = _STORED.unpack(view)
    return Stored(
        channel_id=channel,
        epoch=epoch,
        incarnation=incarnation,
        round=round_,
        last_epoch=last_epoch,
        tail=_seq(tail),
        config_epoch=config_epoch,
        config_version=config_version,
    )


def _decode_data(view: memoryview) -> Data:
    _, channel, epoch, round_, prev, entry, committed, retained, first, count = _DATA.unpack_prefix(view)
    payloads = unpack_sized("leadership data", view[_DATA.size :], count)
    if max(committed, retained, first + count) > MAX_SEQ or not prev <= entry <= epoch or (first == 0) != (prev == 0):
        raise MalformedPacket("leadership data", Fault.BAD_VALUE, f"epochs {prev}, {entry}, {epoch}, first {first}")
    return Data(
        channel_id=channel,
        epoch=epoch,
        round=round_,
        prev_epoch=prev,
        entry_epoch=entry,
        committed=committed,
        first_retained=retained,
        first_seq=first,
        payloads=payloads,
    )


def _decode_configure(view: memoryview) -> Configure:
    _, channel, epoch = _HEAD.unpack_prefix(view)
    config = _decode_config(view[_HEAD.size :])
    if config is None or config.epoch > epoch:
        raise MalformedPacket("leadership config", Fault.BAD_VALUE, f"no config of epoch {epoch} or before")
    return Configure(channel_id=channel, epoch=epoch, config=config)


def _trial(flags: int) -> bool:
    if flags > _Flags.TRIAL:
        raise MalformedPacket("leadership", Fault.BAD_VALUE, f"flags {flags}")
    return flags == _Flags.TRIAL


def _seq(seq: int) -> int:
    if seq > MAX_SEQ:
        raise MalformedPacket("leadership", Fault.BAD_VALUE, f"sequence or epoch {seq}")
    return seq
