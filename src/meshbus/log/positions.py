"""Positions in replicated logs, marked beside a log: which of its rows are the same events as those of other logs.

    <log folder>/_positions.json    {"version": 1, "marks": [{"log_id": "5f…", "origin": "01…", "first": 0}, …]}

The members of a replicated channel have its events at the same positions, so (log id, position) names an event. Two kinds
of log hold such events: the replica of a member, whose sequences are the positions, and the log of a subscriber, in which
the publish numbers are, because the leader numbers what it sends by its log. A packet does not say who published an
event of a replicated channel; it names the leader. Without a mark nothing would tell that both logs have the same events.

The id of a replicated log follows from the mesh key and the channel (`replicated_log_id`), so that all members and
subscribers know it and two meshes differ. A replica that exists keeps the id in its manifest; its mark has the present
one. Decision 0044 has the reasons, spark/lake/numbering.py the use.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from meshbus.log.sidefile import FORMAT, Content, SideFile

LOG_ID_BYTES = 16
MAX_MARKS = 64
"""Marks of one log. Our choice: a set has a few members, and they are seldom replaced."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """From a sequence on, numbers in a log are positions in a replicated one."""

    log_id: str
    """Id of the replicated log, 32 hex digits."""
    origin: str = ""
    """Origin hash of the sender whose publish numbers are positions, 16 hex digits; empty if the sequences are."""
    first: int = 0
    """First sequence for which that is so; it ends with the next mark of the same sender."""


class _Content(Content, frozen=True):
    marks: tuple[Mark, ...]


_FILE = SideFile("positions", _Content, "positions")


def replicated_log_id(mesh_key: bytes, channel: str) -> bytes:
    """Return the id of the log of a replicated channel."""
    return hashlib.blake2s(channel.encode(), key=mesh_key, person=b"meshlog1", digest_size=LOG_ID_BYTES).digest()


def read_marks(folder: Path) -> tuple[Mark, ...]:
    """Return the marks of a log in the order of their sequences. Raises LogError if the file is damaged or newer."""
    content = _FILE.read(folder)
    return () if content is None else _in_order(content.marks)


def add_mark(folder: Path, mark: Mark) -> bool:
    """Store a mark, unless it is so already or there is no room; return whether it is so now.

    Raises LogError if the file cannot be written, or if another process is writing it.
    """
    full = False

    def change(content: _Content | None) -> _Content | None:
        nonlocal full
        known = () if content is None else content.marks
        present = [other for other in _in_order(known) if other.origin == mark.origin and other.first <= mark.first]
        if present and present[-1].log_id == mark.log_id:
            return None
        full = len(known) >= MAX_MARKS
        return None if full else _Content(FORMAT, (*known, mark))

    _FILE.change(folder, change)
    return not full


def _in_order(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda mark: mark.first))
