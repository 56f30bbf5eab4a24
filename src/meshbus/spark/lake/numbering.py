"""What the numbers in the rows of one log are: positions in it, numbers of publishers, or positions in a replicated log.

The sequences of a log are positions in it. Those of a member of a replicated channel are positions in the log that all
members have, which may be known by several ids: its own, and those that it was marked with (log/positions.py). In the log
of a subscriber, the publish numbers of a marked sender are positions in a replicated log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from meshbus.log.positions import Mark
from meshbus.log.schema import signed
from meshbus.wire.messages.reliable import CLOCK_NUMBERS

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Positioned(NamedTuple):
    """Rows whose publish numbers are positions in a replicated log."""

    log_id: bytes
    rows: NDArray[np.bool_]
    """Which of the rows."""


class Numbering(msgspec.Struct, frozen=True):
    """The numbers of one log."""

    log_id: bytes
    """The id in its rows."""
    shared: bool = False
    """Whether it is the replica of a member: all of its publishers are numbered together."""
    marks: tuple[Mark, ...] = ()
    """In the order of their sequences."""

    @property
    def ids(self) -> tuple[bytes, ...]:
        """The ids of the log whose positions are the sequences; ranges are stored under the last of them."""
        marked = [bytes.fromhex(mark.log_id) for mark in self.marks if not mark.origin]
        return tuple(dict.fromkeys([self.log_id, *marked]))

    def positioned(self, rows: Any) -> list[Positioned]:
        """Return which rows have positions in replicated logs as publish numbers; none for most logs."""
        marks = [mark for mark in self.marks if mark.origin]
        if not marks or not len(rows):
            return []
        import pyarrow.compute as pc

        numbers = pc.fill_null(rows["pub_seq"], CLOCK_NUMBERS).to_numpy()
        seq, origins = rows["seq"].to_numpy(), rows["origin"].to_numpy()
        found: dict[bytes, NDArray[np.bool_]] = {}
        for origin in dict.fromkeys(mark.origin for mark in marks):
            sent = (origins == signed(np.array([int(origin, 16)], np.uint64))[0]) & (numbers < CLOCK_NUMBERS)
            own = [mark for mark in marks if mark.origin == origin]
            ends = [*(mark.first for mark in own[1:]), np.iinfo(np.int64).max]
            for mark, end in zip(own, ends, strict=True):
                chosen = sent & (seq >= mark.first) & (seq < end)
                if chosen.any():
                    log_id = bytes.fromhex(mark.log_id)
                    found[log_id] = found[log_id] | chosen if log_id in found else chosen
        return [Positioned(*one) for one in found.items()]


def any_of(positioned: list[Positioned], count: int) -> NDArray[np.bool_]:
    """Return which of `count` rows have a position in any replicated log."""
    chosen = np.zeros(count, np.bool_)
    for one in positioned:
        chosen |= one.rows
    return chosen
