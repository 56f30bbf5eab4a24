"""Streams of events between two processes: meshbus compared with net-mesh 0.23.0 and pyzmq.

Bias: one producer, one consumer, one channel, loopback, warm. Both peers use the fastest lossless mode that was found
(bench/peers). meshbus takes and returns Arrow columns, its intended use; the row "to bytes" creates an object for every
event, as the peers do. meshbus and net-mesh encrypt, pyzmq does not. The net-mesh consumer polls without pause and uses a
whole core. Processor time is compared because on a shared machine the wall clock mostly depends on scheduling. The split
of costs is measured between two engines in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bench.engines import Pair
from bench.harness import Cell, Table
from bench.harness import compare as compare_calls
from bench.peers.runner import Case, Ratio, Summary, compare, throughput_table
from bench.peers.task import Task
from meshbus.engine.settings import PROFILE_WINDOW
from meshbus.wire.replaywindow import ReplayWindow

OURS = "meshbus"
RELIABLE = "meshbus, reliable"
OBJECTS = "meshbus, to bytes"
NET_MESH = "net-mesh stream"
PYZMQ = "pyzmq PUSH-PULL"

SIZES = [(64, 64), (256, 256), (1024, 1024), (16, 512)]
COMMITTED = {
    64: (5.0, 7.0, 4.5),
    256: (3.0, 5.0, 2.0),
    1024: (2.0, 5.0, 1.4),
}
"""Targets by size: wall clock and processor time against net-mesh, wall clock against pyzmq."""
FLOOR = {64: 2.0, 256: 1.5, 1024: 1.0}
"""Minimum ratio to net-mesh by size."""

RUN_BYTES = 160_000_000
PEER_BYTES = 20_000_000
"""Bytes to send: about half a second each."""
BATCH_PACKETS = 16
"""Packets per publish between two engines: what one grant allows."""


def run(quick: bool) -> list[Table]:
    """Measure all sizes. Raises RuntimeError if an event was lost."""
    rounds, scale = (1, 0.25) if quick else (5, 1.0)
    tables: list[Table] = []
    ratios: list[list[Cell]] = []
    for least, most in SIZES:
        found = compare(_cases(least, most, scale), rounds=rounds)
        refuse_losses(found)
        tables.append(throughput_table(f"Streams, events of {found[OURS].case.task.size}", found))
        ratios += _claims(least if least == most else 0, found)
    tables.append(
        Table(
            "Streams: ratio to the peer, median (lowest–highest round)",
            ["events", "claim", "measured", "target", "met"],
            ratios,
            [
                (
                    f"{rounds} interleaved rounds, no event lost; {NET_MESH}: fastest mode without loss,"
                    " busy-polling consumer"
                ),
                f"minimum for the wall clock against net-mesh: {' / '.join(f'{times:g}×' for times in FLOOR.values())}",
            ],
        )
    )
    tables.append(_costs(quick))
    return tables


def refuse_losses(found: Mapping[str, Summary]) -> None:
    """Raise RuntimeError if a run failed or lost events: its figures would be meaningless."""
    for name, summary in found.items():
        if summary.error or summary.lost:
            raise RuntimeError(f"{name}, {summary.case.task.size}: {summary.error or f'{summary.lost} events lost'}")


def spell(ratio: Ratio) -> str:
    """Format a ratio with its range."""
    median, lowest, highest = ratio
    return f"{median:.2f}× ({lowest:.2f}–{highest:.2f})"


def _cases(least: int, most: int, scale: float) -> dict[str, Case]:
    def case(peer: str, mode: str, nbytes: float, **options: object) -> Case:
        events = max(1000, int(scale * nbytes / ((least + most) / 2)))
        return Case(peer, Task(mode=mode, least=least, most=most, events=events, options=options))

    return {
        OURS: case("meshbus", "plain", RUN_BYTES),
        RELIABLE: case("meshbus", "reliable", RUN_BYTES),
        OBJECTS: case("meshbus", "plain", RUN_BYTES / 2, objects=True),
        NET_MESH: case("netmesh", "stream", PEER_BYTES),
        PYZMQ: case("pyzmq", "single", PEER_BYTES),
    }


def _claims(size: int, found: Mapping[str, Summary]) -> list[list[Cell]]:
    """Return the rows of claims for one size; mixed sizes (0) have no target."""
    told = found[OURS].case.task.size
    wall, cpu, zmq = COMMITTED.get(size, (None, None, None))
    claims = [
        ("wall clock, against net-mesh", found[OURS].times_wall(found[NET_MESH]), wall),
        ("processor time, against net-mesh", found[OURS].times_cpu(found[NET_MESH]), cpu),
        ("wall clock, against pyzmq", found[OURS].times_wall(found[PYZMQ]), zmq),
        ("processor time, against pyzmq", found[OURS].times_cpu(found[PYZMQ]), None),
        ("to bytes, processor time, against net-mesh", found[OBJECTS].times_cpu(found[NET_MESH]), None),
        ("reliable, processor time, against not reliable", found[RELIABLE].times_cpu(found[OURS]), None),
    ]
    return [
        [told, claim, spell(ratio), "–" if least is None else f"{least:g}×", _met(ratio[0], least)]
        for claim, ratio, least in claims
    ]


def _met(times: float, least: float | None) -> str:
    if least is None:
        return "–"
    return "yes" if times >= least else "no"


def _costs(quick: bool) -> Table:
    """Measure the cost of a packet with and without credit, acknowledgements and the replay window."""
    per_packet = 8108 // 68
    offsets = np.arange(per_packet * BATCH_PACKETS + 1, dtype=np.int64) * 64
    data = np.zeros(int(offsets[-1]), np.uint8)
    pairs = {
        "credit (default)": Pair(window=PROFILE_WINDOW, reliable=False),
        "no credit (unlimited window)": Pair(window=0, reliable=False),
        "acknowledgements and credit (reliable)": Pair(window=PROFILE_WINDOW, reliable=True),
    }
    cases = {name: (lambda pair=pair: pair.publish(offsets, data), BATCH_PACKETS) for name, pair in pairs.items()}
    timings = compare_calls(cases, seconds=0.3 if quick else 2.0)
    window = _CountingWindow()
    replay = compare_calls(
        {
            f"replay window, runs of {BATCH_PACKETS}": (window.run, BATCH_PACKETS),
            "replay window, single packets": (window.one, 1),
        },
        seconds=0.05 if quick else 0.3,
    )
    whole = next(iter(timings.values())).cpu_ns
    rows: list[list[Cell]] = [
        [name, timing.cpu_ns / 1e3, f"{timing.cpu_ns / whole - 1:+.1%}"] for name, timing in timings.items()
    ]
    rows += [[name, timing.cpu_ns / 1e3, f"{timing.cpu_ns / whole:.1%} of it"] for name, timing in replay.items()]
    return Table(
        f"Cost of a full packet on both sides, {BATCH_PACKETS} packets per publish, two engines in memory",
        ["with", "µs per packet", "compared with the first row"],
        rows,
    )


class _CountingWindow:
    """A replay window that only gets new counters."""

    def __init__(self) -> None:
        self._window = ReplayWindow()
        self._next = 0

    def run(self) -> None:
        """Admit a run of packets."""
        self._window.admit_run(self._next, BATCH_PACKETS)
        self._next += BATCH_PACKETS

    def one(self) -> None:
        """Admit one packet."""
        self._window.admit(self._next)
        self._next += 1
