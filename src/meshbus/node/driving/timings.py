"""Timings: how long things take in a node, as histograms for those who watch it.

Measured only in a node that shows them. An observation is a binary search and an addition; those of a batch are made at
once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHORT_S = (0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper edges for work of the node itself: from one packet to a loop that stands still."""
LONG_S = (0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper edges for what crosses a network: from loopback to a link that fails."""


class Histogram:
    """Counts of values by their upper edge."""

    __slots__ = ("_edges", "counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        """How many values are at most each edge and above the one before; the last is for all that are larger."""
        self.total = 0.0
        """Sum of all values."""
        self._edges = np.asarray(self.edges)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def observe_all(self, values: NDArray[np.float64]) -> None:
        """Count many values."""
        found = np.bincount(np.searchsorted(self._edges, values), minlength=len(self.counts))
        self.counts = [before + more for before, more in zip(self.counts, found.tolist(), strict=True)]
        self.total += float(values.sum())


class Timings:
    """What is measured in one node."""

    def __init__(self) -> None:
        self.turn = Histogram(SHORT_S)
        """How long the node was busy with the datagrams of one read, in seconds."""
        self.delivery = Histogram(LONG_S)
        """From the publisher's clock when an event was published to this node's when it arrived, in seconds."""
        self.request = Histogram(LONG_S)
        """From a request of this node to its reply, in seconds."""
