"""Log reconciliation (0x0801): how two nodes compare their copies of one causal chain, and exchange what differs.

A chain is named by its origin hash. The hash of an event covers every event before it, so two copies are the same up to
the last event whose hashes agree. compute/reconciling.py has the rules, docs/wire/profile.md the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import FRAME_PREFIX_BYTES, ROUTED_PAYLOAD
from meshbus.wire.header import Buffer
from meshbus.wire.layout import SIZE_BYTES, Layout
from meshbus.wire.messages.causal import LINK_BYTES, CausalEvent, decode_causal, encode_causal
from meshbus.wire.messages.continuity import FORK_BYTES, ForkRecord, decode_fork, encode_fork

_WHAT = "reconciliation message"
_RANGE = Layout(_WHAT, "<BQQQQ")
_DIFF = Layout(_WHAT, "<BQB")
_POINT = Layout(_WHAT, "<QQ")
_BRANCH = Layout(_WHAT, "<BIQ")
_EVENTS = Layout(_WHAT, "<BQQQBH")
_WANT = Layout(_WHAT, "<BQQ")

MAX_POINTS = 72
"""Of one DIFF: their distances double, so these reach over any chain."""
EVENTS_BYTES = ROUTED_PAYLOAD - FRAME_PREFIX_BYTES - _EVENTS.size
"""Room for events in one message, also through a relay."""
MAX_CHAINED_PAYLOAD = EVENTS_BYTES - SIZE_BYTES - LINK_BYTES
"""The longest payload of an event that other nodes can be sent."""


class _Kind(IntEnum):
    RANGE = 1
    DIFF = 2
    BRANCH = 3
    EVENTS = 4
    WANT = 5


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """What the sender has of a chain."""

    origin: int
    first: int
    """Number of the first event that is kept."""
    last: int
    """Number of the last one; `first - 1` if none is kept."""
    hash: int
    """Hash of the last event, or of what the first one must follow."""


class Point(NamedTuple):
    """One event of a chain."""

    sequence: int
    hash: int


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the events after the newest point that both have."""

    origin: int
    points: tuple[Point, ...]
    """From the sender's head backwards; the last one is what its first event follows."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A losing branch that the sender keeps."""

    record: ForkRecord
    """Which chain, from which event on, and the origin that stands for the branch."""
    count: int
    head_hash: int
    """Hash of the last event of the branch."""


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a chain after `split`, or of a branch; several messages in order, up to the last."""

    origin: int
    branch: int = 0
    """0 for the chain itself, otherwise the origin that stands for a losing branch."""
    split: int
    """Number of the last event that both have; the same in all messages of one answer."""
    last: bool
    events: tuple[CausalEvent, ...]


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the events of a branch."""

    origin: int
    branch: int


ReconciliationMessage: TypeAlias = Range | Diff | Branch | Events | Want


def encode_reconciliation(message: ReconciliationMessage) -> bytes:
    """Write a reconciliation message; raise LocalProtocolError for one that peers would refuse."""
    match message:
        case Range():
            if not message.first - 1 <= message.last or not message.first:
                raise LocalProtocolError(f"a range from {message.first} to {message.last}")
            return _RANGE.pack(_Kind.RANGE, message.origin, message.first, message.last, message.hash)
        case Diff():
            return _encode_diff(message)
        case Branch():
            return _BRANCH.pack(_Kind.BRANCH, message.count, message.head_hash) + encode_fork(message.record)
        case Events():
            return _encode_events(message)
        case Want():
            return _WANT.pack(_Kind.WANT, message.origin, message.branch)


def decode_reconciliation(event: Buffer) -> ReconciliationMessage:
    """Read a reconciliation message; whether its events form a chain is another question."""
    view = memoryview(event)
    match view[0] if view else None:
        case None:
            raise MalformedPacket(_WHAT, Fault.TRUNCATED, "empty")
        case _Kind.RANGE:
            return _decode_range(view)
        case _Kind.DIFF:
            return _decode_diff(view)
        case _Kind.BRANCH:
            return _decode_branch(view)
        case _Kind.EVENTS:
            return _decode_events(view)
        case _Kind.WANT:
            _, origin, branch = _WANT.unpack(view)
            return Want(origin=origin, branch=branch)
        case kind:
            raise MalformedPacket(_WHAT, Fault.UNKNOWN_KIND, f"kind {kind}")


def pack_branches(events: Sequence[CausalEvent]) -> Iterator[tuple[CausalEvent, ...]]:
    """Divide events into groups that fit one message each, in order; one empty group if there are none."""
    group, used = list[CausalEvent](), 0
    for event in events:
        size = SIZE_BYTES + LINK_BYTES + len(event.payload)
        if group and used + size > EVENTS_BYTES:
            yield tuple(group)
            group, used = [], 0
        group.append(event)
        used += size
    yield tuple(group)


def _encode_diff(message: Diff) -> bytes:
    if not 1 <= len(message.points) <= MAX_POINTS or not _descends(message.points):
        raise LocalProtocolError(f"1 to {MAX_POINTS} points in descending order, got {len(message.points)}")
    head = _DIFF.pack(_Kind.DIFF, message.origin, len(message.points))
    return head + b"".join(_POINT.pack(*point) for point in message.points)


def _encode_events(message: Events) -> bytes:
    body = encode_causal(message.events)
    if len(body) > EVENTS_BYTES:
        raise LocalProtocolError(f"{_WHAT}: {len(body)} bytes of events do not fit {EVENTS_BYTES}")
    head = message.origin, message.branch, message.split, message.last, len(message.events)
    return _EVENTS.pack(_Kind.EVENTS, *head) + body


def _decode_range(view: memoryview) -> Range:
    _, origin, first, last, digest = _RANGE.unpack(view)
    if not first or last < first - 1:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"a range from {first} to {last}")
    return Range(origin=origin, first=first, last=last, hash=digest)


def _decode_diff(view: memoryview) -> Diff:
    _, origin, count = _DIFF.unpack_prefix(view)
    rest = view[_DIFF.size :]
    if not 1 <= count <= MAX_POINTS or len(rest) != count * _POINT.size:
        raise MalformedPacket(_WHAT, Fault.BAD_LENGTH, f"{len(rest)} bytes for {count} points")
    starts = range(0, len(rest), _POINT.size)
    points = tuple(Point(*_POINT.unpack(rest[start : start + _POINT.size])) for start in starts)
    if not _descends(points):
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, "the points are not in descending order")
    return Diff(origin=origin, points=points)


def _decode_branch(view: memoryview) -> Branch:
    _, count, head_hash = _BRANCH.unpack_prefix(view)
    if len(view) != _BRANCH.size + FORK_BYTES or not count:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"a branch of {count} events in {len(view)} bytes")
    return Branch(record=decode_fork(view[_BRANCH.size :]), count=count, head_hash=head_hash)


def _decode_events(view: memoryview) -> Events:
    _, origin, branch, split, last, count = _EVENTS.unpack_prefix(view)
    body = view[_EVENTS.size :]
    events = tuple(decode_causal(body, count))
    used = sum(SIZE_BYTES + LINK_BYTES + len(event.payload) for event in events)
    if last > 1 or len(events) != count or used != len(body):
        raise MalformedPacket(_WHAT, Fault.BAD_LENGTH, f"{len(events)} of {count} events, {used} of {len(body)} bytes")
    return Events(origin=origin, branch=branch, split=split, last=bool(last), events=events)


def _descends(points: tuple[Point, ...]) -> bool:
    return all(left.sequence > right.sequence for left, right in pairwise(points))
