"""The replay window: every packet counter is accepted once, and only near the highest one seen (transport.md §12).

Counters are checked after the tag was verified, so that nobody without the key can move the window. The state is the
highest accepted counter and a bitmap of the last 1024 in one Python int: shifting it costs less than updating an array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshbus.wire.constants import MAX_REPLAY_JUMP, REPLAY_WINDOW

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTER_LIMIT = 0xFFFFFFFFFFFFFFFF
"""The counter that no packet may carry; a session ends before it is reached."""


class ReplayWindow:
    """Which packet counters of one direction of a session were seen."""

    __slots__ = ("_bitmap", "_mask", "_max_jump", "_next", "_size", "overrun")

    def __init__(self, size: int = REPLAY_WINDOW, max_jump: int = MAX_REPLAY_JUMP) -> None:
        self._size = size
        self._max_jump = max_jump
        self._mask = (1 << size) - 1
        self._next = 0
        self._bitmap = 0
        """Bit `age` is set when counter `_next - 1 - age` was accepted; never wider than the window."""
        self.overrun = False
        """Whether a counter was too far ahead: the sender never counts back, so all that follow will be, too."""

    @property
    def next(self) -> int:
        """One above the highest accepted counter; 0 until the first packet."""
        return self._next

    def admit(self, counter: int) -> bool:  # hot
        """Accept a counter and remember it, or refuse one that is repeated, too old or too far ahead.

        A jump is counted from the highest accepted counter; before the first packet, from -1.
        """
        if counter == COUNTER_LIMIT:
            return False
        ahead = counter - self._next + 1
        if ahead == 1:  # the next one, as nearly always
            self._bitmap = (self._bitmap << 1 | 1) & self._mask
            self._next += 1
            return True
        if ahead > 0:
            if ahead > self._max_jump:
                self.overrun = True
                return False
            self._advance(ahead, 1)
            return True
        # transport.md §12: age 1023 is accepted and 1024 is not.
        age = -ahead
        if age >= self._size or self._bitmap >> age & 1:
            return False
        self._bitmap |= 1 << age
        return True

    def admit_batch(self, counters: NDArray[np.uint64]) -> NDArray[np.bool_]:  # hot
        """Judge many counters in their order, exactly as `admit` would one by one.

        Costs one pass when they are consecutive and new, as they are when nothing was lost or reordered.
        """
        count = len(counters)
        if count == 0:
            return np.empty(0, np.bool_)
        first, last = int(counters[0]), int(counters[-1])
        # The first line settles that the differences, taken modulo 2^64, did not wrap around.
        consecutive = last - first == count - 1 and bool((counters[1:] - counters[:-1] == 1).all())
        if consecutive and self.admit_run(first, count):
            return np.ones(count, np.bool_)
        return np.fromiter(map(self.admit, counters.tolist()), np.bool_, count)

    def admit_run(self, first: int, count: int) -> bool:  # hot
        """Accept consecutive counters if all of them are new; otherwise nothing happens: judge them one by one."""
        last = first + count - 1
        if last >= COUNTER_LIMIT or not 0 < first - self._next + 1 <= self._max_jump:
            return False
        self._advance(last - self._next + 1, (1 << count) - 1)
        return True

    def _advance(self, ahead: int, accepted: int) -> None:
        """Move the window by `ahead` counters, of which the bits of `accepted` were seen."""
        # A jump beyond the window would shift everything out: do not build an integer of up to 2^20 bits for that.
        kept = self._bitmap << ahead if ahead < self._size else 0
        self._bitmap = (kept | accepted) & self._mask
        self._next += ahead
