"""Run peers: two processes per run, interleaved rounds, medians and ratios.

Each round runs all cases, so that a slow phase of the machine affects all of them; ratios are taken within a round. A run
with an error or a loss is reported as such: only lossless modes are compared.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing as mp
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import msgspec

from bench.harness import Cell, Table
from bench.peers.task import Link, Meter, Report, Task

TIMEOUT_S = 60.0
"""Time limit of one run, including starting and ending processes."""
LINGER_S = 10.0
"""Seconds that a producer waits for a consumer that is still reading."""


class Case(msgspec.Struct, frozen=True):
    """A peer module and its task."""

    peer: str
    """A module of bench.peers."""
    task: Task
    tree: str = ""
    """Directory of another copy of this repository, whose peer module and package are used; "" for this one."""


class Run(msgspec.Struct, frozen=True):
    """The result of one run of two processes."""

    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    """From the first send to the last receipt."""
    producer_cpu_s: float = 0.0
    consumer_cpu_s: float = 0.0
    p50_us: float | None = None
    p99_us: float | None = None
    error: str = ""

    @property
    def lost(self) -> int:
        """Return the number of events sent but not received."""
        return self.sent - self.received

    @property
    def events_per_s(self) -> float:
        """Return events per second by the wall clock."""
        return self.received / self.seconds if self.seconds else 0.0

    @property
    def events_per_cpu_s(self) -> float:
        """Return events per second of processor time of both processes."""
        used = self.producer_cpu_s + self.consumer_cpu_s
        return self.received / used if used else 0.0


Ratio: TypeAlias = tuple[float, float, float]
"""Median, lowest and highest over the rounds."""


class Summary(msgspec.Struct, frozen=True):
    """All rounds of one case."""

    case: Case
    runs: Sequence[Run]

    @property
    def good(self) -> list[Run]:
        """Return the rounds that ended without an error."""
        return [run for run in self.runs if not run.error]

    @property
    def lost(self) -> int:
        """Return the number of events lost in all rounds."""
        return sum(run.lost for run in self.good)

    @property
    def error(self) -> str:
        """Return the first error, or an empty string."""
        return next((run.error for run in self.runs if run.error), "")

    @property
    def events_per_s(self) -> float:
        """Return the median over the rounds."""
        return _median([run.events_per_s for run in self.good])

    @property
    def events_per_cpu_s(self) -> float:
        """Return the median over the rounds."""
        return _median([run.events_per_cpu_s for run in self.good])

    @property
    def p50_us(self) -> float:
        """Return the median over the rounds; 0 without latency."""
        return _median([run.p50_us for run in self.good if run.p50_us is not None])

    @property
    def p99_us(self) -> float:
        """Return the median over the rounds; 0 without latency."""
        return _median([run.p99_us for run in self.good if run.p99_us is not None])

    def times_wall(self, peer: Summary) -> Ratio:
        """Return the ratio of events per second, by round: above 1 is faster than the peer."""
        return _ratios([(run.events_per_s, other.events_per_s) for run, other in self._pairs(peer)])

    def times_cpu(self, peer: Summary) -> Ratio:
        """Return the ratio of events per processor second, by round; it varies less on a shared machine."""
        return _ratios([(run.events_per_cpu_s, other.events_per_cpu_s) for run, other in self._pairs(peer)])

    def times_p50(self, peer: Summary) -> Ratio:
        """Return the ratio of median latencies, by round: below 1 is faster than the peer."""
        return _ratios([(run.p50_us or 0.0, other.p50_us or 0.0) for run, other in self._pairs(peer)])

    def _pairs(self, peer: Summary) -> list[tuple[Run, Run]]:
        pairs = zip(self.runs, peer.runs, strict=True)
        return [(run, other) for run, other in pairs if not run.error and not other.error]


def measure(case: Case, *, timeout_s: float = TIMEOUT_S) -> Run:
    """Run one case once; an error is part of the result."""
    context = mp.get_context("spawn")
    consumer_link, producer_link = context.Pipe()
    results: dict[str, Connection] = {}
    processes = []
    for role, link in (("consume", consumer_link), ("produce", producer_link)):
        results[role], report_at = context.Pipe(duplex=False)
        process = context.Process(target=_process, args=(case, role, link, report_at))
        process.start()
        processes.append(process)
        for mine in (link, report_at):  # the child process has its own copy
            mine.close()
    try:
        found = _reports(results, time.monotonic() + timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        for connection in results.values():
            connection.close()
    problems = [f"{role}: {report}" for role, report in found.items() if isinstance(report, str)]
    if problems:
        return Run(error="; ".join(problems))
    consumed, produced = found["consume"], found["produce"]
    assert isinstance(consumed, Report)
    assert isinstance(produced, Report)
    task = case.task
    if consumed.events == produced.events and not task.gap_s and consumed.nbytes != task.nbytes:
        return Run(error=f"{consumed.nbytes} of {task.nbytes} bytes arrived, although the number of events is right")
    return Run(
        sent=produced.events,
        received=consumed.events,
        seconds=max(consumed.last_ns - produced.first_ns, 1) / 1e9,
        producer_cpu_s=produced.cpu_s,
        consumer_cpu_s=consumed.cpu_s,
        p50_us=_quantile(consumed.delays_us, 0.5),
        p99_us=_quantile(consumed.delays_us, 0.99),
    )


def compare(cases: Mapping[str, Case], *, rounds: int = 3) -> dict[str, Summary]:
    """Run all cases in interleaved rounds, every second one in the reverse order."""
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in list(cases)[:: -1 if number % 2 else 1]:
            runs[name].append(measure(cases[name]))
    return {name: Summary(case, runs[name]) for name, case in cases.items()}


def throughput_table(title: str, found: Mapping[str, Summary], notes: Sequence[str] = ()) -> Table:
    """Return a table of throughput runs."""
    rows: list[list[Cell]] = []
    for name, summary in found.items():
        wall = [run.events_per_s for run in summary.good] or [0.0]
        rows.append(
            [
                name,
                summary.case.task.size,
                summary.events_per_s,
                f"{min(wall):,.0f}–{max(wall):,.0f}".replace(",", " "),
                summary.events_per_cpu_s / 1e3,
                summary.lost,
                summary.error or "–",
            ]
        )
    columns = ["peer", "events", "events/s", "lowest–highest", "thousand per CPU-s", "lost", "error"]
    return Table(title, columns, rows, notes)


def latency_table(title: str, found: Mapping[str, Summary], notes: Sequence[str] = ()) -> Table:
    """Return a table of latency runs."""
    rows: list[list[Cell]] = [
        [name, summary.case.task.size, summary.p50_us, summary.p99_us, summary.lost, summary.error or "–"]
        for name, summary in found.items()
    ]
    return Table(title, ["peer", "events", "p50 µs", "p99 µs", "lost", "error"], rows, notes)


def _process(case: Case, role: str, connection: Connection, report_at: Connection) -> None:
    """Run one of the two processes."""
    link, meter = Link(connection), Meter(case.task)
    try:
        peer = (
            _peer_of(Path(case.tree), case.peer) if case.tree else importlib.import_module(f"bench.peers.{case.peer}")
        )
        if role == "consume":
            peer.consume(link, case.task, meter)
            report_at.send(meter.finish())
            link.tell("done")
        else:
            sent = peer.produce(link, case.task, meter)
            link.hear(LINGER_S)
            report_at.send(meter.finish(sent))
    except BaseException as error:  # noqa: BLE001 - reported to the waiting process
        report_at.send(f"{type(error).__name__}: {error}")
    os._exit(0)  # do not wait for threads of the peer


def _peer_of(tree: Path, name: str) -> ModuleType:
    """Return the peer module of another copy of the repository, which uses the package of that copy."""
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "meshbus"]:
        del sys.modules[loaded]
    sys.path.insert(0, str(tree / "src"))
    spec = importlib.util.spec_from_file_location(f"before_{name}", tree / "bench" / "peers" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _reports(results: Mapping[str, Connection], deadline: float) -> dict[str, Report | str]:
    """Wait for both processes or the first error; a missing report is an error."""
    found: dict[str, Report | str] = {}
    names = {connection: role for role, connection in results.items()}
    while names and (left := deadline - time.monotonic()) > 0:
        for connection in wait(list(names), left):
            assert isinstance(connection, Connection)
            role = names.pop(connection)
            try:
                found[role] = connection.recv()
            except EOFError:
                found[role] = "the process ended without a report"
            if isinstance(found[role], str):
                return found
    return found | dict.fromkeys(names.values(), "no report in time")


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _ratios(pairs: Sequence[tuple[float, float]]) -> Ratio:
    ratios = [mine / theirs for mine, theirs in pairs if theirs]
    return (statistics.median(ratios), min(ratios), max(ratios)) if ratios else (0.0, 0.0, 0.0)


def _quantile(ascending: Sequence[float], share: float) -> float | None:
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)] if ascending else None
