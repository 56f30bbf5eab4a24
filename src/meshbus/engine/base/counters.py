"""Counters of one node: what was dropped, refused or stalled, and why.

A counter is a pair of short words, what and why: ("drop", "bad_tag"), ("relay", "inside"). Drops and refusals are
counted by their `Reason` (policy/reason.py); everything else is counted by name. Counting is one dict operation for a
whole batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from meshbus.policy.reason import Reason


class Counters:
    """Named counts that only grow."""

    __slots__ = ("_counts", "lost")

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self.lost = 0
        """Everything that was dropped or refused so far."""

    def count(self, reason: Reason, count: int = 1) -> None:
        """Count something that was dropped or refused."""
        if count:
            self._counts[reason.counter] += count
            self.lost += count

    def add(self, what: str, why: str, count: int = 1) -> None:
        """Count something that is neither a drop nor a refusal."""
        if count:
            self._counts[what, why] += count

    def forgetting(self, name: str) -> Callable[[], None]:
        """Return what to call when an entry makes room for a newer one; `name` is that of its bound (policy/bound.py)."""
        return partial(self.add, "forget", name)

    def get(self, what: str, why: str) -> int:
        """Return one count."""
        return self._counts.get((what, why), 0)  # not by key: a Counter answers for a missing one in Python

    def total(self, what: str) -> int:
        """Return the sum over all reasons."""
        return sum(count for (kind, _), count in self._counts.items() if kind == what)

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Return all counts, by what and why, in order."""
        result: dict[str, dict[str, int]] = {}
        for (what, why), count in sorted(self._counts.items()):
            result.setdefault(str(what), {})[str(why)] = count  # a member of an enum becomes the word that it is
        return result
