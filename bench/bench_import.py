"""Claim: `import meshbus` loads nothing heavy, heavy modules are loaded on first use, and `meshbus --help` takes under 200 ms.

Bias: each figure includes the start of an interpreter, with files in the system's cache. Starting Python takes most of the
time and is shown separately. `over bare` is the difference of the medians; on a busy machine it varies by a millisecond or
two and can be negative. The cost of importing the first heavy name has its own row. The help is compared with the help of
uvicorn: a smaller program with one command, whose help lists options instead of commands. Resident memory is that of a whole
process, interpreter included, after the work of its row.
"""

from __future__ import annotations

import resource
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
PEER = "uvicorn --help"
"""Another command in Python that starts a server and has libraries below it."""
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
    """Run the installed programs as a user does, and an interpreter that does nothing."""
    cases = {BARE: starting("pass"), **{line: commanding(*line.split()) for line in (HELP, PEER)}}
    timings = compare(cases, seconds=0.01, rounds=rounds)
    bare, median_ms = timings[BARE], timings[HELP].median_ns / 1e6
    rows: list[list[Cell]] = [
        [
            name,
            timing.best_ns / 1e6,
            timing.median_ns / 1e6,
            timing.median_ns / bare.median_ns,
            processor_ms(cases[name]),
        ]
        for name, timing in timings.items()
    ]
    verdict = "met" if median_ms <= HELP_MS else "NOT met"
    notes = [f"committed: on a warm machine `{HELP}` takes at most {HELP_MS:g} ms: {verdict}"]
    columns = ["program", "best", "median", "times bare", "processor ms"]
    return Table(f"Help: wall-clock ms, {rounds} rounds", columns, rows, notes)


def processor_ms(case: Case) -> float:
    """Return the processor time of one run, which varies less on a busy machine: the mean of five."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(5):
        case[0]()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 5 * 1e3


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


def commanding(name: str, *arguments: str) -> Case:
    """Return a candidate that runs an installed command."""
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), 1  # noqa: S603 - a command of ours


def starting(program: str) -> Case:
    """Return a candidate that runs one program in a new interpreter."""
    command = [sys.executable, "-c", program]
    return lambda: subprocess.run(command, check=True), 1  # noqa: S603 - this interpreter, with a constant program
