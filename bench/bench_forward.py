"""Forwarding with full verdicts, in packets per second, compared with a net-mesh node and a bare UDP loop in Python.

Bias: one sender, one receiver, loopback. Every packet is a publication on one channel, so a verdict is found once and kept.
The meshbus gateway checks hops, subnets by announcement, visibility and the publisher; the net-mesh node checks hops; the
bare loops check nothing. A full packet has 1452 bytes, the size to which meshbus fills packets on a network. A packet of
8192 bytes, which only loopback carries in one piece, costs every forwarder two copies of 8 KiB in the kernel: the bare loop
in trains receives and sends like meshbus and does nothing else, and shows that minimum. The benchmark compares the
processor time of the forwarder alone; the ends share the machine and cost the same for all. Each forwarder runs with the
largest window that it handles without loss. The time of the recording gateway includes all its threads, but not the rows
that still wait to be sealed when a run ends: for the cost of the recorder, use `bench recorder`, which seals every row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from bench.forwarders import Bench, Run, bare, bare_trains, netmesh, ours
from bench.harness import Cell, Table

OURS, RECORDED, NET_MESH = "meshbus gateway", "meshbus gateway, recording", "net-mesh node"
BARE, FLOOR = "bare UDP loop", "bare UDP loop in trains"
FULL, LOOPBACK, SMALL = 1452, 8192, 256
COMMITTED = 3.0
"""Target ratio to a net-mesh node per processor second, for full packets in trains."""
WINDOW_BYTES = {OURS: 524_288, RECORDED: 524_288, NET_MESH: 98_304, BARE: 524_288, FLOOR: 524_288}
"""Bytes in flight; a net-mesh node has the system's default receive buffer."""
MAX_WINDOW = {NET_MESH: 24}
"""In packets: the kernel charges a small packet several times its size."""

Open = Callable[..., AbstractContextManager[Bench]]
FORWARDERS: Mapping[str, Open] = {
    OURS: ours,
    RECORDED: lambda *, trains: ours(trains=trains, recorded=True),
    NET_MESH: netmesh,
    BARE: bare,
    FLOOR: bare_trains,
}


def run(quick: bool) -> list[Table]:
    """Measure full packets in trains, and single full and small packets."""
    rounds, seconds = (2, 0.5) if quick else (5, 1.0)
    tables = []
    for title, size, trains in (
        (f"Forwarding full packets of {FULL} B in trains", FULL, True),
        (f"Forwarding single full packets of {FULL} B", FULL, False),
        (f"Forwarding packets of {LOOPBACK} B in trains", LOOPBACK, True),
        (f"Forwarding single packets of {SMALL} B", SMALL, False),
    ):
        found = _measure(size, rounds, seconds, trains=trains)
        tables.append(_table(title, size, found, COMMITTED if size == FULL and trains else None))
    return tables


def _measure(size: int, rounds: int, seconds: float, *, trains: bool) -> dict[str, list[Run]]:
    """Run all forwarders in interleaved rounds."""
    found: dict[str, list[Run]] = {name: [] for name in FORWARDERS}
    for _ in range(rounds):
        for name, forwarder in FORWARDERS.items():
            with forwarder(trains=trains) as bench:
                bench.run(size, _window(name, size), 0.2)  # warm-up
                found[name].append(bench.run(size, _window(name, size), seconds))
    return found


def _window(name: str, size: int) -> int:
    return min(WINDOW_BYTES[name] // size, MAX_WINDOW.get(name, 256))


def _table(title: str, size: int, found: Mapping[str, list[Run]], committed: float | None) -> Table:
    rows: list[list[Cell]] = []
    for name, runs in found.items():
        times = [run.per_cpu_s / peer.per_cpu_s for run, peer in zip(runs, found[NET_MESH], strict=True)]
        median = statistics.median(times)
        ours = name == OURS
        rows.append(
            [
                name,
                _window(name, size),
                statistics.median(run.per_s for run in runs) / 1e3,
                statistics.median(run.per_cpu_s for run in runs) / 1e3,
                f"{median:.2f}× ({min(times):.2f}–{max(times):.2f})",
                f"{committed:g}×" if committed and ours else "–",
                "–" if not (committed and ours) else "yes" if median >= committed else "no",
            ]
        )
    columns = ["forwarder", "window", "thousand/s", "thousand per CPU-s", "times net-mesh", "target", "met"]
    return Table(
        title, columns, rows, ["processor time of the forwarder alone; no packet lost", _recorder_costs(found)]
    )


def _recorder_costs(found: Mapping[str, list[Run]]) -> str:
    """Return how many fewer packets pass when all are recorded: the median over paired rounds."""
    pairs = list(zip(found[RECORDED], found[OURS], strict=True))
    clock = 1 - statistics.median(mine.per_s / plain.per_s for mine, plain in pairs)
    process = 1 - statistics.median(mine.per_cpu_s / plain.per_cpu_s for mine, plain in pairs)
    return f"the recorder costs {clock:.0%} of the packets per second and {process:.0%} of those per CPU-second"
