"""Migration (0x0500): the messages with which a daemon moves from a source to a target (compute.md §4).

Readers ignore bytes after a message. Nodes that all speak the meshbus profile put eight there, the number of the
*attempt*, which the orchestrator draws for each move: a message that was late belongs to an attempt that is over, and
everyone can tell. A move in which a 0.23 node takes part has no such number, and knows no PartsMissing. The roles are in
compute/migration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import FRAME_PREFIX_BYTES, MAX_EVENT, ROUTED_PAYLOAD
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, take_field
from meshbus.wire.messages.causal import LINK_BYTES, CausalLink, pack_link, unpack_link

CHUNK_BYTES = 7000
"""Bytes of a snapshot in one message; the last one may be shorter. Also the longest payload of a buffered event."""
MAX_CHUNKS = 700_000
MAX_BUFFERED = 1_000_000
"""Events in one message or one buffer."""
MAX_RANGES = 512
"""Ranges in one PartsMissing. Our choice: about half a packet; the later ones are told when these have arrived."""
MAX_REASON_BYTES = 1_000
"""Our own texts are cut here; readers take what fits a packet."""

_WHAT = "migration message"
_HEAD = Layout(_WHAT, "<BQ")
_U64 = Layout(_WHAT, "<Q")
_CHUNK = Layout(_WHAT, "<QIII")
_REPLAYED = Layout(_WHAT, f"<Q{LINK_BYTES}s")
_CODE = Layout(_WHAT, "<H")
_COUNT = Layout(_WHAT, "<I")
_EVENT = Layout(_WHAT, f"<{LINK_BYTES}sI")
_MISSING = Layout(_WHAT, "<QII")
_RANGE = Layout(_WHAT, "<II")
_MIN_EVENT_BYTES = _EVENT.size + _U64.size


class Kind(IntEnum):
    """The first byte of a message."""

    TAKE_SNAPSHOT = 0
    SNAPSHOT_READY = 1
    RESTORE_COMPLETE = 2
    REPLAY_COMPLETE = 3
    CUTOVER_NOTIFY = 4
    CLEANUP_COMPLETE = 5
    MIGRATION_FAILED = 6
    BUFFERED_EVENTS = 7
    ACTIVATE_TARGET = 8
    ACTIVATE_ACK = 9
    PARTS_MISSING = 10
    """Of the meshbus profile."""


class FailureCode(IntEnum):
    """Why a migration failed. Only the first may be tried again."""

    NOT_READY = 0
    FACTORY_NOT_FOUND = 1
    COMPUTE_NOT_SUPPORTED = 2
    STATE_FAILED = 3
    """With a text. 0.23 nodes send it for everything about snapshots and envelopes, and for a canceled move."""
    ALREADY_MIGRATING = 4
    IDENTITY_TRANSPORT_FAILED = 5
    """With a text."""
    NOT_READY_TIMEOUT = 6
    """With the number of attempts."""


_WITH_TEXT = frozenset({FailureCode.STATE_FAILED, FailureCode.IDENTITY_TRANSPORT_FAILED})


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    origin: int
    """Origin hash of the daemon."""
    attempt: int | None = None
    """Number of this move; None if a 0.23 node takes part."""


class TakeSnapshot(_Message, frozen=True, kw_only=True):
    """Orchestrator to source: take a snapshot and send it."""

    target_node: int


class SnapshotReady(_Message, frozen=True, kw_only=True):
    """Source to orchestrator to target: one part of a snapshot."""

    seq_through: int
    chunk_index: int
    total_chunks: int
    chunk: bytes


class RestoreComplete(_Message, frozen=True, kw_only=True):
    """Target to orchestrator: the snapshot is restored."""

    restored_seq: int


class ReplayComplete(_Message, frozen=True, kw_only=True):
    """Target to orchestrator: the events that arrived in the meantime are processed."""

    replayed_seq: int
    target_head: CausalLink


class CutoverNotify(_Message, frozen=True, kw_only=True):
    """Orchestrator to source: stop the daemon and hand it over."""

    target_node: int


class CleanupComplete(_Message, frozen=True, kw_only=True):
    """Source to orchestrator: the daemon does not run here any more."""


class MigrationFailed(_Message, frozen=True, kw_only=True):
    """To everyone concerned: the move does not take place."""

    code: FailureCode
    text: str = ""
    """Only with a code that has one."""
    attempts: int = 0
    """Only with NOT_READY_TIMEOUT."""


class BufferedEvent(NamedTuple):
    """An event for a daemon that is moving."""

    link: CausalLink
    payload: bytes
    received_at: int
    """Unix nanoseconds; in an attempt with a number, the number of the event in the replay instead."""


class BufferedEvents(_Message, frozen=True, kw_only=True):
    """To the target: events that the daemon has to process."""

    events: tuple[BufferedEvent, ...] = ()


class ActivateTarget(_Message, frozen=True, kw_only=True):
    """Orchestrator to target: the daemon is yours."""


class ActivateAck(_Message, frozen=True, kw_only=True):
    """Target to orchestrator: the daemon runs here."""

    replayed_seq: int


class PartsMissing(_Message, frozen=True, kw_only=True):
    """Target to orchestrator to source: which parts of a snapshot have not arrived; only in an attempt with a number."""

    seq_through: int
    total_chunks: int
    ranges: tuple[tuple[int, int], ...]
    """The first part of each range and the one after its last, ascending; perhaps not all of them."""


MigrationMessage: TypeAlias = (
    TakeSnapshot
    | SnapshotReady
    | RestoreComplete
    | ReplayComplete
    | CutoverNotify
    | CleanupComplete
    | MigrationFailed
    | BufferedEvents
    | ActivateTarget
    | ActivateAck
    | PartsMissing
)

_KINDS: dict[type, Kind] = {
    TakeSnapshot: Kind.TAKE_SNAPSHOT,
    SnapshotReady: Kind.SNAPSHOT_READY,
    RestoreComplete: Kind.RESTORE_COMPLETE,
    ReplayComplete: Kind.REPLAY_COMPLETE,
    CutoverNotify: Kind.CUTOVER_NOTIFY,
    CleanupComplete: Kind.CLEANUP_COMPLETE,
    MigrationFailed: Kind.MIGRATION_FAILED,
    BufferedEvents: Kind.BUFFERED_EVENTS,
    ActivateTarget: Kind.ACTIVATE_TARGET,
    ActivateAck: Kind.ACTIVATE_ACK,
    PartsMissing: Kind.PARTS_MISSING,
}


def encode_migration(message: MigrationMessage) -> bytes:
    """Write a migration message.

    Raises LocalProtocolError for what does not fit one packet, or what no receiver would take.
    """
    attempt = b"" if message.attempt is None else _U64.pack(message.attempt)
    raw = _HEAD.pack(_KINDS[type(message)], message.origin) + _encode_body(message) + attempt
    if len(raw) > MAX_EVENT:
        raise LocalProtocolError(f"a migration message of {len(raw)} bytes does not fit a packet; at most {MAX_EVENT}")
    return raw


def decode_migration(event: Buffer) -> MigrationMessage:
    """Read a migration message; payloads are copied."""
    view = memoryview(event)
    kind, origin = _HEAD.unpack_prefix(view)
    rest = view[_HEAD.size :]
    match kind:
        case Kind.TAKE_SNAPSHOT | Kind.CUTOVER_NOTIFY:
            (target,) = _U64.unpack_prefix(rest)
            attempt = _attempt(rest[_U64.size :])
            notice = TakeSnapshot if kind == Kind.TAKE_SNAPSHOT else CutoverNotify
            return notice(origin=origin, target_node=target, attempt=attempt)
        case Kind.SNAPSHOT_READY:
            return _decode_chunk(origin, rest)
        case Kind.RESTORE_COMPLETE:
            (seq,) = _U64.unpack_prefix(rest)
            return RestoreComplete(origin=origin, restored_seq=seq, attempt=_attempt(rest[_U64.size :]))
        case Kind.REPLAY_COMPLETE:
            seq, head = _REPLAYED.unpack_prefix(rest)
            attempt = _attempt(rest[_REPLAYED.size :])
            return ReplayComplete(origin=origin, replayed_seq=seq, target_head=unpack_link(head), attempt=attempt)
        case Kind.CLEANUP_COMPLETE:
            return CleanupComplete(origin=origin, attempt=_attempt(rest))
        case Kind.MIGRATION_FAILED:
            return _decode_failure(origin, rest)
        case Kind.BUFFERED_EVENTS:
            return _decode_events(origin, rest)
        case Kind.ACTIVATE_TARGET:
            return ActivateTarget(origin=origin, attempt=_attempt(rest))
        case Kind.ACTIVATE_ACK:
            (seq,) = _U64.unpack_prefix(rest)
            return ActivateAck(origin=origin, replayed_seq=seq, attempt=_attempt(rest[_U64.size :]))
        case Kind.PARTS_MISSING:
            return _decode_missing(origin, rest)
    raise MalformedPacket(_WHAT, Fault.UNKNOWN_KIND, f"kind {kind}")


def split_snapshot(snapshot: bytes) -> Iterator[bytes]:
    """Return the parts of a snapshot in their order; all but the last have the same length."""
    return (snapshot[start : start + CHUNK_BYTES] for start in range(0, len(snapshot), CHUNK_BYTES))


def count_chunks(size: int) -> int:
    """Return the number of parts of a snapshot of `size` bytes."""
    return -(-size // CHUNK_BYTES)


def pack_events(events: Sequence[BufferedEvent]) -> Iterator[tuple[BufferedEvent, ...]]:
    """Divide events into groups that fit one message each, in order."""
    # A relay drops what does not fit a packet together with the routing header (transport.md §7).
    room = ROUTED_PAYLOAD - FRAME_PREFIX_BYTES - _HEAD.size - _COUNT.size - _U64.size
    group, used = list[BufferedEvent](), 0
    for event in events:
        size = _MIN_EVENT_BYTES + len(event.payload)
        if group and used + size > room:
            yield tuple(group)
            group, used = [], 0
        group.append(event)
        used += size
    if group:
        yield tuple(group)


def _encode_body(message: MigrationMessage) -> bytes:
    match message:
        case TakeSnapshot() | CutoverNotify():
            return _U64.pack(message.target_node)
        case SnapshotReady():
            return _encode_chunk(message)
        case RestoreComplete():
            return _U64.pack(message.restored_seq)
        case ReplayComplete():
            return _REPLAYED.pack(message.replayed_seq, pack_link(message.target_head))
        case MigrationFailed():
            return _CODE.pack(message.code) + _encode_reason(message)
        case BufferedEvents():
            return _COUNT.pack(len(message.events)) + b"".join(map(_encode_event, message.events))
        case ActivateAck():
            return _U64.pack(message.replayed_seq)
        case CleanupComplete() | ActivateTarget():
            return b""
        case PartsMissing():
            head = _MISSING.pack(message.seq_through, message.total_chunks, len(message.ranges))
            return head + b"".join(_RANGE.pack(*one) for one in message.ranges)


def _encode_chunk(message: SnapshotReady) -> bytes:
    if problem := _problem_of_chunk(message.chunk_index, message.total_chunks, len(message.chunk)):
        raise LocalProtocolError(problem)
    fields = message.chunk_index, message.total_chunks, len(message.chunk)
    return _CHUNK.pack(message.seq_through, *fields) + message.chunk


def _encode_reason(message: MigrationFailed) -> bytes:
    if message.code == FailureCode.NOT_READY_TIMEOUT:
        return bytes((min(message.attempts, 255),))
    if message.code not in _WITH_TEXT:
        return b""
    # Cut where a character ends: readers decode it as UTF-8.
    text = message.text.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
    return _CODE.pack(len(text)) + text


def _encode_event(event: BufferedEvent) -> bytes:
    if len(event.payload) > CHUNK_BYTES:
        raise LocalProtocolError(f"a buffered event has {len(event.payload)} bytes; at most {CHUNK_BYTES} can move")
    return _EVENT.pack(pack_link(event.link), len(event.payload)) + event.payload + _U64.pack(event.received_at)


def _decode_chunk(origin: int, rest: memoryview) -> SnapshotReady:
    seq, index, total, size = _CHUNK.unpack_prefix(rest)
    if problem := _problem_of_chunk(index, total, size):
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, problem)
    end = _CHUNK.size + size
    if len(rest) < end:
        raise MalformedPacket(_WHAT, Fault.TRUNCATED, "the part of the snapshot ends early")
    return SnapshotReady(
        origin=origin,
        seq_through=seq,
        chunk_index=index,
        total_chunks=total,
        chunk=bytes(rest[_CHUNK.size : end]),
        attempt=_attempt(rest[end:]),
    )


def _problem_of_chunk(index: int, total: int, size: int) -> str:
    if not 1 <= total <= MAX_CHUNKS:
        return f"a snapshot in {total} parts; allowed are 1 to {MAX_CHUNKS}"
    if index >= total:
        return f"part {index} of a snapshot in {total} parts"
    return f"a part of {size} bytes; allowed are {CHUNK_BYTES}" if size > CHUNK_BYTES else ""


def _decode_failure(origin: int, rest: memoryview) -> MigrationFailed:
    (code,) = _CODE.unpack_prefix(rest)
    rest = rest[_CODE.size :]
    if code > FailureCode.NOT_READY_TIMEOUT:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"failure code {code}")
    reason, text, attempts = FailureCode(code), "", 0
    if reason in _WITH_TEXT:
        raw, rest = take_field(_WHAT, "text", rest, _CODE.size)
        text = _text(raw)
    elif reason == FailureCode.NOT_READY_TIMEOUT:
        if not len(rest):
            raise MalformedPacket(_WHAT, Fault.TRUNCATED, "the number of attempts is missing")
        attempts, rest = rest[0], rest[1:]
    return MigrationFailed(origin=origin, code=reason, text=text, attempts=attempts, attempt=_attempt(rest))


def _decode_events(origin: int, rest: memoryview) -> BufferedEvents:
    (count,) = _COUNT.unpack_prefix(rest)
    rest = rest[_COUNT.size :]
    # Checked first, so that a huge count costs nothing.
    if count > MAX_BUFFERED or count > len(rest) // _MIN_EVENT_BYTES:
        raise MalformedPacket(_WHAT, Fault.TRUNCATED, f"{count} events in {len(rest)} bytes")
    events = list[BufferedEvent]()
    for _ in range(count):
        event, rest = _decode_event(rest)
        events.append(event)
    return BufferedEvents(origin=origin, events=tuple(events), attempt=_attempt(rest))


def _decode_missing(origin: int, rest: memoryview) -> PartsMissing:
    seq, total, count = _MISSING.unpack_prefix(rest)
    rest = rest[_MISSING.size :]
    if count > MAX_RANGES or count > len(rest) // _RANGE.size:
        raise MalformedPacket(_WHAT, Fault.TRUNCATED, f"{count} ranges in {len(rest)} bytes")
    ranges = tuple(_RANGE.unpack_prefix(rest[place * _RANGE.size :]) for place in range(count))
    edges = [edge for one in ranges for edge in one]
    if total > MAX_CHUNKS or any(a > b for a, b in pairwise([0, *edges, total])):
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, "the ranges of missing parts do not ascend")
    attempt = _attempt(rest[count * _RANGE.size :])
    return PartsMissing(origin=origin, attempt=attempt, seq_through=seq, total_chunks=total, ranges=ranges)


def _decode_event(view: memoryview) -> tuple[BufferedEvent, memoryview]:
    link, size = _EVENT.unpack_prefix(view)
    if size > CHUNK_BYTES:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"an event of {size} bytes, allowed are {CHUNK_BYTES}")
    end = _EVENT.size + size
    (received_at,) = _U64.unpack_prefix(view[end:])
    return BufferedEvent(unpack_link(link), bytes(view[_EVENT.size : end]), received_at), view[end + _U64.size :]


def _attempt(rest: memoryview) -> int | None:
    # compute.md §4: bytes after a message are ignored, unless they have the length of the number.
    return int.from_bytes(rest, "little") if len(rest) == _U64.size else None


def _text(raw: memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedPacket(_WHAT, Fault.BAD_TEXT, str(error)) from error
