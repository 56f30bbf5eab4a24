"""Forwarding with full verdicts: packets per second, beside net-mesh's node and a bare UDP loop in Python.

Bias: one sender, one receiver, loopback, every packet is a publication of one channel, so a verdict is found once and
kept; ours runs as a gateway that judges hops, subnets by announcement, visibility and the publisher, while net-mesh's node
judges hops and the bare loops judge nothing. A full packet has 1452 bytes, what meshbus fills packets up to on a network;
one of 8192 bytes, which only loopback carries in one piece, costs everybody two copies of 8 KiB in the kernel before
anything else: the loop in trains does nothing but receive and send as ours does, and shows that floor. What is compared is
the processor time of the forwarder alone; the ends share the machine and cost the same for all. Each forwarder runs with
the largest window that it takes without loss. The recorded gateway's time is that of all its threads, but what waits for
its seal when a run ends is not in it: `bench recorder` counts every row to its end, and is the figure for the recorder.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from bench.forwarders import Bench, Run, bare, bare_trains, netmesh, ours
from bench.harness import Cell, Table

OURS, RECORDED, NET_MESH = "meshbus gateway", "meshbus gateway, all recorded", "net-mesh node"
BARE, FLOOR = "bare UDP loop", "bare UDP loop in trains"
FULL, LOOPBACK, SMALL = 1452, 8192, 256
COMMITTED = 3.0
"""Times net-mesh's node per processor second, full packets in trains."""
WINDOW_BYTES = {OURS: 524_288, RECORDED: 524_288, NET_MESH: 98_304, BARE: 524_288, FLOOR: 524_288}
"""Under way: net-mesh's node has the receive buffer that the system gives by default."""
MAX_WINDOW = {NET_MESH: 24}
"""In packets: the kernel counts a small one several times."""

Open = Callable[..., AbstractContextManager[Bench]]
FORWARDERS: Mapping[str, Open] = {
    OURS: ours,
    RECORDED: lambda *, trains: ours(trains=trains, recorded=True),
    NET_MESH: netmesh,
    BARE: bare,
    FLOOR: bare_trains,
}


def run(quick: bool) -> list[Table]:
    """Measure full packets in trains, and full and small packets one by one."""
    rounds, seconds = (2, 0.5) if quick else (5, 1.0)
    tables = []
    for title, size, trains in (
        (f"forwarding full packets of {FULL} B in trains", FULL, True),
        (f"forwarding full packets of {FULL} B, one by one", FULL, False),
        (f"forwarding packets of {LOOPBACK} B in trains", LOOPBACK, True),
        (f"forwarding packets of {SMALL} B, one by one", SMALL, False),
    ):
        found = _measure(size, rounds, seconds, trains=trains)
        tables.append(_table(title, size, found, COMMITTED if size == FULL and trains else None))
    return tables


def _measure(size: int, rounds: int, seconds: float, *, trains: bool) -> dict[str, list[Run]]:
    """Run all forwarders, round after round."""
    found: dict[str, list[Run]] = {name: [] for name in FORWARDERS}
    for _ in range(rounds):
        for name, forwarder in FORWARDERS.items():
            with forwarder(trains=trains) as bench:
                bench.run(size, _window(name, size), 0.2)  # warm
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
    columns = ["forwarder", "window", "thousand/s", "thousand per CPU-s", "times net-mesh", "committed", "met"]
    return Table(
        title, columns, rows, ["processor time of the forwarder alone; no packet lost", _recorder_costs(found)]
    )


def _recorder_costs(found: Mapping[str, list[Run]]) -> str:
    """Say how many packets fewer pass while all are recorded: the median of the rounds side by side."""
    pairs = list(zip(found[RECORDED], found[OURS], strict=True))
    clock = 1 - statistics.median(mine.per_s / plain.per_s for mine, plain in pairs)
    process = 1 - statistics.median(mine.per_cpu_s / plain.per_cpu_s for mine, plain in pairs)
    return f"the recorder costs {clock:.0%} of the packets a second, {process:.0%} of those per CPU-s"
