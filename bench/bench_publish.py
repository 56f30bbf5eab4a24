"""One event per call, as applications publish: ours beside net-mesh 0.23.0 and pyzmq (design row 4).

Bias: one producer, one subscriber, one channel, loopback, warm. Every peer makes an object of each event. Throughput
sends without pause; delays are one way, with half a millisecond between events. The net-mesh binding cannot wait for
an event: a consumer that polls without pause burns a core and is told at once; one that rests 0.2 ms between empty polls
is what a program that shares its machine can afford. Both are shown, and neither is idle while nothing happens; ours
and pyzmq sleep in the kernel until a packet comes and are woken up for it, which is part of their delay.
"""

from __future__ import annotations

from bench.bench_stream import refuse_losses, spell
from bench.harness import Cell, Table
from bench.peers.runner import Case, Ratio, compare, latency_table, throughput_table
from bench.peers.task import Task

OURS = "meshbus publish"
POLLING = "net-mesh publish, polls without pause"
RESTING = "net-mesh publish, rests 0.2 ms"
PYZMQ = "pyzmq PUSH-PULL"

SIZE = 64
EVENTS = 100_000
PEER_EVENTS = 15_000
DELAYED = 4_000
GAP_S = 0.0005
PAUSE_S = 0.0002

COMMITTED_CPU = 1.5
COMMITTED_P50 = 0.6


def run(quick: bool) -> list[Table]:
    """Measure throughput and delay; raises when anything was lost."""
    rounds, scale = (1, 0.25) if quick else (5, 1.0)
    busy = compare(
        {
            OURS: _case("meshbus", "single", EVENTS * scale),
            POLLING: _case("netmesh", "publish", PEER_EVENTS * scale),
            RESTING: _case("netmesh", "publish", PEER_EVENTS * scale, pause_s=PAUSE_S),
            PYZMQ: _case("pyzmq", "single", EVENTS * scale),
        },
        rounds=rounds,
    )
    refuse_losses(busy)
    paced = compare(
        {
            OURS: _case("meshbus", "single", DELAYED * scale, gap_s=GAP_S),
            POLLING: _case("netmesh", "publish", DELAYED * scale, gap_s=GAP_S),
            RESTING: _case("netmesh", "publish", DELAYED * scale, gap_s=GAP_S, pause_s=PAUSE_S),
            PYZMQ: _case("pyzmq", "single", DELAYED * scale, gap_s=GAP_S),
        },
        rounds=rounds,
    )
    refuse_losses(paced)
    claims: list[list[Cell]] = []
    for peer in (POLLING, RESTING, PYZMQ):
        committed = peer != PYZMQ
        ratio = busy[OURS].times_cpu(busy[peer])
        claims.append(_claim("events per CPU-second", peer, ratio, COMMITTED_CPU if committed else None, at_least=True))
        ratio = paced[OURS].times_p50(paced[peer])
        claims.append(_claim("one-way p50", peer, ratio, COMMITTED_P50 if committed else None, at_least=False))
    return [
        throughput_table(f"single publishes, events of {SIZE} B", busy),
        latency_table(f"one way, an event of {SIZE} B every {GAP_S * 1e3:g} ms", paced),
        Table(
            "single publishes: times the peer, median (lowest–highest round)",
            ["claim", "against", "measured", "committed", "met"],
            claims,
            [f"{rounds} interleaved rounds, no event lost; for the delay, below 1 is quicker"],
        ),
    ]


def _case(peer: str, mode: str, events: float, *, gap_s: float = 0.0, **options: object) -> Case:
    return Case(peer, Task(mode=mode, least=SIZE, most=SIZE, events=int(events), gap_s=gap_s, options=options))


def _claim(what: str, peer: str, ratio: Ratio, committed: float | None, *, at_least: bool) -> list[Cell]:
    if committed is None:
        return [what, peer, spell(ratio), "–", "–"]
    met = ratio[0] >= committed if at_least else ratio[0] <= committed
    return [what, peer, spell(ratio), f"{committed:g}×", "yes" if met else "no"]
