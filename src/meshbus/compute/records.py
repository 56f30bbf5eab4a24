"""The records of daemons as bytes, for whoever keeps them in files: checksummed, and each a whole of its own.

A record is a checkpoint, replaced as a whole, and a journal of what followed it, a sequence of framed groups:

    change    the next checkpoint, as its difference from the one before it
    mark      replaces the mark
    events    are added to `replayed`

Every checkpoint has a number that was drawn for it. A group names the number of the checkpoint that it follows, so that a
journal that belongs to an older checkpoint is recognized and ignored. A last group that a crash has cut off was never
confirmed. So that it differs from one that was damaged later, a journal begins with how much of it is known to be on the
disk, which is written after each group without waiting for it. A decision about a move is such a journal alone: its last
group holds. The files are node/daemons/daemonfiles.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NoReturn, TypeVar

import msgspec

from meshbus.compute.difference import Difference, patched
from meshbus.compute.store import Decision, Mark, Stored
from meshbus.errors import UNDECODABLE, Fault, MalformedPacket
from meshbus.wire.layout import take_field
from meshbus.wire.messages.migration import BufferedEvent

NUMBER_BYTES = 8
"""Length of the number of a checkpoint."""
_DIGEST_BYTES = 16
_MAGIC_BYTES = 4
_CHECKPOINT, _CHANGE, _MARK, _EVENTS, _DECISION = b"MBDK", b"MBDC", b"MBDM", b"MBDE", b"MBDD"
_GROUPS = {_CHANGE, _MARK, _EVENTS, _DECISION}
_LENGTH = struct.Struct("<I")
_CONFIRMED = struct.Struct("<Q")
CONFIRMED_BYTES = 12
"""Length of what a journal begins with."""
_WHAT = "record of a daemon"

T = TypeVar("T")


class _About(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint has beside the snapshot."""

    mark: Mark
    seed: bytes | None = None
    replayed: tuple[BufferedEvent, ...] = ()


class _Change(msgspec.Struct, frozen=True, array_like=True):
    """The next checkpoint."""

    number: bytes
    about: _About
    difference: Difference


def encode_checkpoint_file(number: bytes, stored: Stored) -> list[bytes]:
    """Return a checkpoint in parts, to be written one after the other."""
    about = msgspec.msgpack.encode(_about(stored))
    parts = [number, _LENGTH.pack(len(about)), about, stored.snapshot]
    return [_CHECKPOINT, _digest([_CHECKPOINT, *parts]), *parts]


def decode_checkpoint_file(raw: bytes) -> tuple[bytes, Stored]:
    """Return the number of a checkpoint, and what it holds. Raises MalformedPacket if it is damaged."""
    number, body = _opened(_CHECKPOINT, raw)
    about, snapshot = take_field(_WHAT, "mark", body, _LENGTH.size)
    return number, _stored(_decode(_About, about), bytes(snapshot))


def encode_change(before: bytes, number: bytes, stored: Stored, changed: Difference) -> bytes:
    """Return the group that replaces the checkpoint of one number by the next, whose snapshot differs in this."""
    return _framed(_CHANGE, before, msgspec.msgpack.encode(_Change(number, _about(stored), changed)))


def encode_mark(number: bytes, mark: Mark) -> bytes:
    """Return the group that replaces the mark of the checkpoint of this number."""
    return _framed(_MARK, number, msgspec.msgpack.encode(mark))


def encode_events(number: bytes, events: Sequence[BufferedEvent]) -> bytes:
    """Return the group that adds events to the checkpoint of this number."""
    return _framed(_EVENTS, number, msgspec.msgpack.encode(list(events)))


def decode_journal(raw: bytes, number: bytes, stored: Stored) -> tuple[bytes, Stored, int]:
    """Return the newest number and checkpoint after a journal, and where its next group begins.

    Raises MalformedPacket if a group is damaged that was written completely.
    """
    end = 0
    for magic, group_number, body, group_end in _groups(raw):
        if group_number != number:
            break
        if magic == _CHANGE:
            change = _decode(_Change, body)
            number, stored = change.number, _stored(change.about, patched(stored.snapshot, change.difference))
        elif magic == _MARK:
            stored = msgspec.structs.replace(stored, mark=_decode(Mark, body))
        else:
            added = _decode(list[BufferedEvent], body)
            stored = msgspec.structs.replace(stored, replayed=(*stored.replayed, *added))
        end = group_end
    return number, stored, end


