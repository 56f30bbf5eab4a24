"""The loop: change an input that is known, run it, and keep it if it reaches something new.

The same seed, inputs and number of executions give the same run, except where a target itself depends on something else.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import msgspec

from fuzz.finding import Finding, finding_of, shortened
from fuzz.mutation import Mutator
from fuzz.reach import Reach
from fuzz.target import Target

SLOW_S = 10.0
"""Processor time after which an input counts as a finding, at most twice that. Our choice: a hundred times what the slowest
target takes."""
MOST_FINDINGS = 20
"""Findings of different kinds after which a run ends."""
RECENT = 16
"""Inputs that were kept last are changed more often: what they reached is the least explored."""


class TooSlow(BaseException):
    """An input took too long. Not an Exception, so that nothing handles it on the way."""


class Outcome(msgspec.Struct, frozen=True):
    """One run of one target."""

    target: str
    executions: int
    seconds: float
    arcs: int
    lines: int
    of_lines: int
    """Lines of the functions that were entered."""
    kept: list[bytes]
    """Inputs that reached something new, those of the corpus among them."""
    findings: list[Finding]


class Loop:
    """Fuzzes one target."""

    def __init__(self, target: Target, inputs: Iterable[bytes], *, seed: int = 0) -> None:
        """Prepare the target; the inputs are tried first."""
        self._target = target
        self._run = target.make()
        self._reach = Reach()
        self._chance = random.Random(f"{target.name} {seed}")
        self._mutator = Mutator(self._chance, target.most_bytes)
        self._inputs = list(inputs) or [b""]
        self._arcs: set[int] = set()
        self._kept: list[bytes] = []
        self._findings: dict[str, Finding] = {}
        self.executions = 0
        self.is_running = False
        """Whether an input runs at this moment."""
        self.before: Callable[[bytes], object] = bytes
        """Called with every input before it is run, for a process that may not come back."""

    def run(self, *, seconds: float | None = None, executions: int | None = None) -> Outcome:
        """Fuzz for so many seconds, or for so many executions beyond the inputs that were given."""
        began = time.monotonic()
        with _time_limit(self):
            for data in self._inputs:
                self._try(data)
            last = None if executions is None else self.executions + executions
            while len(self._findings) < MOST_FINDINGS:
                if last is not None and self.executions >= last:
                    break
                if seconds is not None and time.monotonic() - began >= seconds:
                    break
                self._try(self._mutator.change(self._choice(), self._kept))
        lines, of_lines = self._reach.lines(self._arcs)
        return Outcome(
            target=self._target.name,
            executions=self.executions,
            seconds=time.monotonic() - began,
            arcs=len(self._arcs),
            lines=lines,
            of_lines=of_lines,
            kept=self._kept,
            findings=list(self._findings.values()),
        )

    def _choice(self) -> bytes:
        known = self._kept or self._inputs
        return self._chance.choice(known[-RECENT:] if self._chance.random() < 0.3 else known)

    def _try(self, data: bytes) -> None:
        finding = self._finding(data)
        if finding is not None:
            if finding.kind not in self._findings:
                self._findings[finding.kind] = self._shortened(finding)
        elif not self._reach.arcs <= self._arcs:
            self._arcs |= self._reach.arcs
            self._kept.append(data)
            self._mutator.learn(self._reach.new_constants())

    def _finding(self, data: bytes) -> Finding | None:
        self.executions += 1
        self.before(data)
        self.is_running = True
        try:
            self._reach.follow(self._run, data)
        except self._target.refuses:
            return None
        except (Exception, TooSlow) as error:  # noqa: BLE001 - whatever it is, it is the finding
            return finding_of(self._target.name, error, data)
        finally:
            self.is_running = False
        return None

    def _shortened(self, finding: Finding) -> Finding:
        def shows(data: bytes) -> bool:
            found = self._finding(data)
            return found is not None and found.kind == finding.kind

        if finding.error.startswith(TooSlow.__name__):
            return finding
        return self._finding(shortened(finding.data, shows)) or finding


def replay(target: Target, data: bytes) -> None:
    """Run one input as it is; raises what is not a verdict of the target."""
    with suppress(*target.refuses):
        target.make()(data)


@contextmanager
def _time_limit(loop: Loop) -> Iterator[None]:
    """Raise TooSlow in an input that runs for too long, by processor time, which other programs do not use up.

    The timer goes on all the time, because setting it for each input would cost more than most inputs take.
    """
    seen = -1

    def ring(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if loop.is_running and loop.executions == seen:
            raise TooSlow(f"more than {SLOW_S:g} s of processor time")
        seen = loop.executions

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S, SLOW_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
