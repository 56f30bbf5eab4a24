"""One event per call, as applications publish: meshbus compared with net-mesh 0.23.0 and pyzmq.

Bias: one producer, one subscriber, one channel, loopback, warm. Every peer creates an object for each event. Throughput
runs send without pause; latency is one way, with half a millisecond between events. The net-mesh binding cannot wait for
an event: a consumer that polls without pause occupies a core and gets the event at once, and one that sleeps 0.2 ms
between empty polls is what a program on a shared machine can afford. Both are shown, and both use processor time while
nothing happens. meshbus and pyzmq sleep in the kernel until a packet arrives; waking up is part of their latency. With
`poll_us` meshbus does not sleep either. `--before DIR` compares with another copy of this repository, the two in turn and in
many short rounds: the latency of the same code differed by a factor of two between two runs on an idle machine, so that
single rounds say nothing. The processor time of an event varies less.
"""

from __future__ import annotations

import argparse
import statistics

from bench.bench_stream import refuse_losses, spell
from bench.harness import Cell, Table
from bench.peers.runner import Case, Ratio, compare, latency_table, throughput_table
from bench.peers.task import Task

OURS = "meshbus publish"
SENDING = "meshbus send"
AWAKE = "meshbus publish, poll_us"
BEFORE = "meshbus publish, before"
POLLING = "net-mesh publish, busy polling"
RESTING = "net-mesh publish, sleeps 0.2 ms"
PYZMQ = "pyzmq PUSH-PULL"

SIZE = 64
EVENTS = 100_000
SENT = 1_000_000
"""For those that take a microsecond for each."""
PEER_EVENTS = 15_000
DELAYED = 4_000
COMPARED = 1_000
"""Events of a round of the comparison with another copy."""
COMPARED_ROUNDS = {True: 6, False: 20}
"""Its rounds, by `quick`."""
GAP_S = 0.0005
PAUSE_S = 0.0002

POLL_US = 5_000
"""Longer than the pause between two events, so that the loop never sleeps."""

COMMITTED_CPU = 3.0
COMMITTED_P50 = {RESTING: 0.8}
COMMITTED_AWAKE = 1.0
COMMITTED_BEFORE = 0.6
COMMITTED_SEND = 0.5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only this benchmark has."""
    parser.add_argument("--before", metavar="DIR", help="compare latency with another copy of this repository")


def run(quick: bool, options: argparse.Namespace | None = None) -> list[Table]:
    """Measure throughput and latency. Raises RuntimeError if an event was lost."""
    before: str | None = None if options is None else options.before
    rounds, scale = (1, 0.25) if quick else (5, 1.0)
    busy = compare(
        {
            OURS: _case("meshbus", "single", EVENTS * scale),
            SENDING: _case("meshbus", "send", SENT * scale),
            POLLING: _case("netmesh", "publish", PEER_EVENTS * scale),
            RESTING: _case("netmesh", "publish", PEER_EVENTS * scale, pause_s=PAUSE_S),
            PYZMQ: _case("pyzmq", "single", SENT * scale),
        },
        rounds=rounds,
    )
    refuse_losses(busy)
    paced = compare(
        {
            OURS: _case("meshbus", "single", DELAYED * scale, gap_s=GAP_S),
            AWAKE: _case("meshbus", "single", DELAYED * scale, gap_s=GAP_S, poll_us=POLL_US),
            POLLING: _case("netmesh", "publish", DELAYED * scale, gap_s=GAP_S),
            RESTING: _case("netmesh", "publish", DELAYED * scale, gap_s=GAP_S, pause_s=PAUSE_S),
            PYZMQ: _case("pyzmq", "single", DELAYED * scale, gap_s=GAP_S),
        },
        rounds=rounds,
    )
    refuse_losses(paced)
    ratio = busy[SENDING].times_wall(busy[PYZMQ])
    claims: list[list[Cell]] = [_claim("send, events/s", PYZMQ, ratio, COMMITTED_SEND, at_least=True)]
    for peer in (POLLING, RESTING, PYZMQ):
        committed = peer != PYZMQ
        ratio = busy[OURS].times_cpu(busy[peer])
        claims.append(_claim("events per CPU-second", peer, ratio, COMMITTED_CPU if committed else None, at_least=True))
        ratio = paced[OURS].times_p50(paced[peer])
        claims.append(_claim("one-way p50", peer, ratio, COMMITTED_P50.get(peer), at_least=False))
    ratio = paced[AWAKE].times_p50(paced[POLLING])
    claims.append(_claim(f"one-way p50 with poll_us = {POLL_US}", POLLING, ratio, COMMITTED_AWAKE, at_least=False))
    compared = [] if before is None else [_compare_with(before, COMPARED_ROUNDS[quick])]
    return [
        throughput_table(f"Single publishes, events of {SIZE} B", busy),
        latency_table(f"One-way latency, an event of {SIZE} B every {GAP_S * 1e3:g} ms", paced),
        Table(
            "Single publishes: ratio to the peer, median (lowest–highest round)",
            ["claim", "compared with", "measured", "target", "met"],
            claims,
            [f"{rounds} interleaved rounds, no event lost; for latency, below 1 is faster"],
        ),
        *compared,
    ]


def _compare_with(tree: str, rounds: int) -> Table:
    """Compare paced single publishes with another copy of this repository."""
    pair = {
        OURS: _case("meshbus", "single", COMPARED, gap_s=GAP_S),
        BEFORE: _case("meshbus", "single", COMPARED, gap_s=GAP_S, tree=tree),
    }
    found = compare(pair, rounds=rounds)
    refuse_losses(found)
    ours, before = found[OURS], found[BEFORE]
    latency, work = ours.times_p50(before), before.times_cpu(ours)
    rows = [
        _range("one-way p50, µs", [[run.p50_us or 0.0 for run in one.runs] for one in (ours, before)])
        + _claim("", "", latency, COMMITTED_BEFORE, at_least=False)[2:],
        _range(
            "processor time of an event, µs",
            [[1e6 / run.events_per_cpu_s for run in one.runs] for one in (ours, before)],
        )
        + _claim("", "", work, None, at_least=False)[2:],
    ]
    return Table(
        f"Compared with {tree}: median (lowest–highest of {rounds} rounds)",
        ["single publishes", "this copy", "the other", "ratio", "target", "met"],
        rows,
        ["below 1 is faster, or cheaper; processor time is that of both processes, their sleeping loops included"],
    )


def _range(what: str, both: list[list[float]]) -> list[Cell]:
    return [what, *(f"{statistics.median(one):.0f} ({min(one):.0f}–{max(one):.0f})" for one in both)]


def _case(peer: str, mode: str, events: float, *, gap_s: float = 0.0, tree: str = "", **options: object) -> Case:
    return Case(peer, Task(mode=mode, least=SIZE, most=SIZE, events=int(events), gap_s=gap_s, options=options), tree)


def _claim(what: str, peer: str, ratio: Ratio, committed: float | None, *, at_least: bool) -> list[Cell]:
    if committed is None:
        return [what, peer, spell(ratio), "–", "–"]
    met = ratio[0] >= committed if at_least else ratio[0] <= committed
    return [what, peer, spell(ratio), f"{committed:g}×", "yes" if met else "no"]