def encode_decision(decision: Decision) -> bytes:
    """Return the group of a decision about a move."""
    return _framed(_DECISION, bytes(NUMBER_BYTES), msgspec.msgpack.encode(decision))


def decode_decisions(raw: bytes) -> tuple[Decision | None, int]:
    """Return the last decision, or None if there is none, and where the next group begins.

    Raises MalformedPacket if a group is damaged that was written completely.
    """
    decision, end = None, 0
    for _, _, body, group_end in _groups(raw):
        decision, end = _decode(Decision, body), group_end
    return decision, end


def _about(stored: Stored) -> _About:
    return _About(stored.mark, stored.seed, stored.replayed)


def _stored(about: _About, snapshot: bytes) -> Stored:
    return Stored(mark=about.mark, snapshot=snapshot, seed=about.seed, replayed=about.replayed)


def _groups(raw: bytes) -> Iterator[tuple[bytes, bytes, memoryview, int]]:
    """Return the groups of a journal: kind, number, content, and where each ends. One that was cut off ends them."""
    view, at, confirmed = memoryview(raw), CONFIRMED_BYTES, _confirmed(raw)
    while at + _LENGTH.size <= len(view):
        (length,) = _LENGTH.unpack_from(view, at)
        start, end = at + _LENGTH.size, at + _LENGTH.size + length
        magic = bytes(view[start : start + _MAGIC_BYTES])
        try:
            if end > len(view) or magic not in _GROUPS:
                _refuse_group(length, magic)
            number, body = _opened(magic, view[start:end])
        except MalformedPacket:
            if at < confirmed:
                raise
            return
        yield magic, number, body, end
        at = end
    if at < confirmed:
        raise MalformedPacket(_WHAT, Fault.TRUNCATED, f"its journal has {len(view)} bytes of {confirmed}")


def _refuse_group(length: int, magic: bytes) -> NoReturn:
    raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"a group of {length} bytes of kind {magic!r} in its journal")


def encode_confirmed(end: int) -> bytes:
    """Return the first bytes of a journal: everything before `end` is on the disk, so that damage there is noticed."""
    packed = _CONFIRMED.pack(end)
    return packed + _digest([packed])[: CONFIRMED_BYTES - len(packed)]


def _confirmed(raw: bytes) -> int:
    head = raw[:CONFIRMED_BYTES]
    if len(head) < CONFIRMED_BYTES:
        return 0
    (end,) = _CONFIRMED.unpack_from(head)
    # A crash may come in the middle of writing it. Then nothing is known, and the groups speak for themselves.
    return int(end) if encode_confirmed(end) == head else 0


def _framed(magic: bytes, number: bytes, body: bytes) -> bytes:
    digest = _digest([magic, number, body])
    return b"".join((_LENGTH.pack(len(magic) + len(digest) + len(number) + len(body)), magic, digest, number, body))


def _opened(magic: bytes, raw: bytes | memoryview) -> tuple[bytes, memoryview]:
    view = memoryview(raw)
    start = len(magic) + _DIGEST_BYTES
    if bytes(view[: len(magic)]) != magic or len(view) < start + NUMBER_BYTES:
        raise MalformedPacket(_WHAT, Fault.BAD_MAGIC, f"{len(view)} bytes of another kind")
    if _digest([magic, view[start:]]) != view[len(magic) : start]:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, "the checksum is wrong")
    return bytes(view[start : start + NUMBER_BYTES]), view[start + NUMBER_BYTES :]


def _digest(parts: Sequence[bytes | memoryview]) -> bytes:
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def _decode(kind: type[T], body: memoryview) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNDECODABLE as error:  # a later version wrote it: the checksum is right
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, str(error)) from error
