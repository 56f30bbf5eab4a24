"""The one registry of counters: what was dropped, refused, stalled, and why.

A counter is a pair of short words, what and why: ("drop", "bad_tag"), ("refuse", "unauthorized"). Counting is a dict
operation off the packet path; batches are counted at once.
"""

from __future__ import annotations

from collections import Counter


class Counters:
    """Named counts that only grow."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, what: str, why: str, count: int = 1) -> None:
        """Count something."""
        if count:
            self._counts[what, why] += count

    def get(self, what: str, why: str) -> int:
        """Give one count."""
        return self._counts[what, why]

    def total(self, what: str) -> int:
        """Give the sum over all reasons."""
        return sum(count for (kind, _), count in self._counts.items() if kind == what)

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Give all counts, by what and why, in order."""
        result: dict[str, dict[str, int]] = {}
        for (what, why), count in sorted(self._counts.items()):
            result.setdefault(what, {})[why] = count
        return result
