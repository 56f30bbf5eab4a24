"""A column as runs: values that stay the same, or count, for many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Runs(NamedTuple):
    """A column: from each start to the next one, a value that changes by a step from row to row."""

    starts: NDArray[np.int32]
    values: NDArray[np.int64]
    """Value of the first row of each run; 0 if null."""
    valid: NDArray[np.bool_]
    steps: NDArray[np.int64]
    """0 except for columns that count. A run never overflows."""

    def lengths(self, count: int) -> NDArray[np.int64]:
        """Return the length of each run; `count` is the number of rows in all."""
        lengths = np.empty(len(self.starts), np.int64)
        lengths[:-1] = self.starts[1:] - self.starts[:-1]
        lengths[-1:] = count - self.starts[-1:]
        return lengths

    def cells(self, count: int) -> NDArray[np.int64]:
        """Return the value of every row; `count` is the number of rows in all."""
        lengths = self.lengths(count)
        cells = np.repeat(self.values, lengths)
        if self.steps.any():
            cells += np.repeat(self.steps, lengths) * (np.arange(count) - np.repeat(self.starts, lengths))
        return cells


def one_run(value: int, *, valid: bool = True, step: int = 0) -> Runs:
    """Return a column of a single run."""
    return Runs(np.zeros(1, np.int32), np.array([value], np.int64), np.array([valid]), np.array([step], np.int64))
