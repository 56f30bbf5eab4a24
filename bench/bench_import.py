"""Claim: `import meshbus` loads nothing heavy; what is heavy is loaded when it is used.

Bias. Each figure is a whole interpreter started for the purpose, files in the system's cache, so starting Python is
most of it and is shown apart; `over bare` is the difference of the medians, and on a busy machine it wanders by a
millisecond or two, below zero as well. What importing the first heavy name costs is not hidden: it has its own row.
"""

from __future__ import annotations

import subprocess
import sys

import meshbus
from bench.harness import Case, Cell, Table, compare

BARE = "bare interpreter"
PROGRAMS = {
    BARE: "pass",
    "import meshbus": "import meshbus",
    "import numpy": "import numpy",
    "first match": "from meshbus import SubscriptionIndex; SubscriptionIndex().match(b'')",
}
NODE = "from meshbus import Node"


def run(quick: bool) -> list[Table]:
    """Start interpreters and compare."""
    programs = {**PROGRAMS, NODE: NODE} if "Node" in meshbus.__all__ else PROGRAMS
    rounds = 5 if quick else 21
    timings = compare({name: starting(program) for name, program in programs.items()}, seconds=0.01, rounds=rounds)
    bare = timings[BARE]
    rows: list[list[Cell]] = [
        [name, timing.best_ns / 1e6, timing.median_ns / 1e6, (timing.median_ns - bare.median_ns) / 1e6]
        for name, timing in timings.items()
    ]
    return [Table(f"Start-up, ms by the wall clock, {rounds} rounds", ["program", "best", "median", "over bare"], rows)]


def starting(program: str) -> Case:
    """Make a candidate that runs one program in an interpreter of its own."""
    command = [sys.executable, "-c", program]
    return lambda: subprocess.run(command, check=True), 1  # noqa: S603 - this interpreter, on a text of ours
