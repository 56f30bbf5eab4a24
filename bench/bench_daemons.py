"""Moves of daemons: how long one takes, and what the events that come meanwhile notice of it; beside net-mesh.

Bias: one machine, loopback, so bandwidth is plenty and nothing but buffers loses packets; processes share its cores. The
two do not do the same. A move of net-mesh keeps everything in memory, sends a snapshot at once and never again, and loses
the events that come during the move, so that there is no row for events. meshbus writes the snapshot and each decision to
disk, with a sync, at the source and at the target, sends again what was lost, and loses nothing; both transport the
daemon's key. The time of meshbus includes all of `Node.daemons.move`; that of net-mesh is from the call until its
orchestrator has forgotten the move, looked at every 0.1 ms, because its own `wait` looks every 50 ms.

The events travel through three nodes: published and logged at one, processed with a checkpoint at another, published and
logged there, and received by the first. The delay is over all of it. A daemon returns its whole state for a checkpoint, of
which only changed pages are written; a large one delays events without any move, too: compare with the column "before".
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator

from bench.harness import Cell, Table
from bench.moves.nodes import RATE, Nodes, Pause
from bench.moves.reference import Reference

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"8 B": 8, "20 kB": 20_000, "1 MiB": MIB, "16 MiB": 16 * MIB, "64 MiB": 64 * MIB}
LOADED = {"8 B": 8, "1 MiB": MIB, "16 MiB": 16 * MIB}
STOPPED, COPIED = "stopped", "copied"


def run(quick: bool) -> Iterator[Table]:
    """Measure moves of both, then events during moves."""
    rounds = 3 if quick else 5
    yield asyncio.run(_times(rounds))
    yield asyncio.run(_events())


async def _times(rounds: int) -> Table:
    reference, nodes = await asyncio.to_thread(Reference.start), await Nodes.start()
    rows: list[list[Cell]] = []
    try:
        for kind in (STOPPED, COPIED):
            await nodes.move(kind, SIZES["20 kB"])  # code that is compiled at its first use
        for label, size in SIZES.items():
            theirs: list[float] = []
            ours: dict[str, list[float]] = {STOPPED: [], COPIED: []}
            tries = rounds if size < 16 * MIB else 2
            for _ in range(tries):
                took = await asyncio.to_thread(reference.move, size)
                theirs += [] if took is None else [took]
                for kind, times in ours.items():
                    times.append(await nodes.move(kind, size))
            rows.append(_row(label, theirs, tries, ours))
    finally:
        await nodes.close()
        await asyncio.to_thread(reference.close)
    return Table(
        "Move of a daemon between two nodes, by the size of its state",
        ["state", "net-mesh ms", "arrived", "meshbus ms", "with pre-copy ms", "times net-mesh"],
        rows,
        [
            "medians; arrived: moves of net-mesh that ended. It sends all parts at once and none again, so one that the",
            "receive buffer has no room for ends the move without a word: larger states arrive by chance, or not at all",
        ],
    )


def _row(label: str, theirs: list[float], tries: int, ours: dict[str, list[float]]) -> list[Cell]:
    stopped, copied = (statistics.median(ours[kind]) for kind in (STOPPED, COPIED))
    median = statistics.median(theirs) if theirs else None
    return [
        label,
        "–" if median is None else median * 1e3,
        f"{len(theirs)} of {tries}",
        stopped * 1e3,
        copied * 1e3,
        "–" if median is None else stopped / median,
    ]


async def _events() -> Table:
    nodes = await Nodes.start()
    try:
        rows = [
            _pause_row(label, kind, await nodes.move_under_load(kind, size))
            for label, size in LOADED.items()
            for kind in (STOPPED, COPIED)
        ]
    finally:
        await nodes.close()
    return Table(
        f"Events that come during a move, {RATE:g} per second; delays in ms",
        [
            "state",
            "daemon",
            "move ms",
            "p50 before",
            "p99 before",
            "p50 during",
            "p99 during",
            "silence",
            "lost",
            "repeated",
        ],
        rows,
        [
            f"{STOPPED}: the daemon stands still while its state is copied; {COPIED}: it runs on (pre-copy)",
            "silence: the longest time between two outputs",
        ],
    )


def _pause_row(label: str, kind: str, pause: Pause) -> list[Cell]:
    before, during = _quantiles(pause.before), _quantiles(pause.during)
    return [label, kind, pause.seconds * 1e3, *before, *during, pause.silence * 1e3, pause.lost, pause.repeated]


def _quantiles(delays: list[float]) -> tuple[Cell, Cell]:
    if len(delays) < 2:
        return "–", "–"
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    return cuts[49] * 1e3, cuts[98] * 1e3
