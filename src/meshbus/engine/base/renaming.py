"""Tables whose keys are node ids, or begin with one, when a node goes on under another id (the hook `renamed` of services).

What is there for the new id already is newer than what was kept for the old one, and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from typing import Any, TypeVar

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.deadlines import Deadlines

Value = TypeVar("Value")


def move(table: MutableMapping[int, Any], old: int, new: int) -> None:
    """Move the entry of a node to its new id."""
    if old in table:
        entry = table.pop(old)
        table.setdefault(new, entry)


def move_kept(table: BoundedMap[int, Value], old: int, new: int) -> None:
    """Do the same in a map that forgets the oldest entries."""
    entry = table.pop(old)
    if entry is not None and new not in table:
        table.put(new, entry)


def move_pairs(table: dict[tuple[int, Any], Value], old: int, new: int) -> None:
    """Do the same for keys that begin with a node id."""
    for key in [key for key in table if key[0] == old]:
        entry = table.pop(key)
        table.setdefault((new, key[1]), entry)


def move_due(deadlines: Deadlines[int], old: int, new: int) -> None:
    """Do the same for deadlines."""
    time = deadlines.get(old)
    if time is not None:
        deadlines.drop(old)
        if new not in deadlines:
            deadlines.set(new, time)


def move_due_pairs(deadlines: Deadlines[tuple[int, int]], old: int, new: int) -> None:
    """Do the same for deadlines of keys that begin with a node id."""
    for key in [key for key in deadlines if key[0] == old]:
        time = deadlines.get(key)
        deadlines.drop(key)
        if time is not None:
            deadlines.set((new, key[1]), time)


def add_up(counts: Counter[int], old: int, new: int) -> None:
    """Count what belongs to a node under its new id."""
    if counts[old]:
        counts[new] += counts[old]
    del counts[old]
