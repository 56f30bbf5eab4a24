"""The records of daemons as bytes, for whoever keeps them in files: checksummed, and each a whole of its own.

A checkpoint is a file that is replaced as a whole, and has a number drawn for it. Its mark can be replaced, and events can
be added, without writing the checkpoint again: both name the number, so that what belongs to an older checkpoint is
recognized and ignored. The events are a sequence of framed groups; a group that a crash has cut off was never confirmed.
The files are node/daemons/daemonfiles.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

import msgspec

from meshbus.compute.store import Decision, Mark, Stored
from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.messages.migration import BufferedEvent

NUMBER_BYTES = 8
"""Length of the number of a checkpoint."""
_DIGEST_BYTES = 16
_CHECKPOINT, _MARK, _EVENTS, _DECISION = b"MBDC", b"MBDM", b"MBDE", b"MBDD"
_LENGTH = struct.Struct("<I")
_WHAT = "record of a daemon"

T = TypeVar("T")


class _About(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint has beside the snapshot."""

    mark: Mark
    seed: bytes | None = None
    replayed: tuple[BufferedEvent, ...] = ()


def encode_checkpoint_file(number: bytes, stored: Stored) -> list[bytes]:
    """Return a checkpoint in parts, to be written one after the other."""
    about = msgspec.msgpack.encode(_About(stored.mark, stored.seed, stored.replayed))
    parts = [number, _LENGTH.pack(len(about)), about, stored.snapshot]
    return [_CHECKPOINT, _digest(parts), *parts]


def decode_checkpoint_file(raw: bytes) -> tuple[bytes, Stored]:
    """Return the number of a checkpoint, and what it holds. Raises MalformedPacket if it is damaged."""
    number, body = _opened(_CHECKPOINT, raw)
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    about = _decode(_About, body[_LENGTH.size : end])
    return number, Stored(mark=about.mark, snapshot=bytes(body[end:]), seed=about.seed, replayed=about.replayed)


def encode_mark_file(number: bytes, mark: Mark) -> list[bytes]:
    """Return the mark that replaces the one in the checkpoint of this number."""
    return _sealed(_MARK, number, msgspec.msgpack.encode(mark))


def decode_mark_file(raw: bytes) -> tuple[bytes, Mark]:
    """Return the number of the checkpoint that a mark is for, and the mark. Raises MalformedPacket if it is damaged."""
    number, body = _opened(_MARK, raw)
    return number, _decode(Mark, body)


def encode_decision_file(decision: Decision) -> list[bytes]:
    """Return a decision about a move."""
    return _sealed(_DECISION, bytes(NUMBER_BYTES), msgspec.msgpack.encode(decision))


def decode_decision_file(raw: bytes) -> Decision:
    """Return a decision about a move. Raises MalformedPacket if it is damaged."""
    _, body = _opened(_DECISION, raw)
    return _decode(Decision, body)


def encode_event_group(number: bytes, events: Sequence[BufferedEvent]) -> bytes:
    """Return events that follow the checkpoint of this number, as one group."""
    sealed = b"".join(_sealed(_EVENTS, number, msgspec.msgpack.encode(list(events))))
    return _LENGTH.pack(len(sealed)) + sealed


def decode_event_groups(raw: bytes, number: bytes) -> tuple[tuple[BufferedEvent, ...], int]:
    """Return the events that follow the checkpoint of this number, and where the next group begins.

    A last group that was cut off is left out. Raises MalformedPacket if a group before the last one is damaged.
    """
    found: list[BufferedEvent] = []
    view, at = memoryview(raw), 0
    while at + _LENGTH.size <= len(view):
        (length,) = _LENGTH.unpack_from(view, at)
        start, end = at + _LENGTH.size, at + _LENGTH.size + length
        try:
            group_number, body = _opened(_EVENTS, bytes(view[start:end]))
        except MalformedPacket:
            if end >= len(view):
                break
            raise
        if group_number == number:
            found += _decode(list[BufferedEvent], body)
        at = end
    return tuple(found), at


def _sealed(magic: bytes, number: bytes, body: bytes) -> list[bytes]:
    return [magic, _digest([number, body]), number, body]


def _opened(magic: bytes, raw: bytes) -> tuple[bytes, memoryview]:
    view = memoryview(raw)
    start = len(magic) + _DIGEST_BYTES
    if bytes(view[: len(magic)]) != magic or len(view) < start + NUMBER_BYTES:
        raise MalformedPacket(_WHAT, Fault.BAD_MAGIC, f"{len(view)} bytes of another kind")
    if _digest([view[start:]]) != view[len(magic) : start]:
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
    except msgspec.MsgspecError as error:  # a later version wrote it: the checksum is right
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, str(error)) from error
