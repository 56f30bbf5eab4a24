"""Grouping of rows by the values of their columns, in one pass.

A comparison of all rows with each value would cost the square of their number, and whoever sends packets chooses how
many values there are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def group_rows(*columns: NDArray[Any]) -> list[NDArray[np.intp]]:
    """Return the rows that are equal in all columns, as ascending indexes; the group with the lowest row comes first."""
    if not len(columns[0]):
        return []
    order = np.lexsort(columns)
    edge = np.zeros(len(order) - 1, np.bool_)
    for column in columns:
        ordered = column[order]
        edge |= ordered[1:] != ordered[:-1]
    cuts = [0, *(np.flatnonzero(edge) + 1).tolist(), len(order)]
    groups = [order[start:end] for start, end in pairwise(cuts)]
    groups.sort(key=lambda rows: rows.item(0))
    return groups
