"""Recent: the newest events of a log in memory, as the appends in which they came.

An append is kept as it came, so that remembering and forgetting cost little for each event. What is kept has no gaps, and
ends with the log. The oldest appends go when enough bytes are kept without them; the newest always stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from meshbus.policy.bound import Bound, By
from meshbus.wire.column import fitting, joined, nbytes_of

KEPT_BYTES = 16 << 20
"""At least so many bytes of events are kept, if there are as many, and less than an append more. Our choice: some large
batches, which followers get in pieces, so that nothing has to be read from the disk for members that are up."""

BOUNDS = (
    Bound(
        name="replica_recent",
        what="newest events of a replicated channel in memory",
        by=By.PEER,
        per_node=None,
        per={"channel": KEPT_BYTES},
        unit="bytes",
        full="the oldest are read from the disk",
        counter="none: nothing is lost",
    ),
)


class Recent:
    """The last appends of one log."""

    __slots__ = ("_bytes", "_end", "_firsts", "_parts", "_sizes")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        """The first sequence of each append."""
        self._parts: list[Sequence[bytes]] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self._end = 0

    def __contains__(self, seq: int) -> bool:
        return bool(self._firsts) and self._firsts[0] <= seq < self._end

    def append(self, first_seq: int, events: Sequence[bytes]) -> None:
        """Remember events at the end of the log."""
        if not events:
            return
        self._make_room()
        size = nbytes_of(events)
        self._firsts.append(first_seq)
        self._parts.append(events)
        self._sizes.append(size)
        self._bytes += size
        self._end = first_seq + len(events)

    def truncate(self, seq: int) -> None:
        """Drop the events from a sequence on."""
        while self._firsts and self._firsts[-1] >= seq:
            self._firsts.pop()
            self._parts.pop()
            self._bytes -= self._sizes.pop()
        if self._firsts and seq < self._end:
            kept = self._parts[-1][: seq - self._firsts[-1]]
            self._bytes -= self._sizes[-1]
            self._parts[-1], self._sizes[-1] = kept, nbytes_of(kept)
            self._bytes += self._sizes[-1]
        self._end = min(self._end, seq)

    def nbytes_from(self, seq: int) -> int | None:
        """Return the bytes of the events from a sequence on, with the rest of its append; None if it is not here."""
        if seq >= self._end:
            return 0
        if seq not in self:
            return None
        return sum(self._sizes[bisect_right(self._firsts, seq) - 1 :])

    def read(self, seq: int, end: int, max_bytes: int, cost: int) -> Sequence[bytes]:  # hot: bench_replication
        """Return the events from one that is here on, as many as fit `max_bytes` with `cost` bytes for each."""
        taken: list[Sequence[bytes]] = []
        end = min(end, self._end)
        place = bisect_right(self._firsts, seq) - 1
        while seq < end:
            first, part = self._firsts[place], self._parts[place]
            wanted = part[seq - first : end - first]
            found = fitting(wanted, max_bytes, cost)
            taken.append(found)
            if len(found) < len(wanted):
                break
            max_bytes -= nbytes_of(found) + cost * len(found)
            seq = first + len(part)
            place += 1
        return joined(taken)

    def _make_room(self) -> None:
        gone = 0
        while gone < len(self._sizes) and self._bytes - self._sizes[gone] >= KEPT_BYTES:
            self._bytes -= self._sizes[gone]
            gone += 1
        if gone:
            del self._firsts[:gone], self._parts[:gone], self._sizes[:gone]
