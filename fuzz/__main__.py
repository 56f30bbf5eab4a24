"""`python -m fuzz`: fuzz all targets or one of them; `python -m fuzz TARGET FILE` repeats a finding.

python -m fuzz --seconds 60                       every target for a minute, one process for each core
python -m fuzz history --seconds 600 --seed 7     one target
python -m fuzz history build/fuzz/history-1a2b…   run the input of a file once, and show how it ends
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz.loop import Outcome, replay
from fuzz.targets import TARGETS
from fuzz.worker import Order, fuzz_apart

FINDINGS = Path("build") / "fuzz"
_HEAD = f"{'target':<20} {'executions':>10} {'per s':>8} {'arcs':>7} {'lines':>7} {'of':>6} {'kept':>5}  findings"


def main(arguments: list[str]) -> int:
    """Run, and return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "target", nargs="?", choices=sorted(TARGETS), metavar="TARGET", help="the only one; all by default"
    )
    parser.add_argument("file", nargs="*", type=Path, metavar="FILE", help="inputs to run once, instead of fuzzing")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="another one makes other changes (default: 0)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time (default: one for each core)"
    )
    parser.add_argument("--keep", action="store_true", help="add inputs that reach something new to fuzz/corpus")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    given = parser.parse_args(arguments)
    if given.list:
        print("\n".join(TARGETS))
        return 0
    if given.file:
        for path in given.file:
            replay(TARGETS[given.target], path.read_bytes())
            print(f"{path}: no finding")
        return 0
    names = [given.target] if given.target else list(TARGETS)
    orders = [Order(name, given.seconds, given.seed, given.keep) for name in names]
    print(_HEAD, flush=True)
    return 1 if sum([_report(outcome) for outcome in _outcomes(orders, given.jobs)]) else 0


def _outcomes(orders: Iterable[Order], jobs: int) -> Iterator[Outcome]:
    with ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(fuzz_apart, orders)


def _report(outcome: Outcome) -> int:
    """Print a row, and for each finding the command that repeats it; return the number of findings."""
    rate = outcome.executions / outcome.seconds if outcome.seconds else 0.0
    print(
        f"{outcome.target:<20} {outcome.executions:>10} {rate:>8.0f} {outcome.arcs:>7} {outcome.lines:>7}"
        f" {outcome.of_lines:>6} {len(outcome.kept):>5}  {len(outcome.findings) or '-'}",
        flush=True,
    )
    for finding in outcome.findings:
        path = finding.store(FINDINGS)
        command = shlex.join(["python", "-m", "fuzz", finding.target, str(path)])
        print(f"  {finding.error} ({finding.place})\n  repeat: {command}", flush=True)
    return len(outcome.findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
