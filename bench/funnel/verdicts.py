"""What is committed for the way from a log to gold, each with its bound, and whether a run met it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.harness import Cell, Table

COMMITTED = "Committed lines"
"""What the title of the table begins with."""


class Line(NamedTuple):
    """One committed figure."""

    what: str
    measured: float | None
    """None if the run did not measure it."""
    unit: str
    bound: float
    most: bool = False
    """Whether the bound is the highest allowed value; otherwise it is the lowest."""
    wish: bool = False
    """Whether it was hoped for and not committed."""

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None if that is unknown."""
        if self.measured is None:
            return None
        return self.measured <= self.bound if self.most else self.measured >= self.bound

    def cells(self) -> list[Cell]:
        """Return the line as a row of a table."""
        verdict = {None: "not measured", True: "met", False: "NOT met"}[self.met]
        bound = f"{'≤' if self.most else '≥'} {self.bound:g} {self.unit}".rstrip()
        measured: Cell = "–" if self.measured is None else self.measured
        return [self.what, measured, bound, f"{verdict} (moonshot)" if self.wish else verdict]


def verdict_table(lines: Sequence[Line]) -> Table:
    """Show every committed figure of a run."""
    failed = sum(line.met is False and not line.wish for line in lines)
    told = "all that was measured is met" if not failed else f"{failed} of {len(lines)} lines are not met"
    return Table(f"{COMMITTED}: {told}", ["line", "measured", "bound", "verdict"], [line.cells() for line in lines])
