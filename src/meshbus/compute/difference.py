"""What has changed between two snapshots of a daemon, as pages: a large state of which little changes is not written again.

The daemon's own bytes begin at another place in each snapshot, after positions and outputs. They are compared page by page
from where they begin; everything before them is short and always written. A state that moves inside its bytes, because
something is inserted in front, has changed from there on. The records that hold differences are compute/records.py.
"""

from __future__ import annotations

import msgspec

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.messages.checkpoint import is_checkpoint, own_state_at
from meshbus.wire.messages.snapshot import STATE_AT

PAGE_BYTES = 16_384
"""Our choice: a disk writes this in hardly more time than 4 KiB, and a state of 16 MiB has a thousand of them to compare."""


class Difference(msgspec.Struct, frozen=True, array_like=True):
    """How to make a snapshot of the one before it."""

    head: bytes
    """Everything before the daemon's own bytes."""
    length: int
    """Bytes after the head."""
    pages: tuple[tuple[int, bytes], ...]
    """The pages that differ, by their place."""


def difference(before: bytes, after: bytes) -> Difference:
    """Compare two snapshots."""
    old, new = _body_at(before), _body_at(after)
    shift = old - new
    pages = []
    for place, start in enumerate(range(new, len(after), PAGE_BYTES)):
        page = after[start : start + PAGE_BYTES]
        if before[start + shift : start + shift + len(page)] != page:
            pages.append((place, page))
    return Difference(after[:new], len(after) - new, tuple(pages))


def patched(before: bytes, change: Difference) -> bytes:
    """Return the snapshot that a difference makes of the one before it; raise MalformedPacket if they do not fit."""
    start = _body_at(before)
    body = bytearray(before[start : start + change.length])
    body.extend(bytes(change.length - len(body)))
    for place, page in change.pages:
        body[place * PAGE_BYTES : place * PAGE_BYTES + len(page)] = page
    if len(body) != change.length:
        problem = f"{len(body)} bytes, expected {change.length}"
        raise MalformedPacket("difference of snapshots", Fault.BAD_VALUE, problem)
    return b"".join((change.head, body))


def _body_at(snapshot: bytes) -> int:
    """Return where the daemon's own bytes begin; 0 if that cannot be seen."""
    state = memoryview(snapshot)[STATE_AT:]
    try:
        return STATE_AT + own_state_at(state) if is_checkpoint(state) else min(STATE_AT, len(snapshot))
    except MalformedPacket:
        return 0
