"""Claim: per processor second our publisher fans out as pyzmq's does in batches, and at 0.4 of it one by one.

Bias. Only the publisher's processor time counts, all its threads and the kernel's work for them; the subscribers are
pyzmq SUB sockets in one process for every candidate, which is also what bounds the wall clock. Messages have one part,
which is pyzmq's quickest form, there is no high-water mark, and the whole run may pile up in the publisher: what is
compared is work, not pacing. Subscribers want everything, so a publisher finds who gets a message at once; the table
with ten thousand topics is the other extreme. libzmq has no call for many messages, so both of our rows are compared
with its one-by-one form. In the churn one subscriber holds a thousand prefixes and changes them all the time.
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
COMMITTED = {SINGLE: 0.4, BATCH: 1.0}
COMMITTED_SUBSCRIBERS = 8
"""Up to this many."""

DELIVERIES = {64: 1_600_000, 1024: 320_000}
"""Of a full run with eight subscribers or more; with one, a quarter of it."""
CHANGES = 100_000


def run(quick: bool) -> list[Table]:
    """Measure fan-out, many topics, and churn; raises when anything was lost."""
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
        "committed",
        "met",
    ]
    return [
        Table(
            f"fan-out: messages published, by processor time of the publisher ({rounds} interleaved rounds, no loss)",
            columns,
            fan_out,
        ),
        Table(f"{TOPICS} topics, a tenth of them wanted: messages published", columns, topics),
        Table(
            "subscriptions that come and go: changes taken in by the publisher",
            columns,
            _rows("1", {PYZMQ: churn["pyzmq"], SINGLE: churn["meshbus"]}, subscribers=1, committed=False),
            ["pyzmq is an XPUB whose application takes every change; ours keeps the same table"],
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
    """Compare by the publisher's processor time, round by round: above 1 means cheaper than the peer."""
    ratios = [_per_cpu_s(run) / _per_cpu_s(other) for run, other in zip(mine.runs, peer.runs, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def _per_cpu_s(run: Run) -> float:
    return run.received / run.producer_cpu_s
