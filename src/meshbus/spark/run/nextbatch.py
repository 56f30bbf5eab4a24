"""Choose where the next batch ends in each log: within a limit of rows, fairly, and after whole sealed files.

Pure functions. A sealed file that is taken whole becomes part of the tables as it is, and rows of a part of one must be
converted, so a batch ends between files wherever that is possible. A log that is written fast is thus taken by whole
files only: the rest is sealed soon. A log that sealed nothing since the last batch is taken up to its end, so that a slow
channel is fresh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshbus.spark.io.offsets import share


class Waiting(NamedTuple):
    """The rows of one log that were not read."""

    first: int
    end: int
    files: Sequence[int]
    """The ends of its sealed files, in order."""

    def last_file(self, limit: int) -> int | None:
        """Return the end of the last file that ends between `first` and a limit, if there is one."""
        return max((end for end in self.files if self.first < end <= limit), default=None)

    @property
    def next_file(self) -> int | None:
        """The end of the file that `first` is in; None if its row is not sealed."""
        return min((end for end in self.files if end > self.first), default=None)


def next_ends(waiting: Mapping[str, Waiting], rows: int, turn: int) -> dict[str, int]:
    """Return the end of the next batch in each log that it reads; empty if nothing waits.

    A batch has at most `rows` rows, or one file if that has more. What a log does not need goes to the others. Logs whose
    share is less than a file take what is left over; `turn` decides which of them is first.
    """
    shares = share({name: log.end - log.first for name, log in waiting.items() if log.end > log.first}, rows)
    ends: dict[str, int] = {}
    later: list[str] = []
    for name, granted in shares.items():
        log = waiting[name]
        end = log.last_file(log.first + granted)
        if end is None and log.next_file is None:
            end = log.first + granted
        if end is None:
            later.append(name)
        elif end > log.first:
            ends[name] = end
    left = rows - sum(end - waiting[name].first for name, end in ends.items())
    for name in _rotated(later, turn):
        log, end = waiting[name], waiting[name].next_file
        if end is not None and (not ends or end - log.first <= left):
            ends[name] = end
            left -= end - log.first
    if not ends and shares:  # a limit below the number of logs
        name = _rotated(sorted(shares), turn)[0]
        ends[name] = waiting[name].first + 1
    return ends


def _rotated(names: Sequence[str], turn: int) -> list[str]:
    place = turn % len(names) if names else 0
    return [*names[place:], *names[:place]]
