"""Claim: `import meshbus` loads nothing heavy, heavy modules are loaded on first use, and `meshbus --help` takes under 200 ms.

Bias: each figure includes the start of an interpreter, with files in the system's cache. Starting Python takes most of the
time and is shown separately. `over bare` is the difference of the medians; on a busy machine it varies by a millisecond or
two and can be negative. The cost of importing the first heavy name has its own row. Resident memory is that of a whole
process, interpreter included, after the work of its row.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import meshbus
from bench import resident
from bench.harness import Case, Cell, Table, compare

BARE = "bare interpreter"
PROGRAMS = {
    BARE: "pass",
    "import meshbus": "import meshbus",
    "import numpy": "import numpy",
    "first match": "from meshbus import SubscriptionIndex; SubscriptionIndex().match(b'')",
}
NODE = "from meshbus import Node"
COMMITTED_IDLE_MB = 90
HELP = "meshbus --help"
HELP_MS = 200.0
"""What the help may take on a warm machine."""


def run(quick: bool) -> list[Table]:
    """Start interpreters and compare their times."""
    programs = {**PROGRAMS, NODE: NODE} if "Node" in meshbus.__all__ else PROGRAMS
    rounds = 5 if quick else 21
    timings = compare({name: starting(program) for name, program in programs.items()}, seconds=0.01, rounds=rounds)
    bare = timings[BARE]
    rows: list[list[Cell]] = [
        [name, timing.best_ns / 1e6, timing.median_ns / 1e6, (timing.median_ns - bare.median_ns) / 1e6]
        for name, timing in timings.items()
    ]
    return [
        Table(f"Start-up time: wall-clock ms, {rounds} rounds", ["program", "best", "median", "over bare"], rows),
        _help(rounds),
        memory(),
    ]


def _help(rounds: int) -> Table:
    """Run the installed program as a user does."""
    program = Path(sys.executable).with_name("meshbus")
    asking: Case = (lambda: subprocess.run([program, "--help"], check=True, stdout=subprocess.DEVNULL), 1)  # noqa: S603 - our own program
    timing = compare({HELP: asking}, seconds=0.01, rounds=rounds)[HELP]
    best = timing.best_ns / 1e6
    return Table(
        f"Help: wall-clock ms, {rounds} rounds, at most {HELP_MS:g}",
        ["program", "best", "median", "verdict"],
        [[HELP, best, timing.median_ns / 1e6, "met" if best <= HELP_MS else "NOT met"]],
    )


def memory() -> Table:
    """Return the resident memory of processes that do more and more."""
    rows: list[list[Cell]] = []
    for name in resident.ROWS:
        command = [sys.executable, "-m", resident.__name__, name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - this interpreter
        used, *heavy = done.stdout.split()
        rows.append([name, int(used), ", ".join(heavy) or "–"])
    notes = [f"committed: an idle node takes at most {COMMITTED_IDLE_MB} MB"]
    return Table("Resident memory", ["process", "MB", "heavy packages it has loaded"], rows, notes)


def starting(program: str) -> Case:
    """Return a candidate that runs one program in a new interpreter."""
    command = [sys.executable, "-c", program]
    return lambda: subprocess.run(command, check=True), 1  # noqa: S603 - this interpreter, with a constant program
