"""Claim: per processor second, batches reach pyzmq's fan-out, and single publishes reach 0.4 of it.

Bias: only the publisher's processor time counts, with all its threads and the kernel's work for them. The subscribers are
pyzmq SUB sockets in one process for every candidate, which also limits the wall clock. Messages have one part, which is
pyzmq's fastest form. There is no high-water mark, and the whole run may queue up in the publisher: the benchmark compares
work, not pacing. Subscribers want everything, so a publisher finds the receivers of a message at once; the table with ten
thousand topics is the other extreme. libzmq has no call for many messages, so both meshbus rows are compared with its
single sends. In the churn table, one subscriber holds a thousand prefixes and changes them continuously while nothing is
published, so that a publisher may put changes off; libzmq makes each of them at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from bench.harness import Cell, Table
from bench.peers.runner import Case, Ratio, Run, Summary, compare
from bench.peers.task import Task

PYZMQ = "pyzmq PUB"
SINGLE = "meshbus, single"
BATCH = "meshbus, batch"
PEERS = {PYZMQ: ("pyzmq", "single"), SINGLE: ("meshbus", "single"), BATCH: ("meshbus", "batch")}

SUBSCRIBERS = (1, 8, 64)
SIZES = (64, 1024)
TOPICS = 10_000
CHURN = "meshbus"
COMMITTED = {SINGLE: 0.4, BATCH: 1.0, CHURN: 1.0}
COMMITTED_SUBSCRIBERS = 8
"""The target applies up to this many subscribers."""

DELIVERIES = {64: 1_600_000, 1024: 320_000}
"""Deliveries in a full run with eight subscribers or more; a quarter of it with one."""
CHANGES = 400_000


def run(quick: bool) -> list[Table]:
    """Measure fan-out, many topics, and churn. Raises RuntimeError if a message was lost."""
    rounds, scale = (1, 0.25) if quick else (5, 1.0)
    fan_out: list[list[Cell]] = []
    for subscribers in SUBSCRIBERS:
        for size in SIZES:
            events = int(DELIVERIES[size] * scale / (4 if subscribers == 1 else 1))
            found = compare(_cases(size, events, subscribers=subscribers), rounds=rounds)
            fan_out += _rows(f"{subscribers} × {size} B", found, subscribers=subscribers, committed=True)
    topics: list[list[Cell]] = []
    for subscribers in (1, 8):
        events = int(100_000 * scale) * subscribers
        found = compare(_cases(64, events, subscribers=subscribers, topics=TOPICS), rounds=rounds)
        topics += _rows(f"{subscribers} × 64 B", found, subscribers=subscribers, per_message=10, committed=False)
    changes = {
        name: Case("edge", _task("churn", 64, int(CHANGES * scale), publisher=name, subscribers=1))
        for name in ("pyzmq", "meshbus")
    }
    churn = compare(changes, rounds=rounds)
    columns = [
        "subscribers",
        "publisher",
        "thousand per CPU-s",
        "thousand/s",
        "times pyzmq per CPU-s",
        "target",
        "met",
    ]
    return [
        Table(
            f"Fan-out: messages published, by processor time of the publisher ({rounds} interleaved rounds, no loss)",
            columns,
            fan_out,
        ),
        Table(f"{TOPICS} topics, a tenth of them subscribed: messages published", columns, topics),
        Table(
            "Subscription changes processed by the publisher",
            columns,
            _rows("1", {PYZMQ: churn["pyzmq"], CHURN: churn["meshbus"]}, subscribers=1, committed=True),
            ["pyzmq is an XPUB whose application reads every change; meshbus maintains the same table"],
        ),
    ]


def _cases(size: int, events: int, *, subscribers: int, **options: int) -> dict[str, Case]:
    events -= events % (subscribers * 10)
    return {
        name: Case("edge", _task(mode, size, events, publisher=publisher, subscribers=subscribers, **options))
        for name, (publisher, mode) in PEERS.items()
    }


def _task(mode: str, size: int, events: int, **options: object) -> Task:
    return Task(mode=mode, least=size, most=size, events=events, options=options)


def _rows(
    told: str, found: Mapping[str, Summary], *, subscribers: int, committed: bool, per_message: int = 1
) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for name, summary in found.items():
        if summary.error or summary.lost:
            raise RuntimeError(f"{name}, {told}: {summary.error or f'{summary.lost} lost'}")
        median, lowest, highest = _times(summary, found[PYZMQ])
        least = COMMITTED.get(name) if committed and subscribers <= COMMITTED_SUBSCRIBERS else None
        scale = per_message / subscribers / 1e3
        rows.append(
            [
                told,
                name,
                statistics.median(_per_cpu_s(run) for run in summary.runs) * scale,
                summary.events_per_s * scale,
                "–" if name == PYZMQ else f"{median:.2f}× ({lowest:.2f}–{highest:.2f})",
                "–" if least is None else f"{least:g}×",
                "–" if least is None else ("yes" if median >= least else "no"),
            ]
        )
    return rows


def _times(mine: Summary, peer: Summary) -> Ratio:
    """Return the ratio of messages per processor second, by round: above 1 is cheaper than the peer."""
    ratios = [_per_cpu_s(run) / _per_cpu_s(other) for run, other in zip(mine.runs, peer.runs, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def _per_cpu_s(run: Run) -> float:
    return run.received / run.producer_cpu_s
