"""One event per call, as applications publish: meshbus compared with net-mesh 0.23.0 and pyzmq.

Bias: one producer, one subscriber, one channel, loopback, warm. Every peer creates an object for each event. Throughput
runs send without pause; latency is one way, with half a millisecond between events. The net-mesh binding cannot wait for
an event: a consumer that polls without pause occupies a core and gets the event at once, and one that sleeps 0.2 ms
between empty polls is what a program on a shared machine can afford. Both are shown, and both use processor time while
nothing happens. meshbus and pyzmq sleep in the kernel until a packet arrives; waking up is part of their latency.
"""

from __future__ import annotations

from bench.bench_stream import refuse_losses, spell
from bench.harness import Cell, Table
from bench.peers.runner import Case, Ratio, compare, latency_table, throughput_table
from bench.peers.task import Task

OURS = "meshbus publish"
SENDING = "meshbus send"
POLLING = "net-mesh publish, busy polling"
RESTING = "net-mesh publish, sleeps 0.2 ms"
PYZMQ = "pyzmq PUSH-PULL"

SIZE = 64
EVENTS = 100_000
SENT = 1_000_000
"""For those that take a microsecond for each."""
PEER_EVENTS = 15_000
DELAYED = 4_000
GAP_S = 0.0005
PAUSE_S = 0.0002

COMMITTED_CPU = 1.5
COMMITTED_P50 = 0.6
COMMITTED_SEND = 0.5


def run(quick: bool) -> list[Table]:
    """Measure throughput and latency. Raises RuntimeError if an event was lost."""
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
        claims.append(_claim("one-way p50", peer, ratio, COMMITTED_P50 if committed else None, at_least=False))
    return [
        throughput_table(f"Single publishes, events of {SIZE} B", busy),
        latency_table(f"One-way latency, an event of {SIZE} B every {GAP_S * 1e3:g} ms", paced),
        Table(
            "Single publishes: ratio to the peer, median (lowest–highest round)",
            ["claim", "compared with", "measured", "target", "met"],
            claims,
            [f"{rounds} interleaved rounds, no event lost; for latency, below 1 is faster"],
        ),
    ]


def _case(peer: str, mode: str, events: float, *, gap_s: float = 0.0, **options: object) -> Case:
    return Case(peer, Task(mode=mode, least=SIZE, most=SIZE, events=int(events), gap_s=gap_s, options=options))


def _claim(what: str, peer: str, ratio: Ratio, committed: float | None, *, at_least: bool) -> list[Cell]:
    if committed is None:
        return [what, peer, spell(ratio), "–", "–"]
    met = ratio[0] >= committed if at_least else ratio[0] <= committed
    return [what, peer, spell(ratio), f"{committed:g}×", "yes" if met else "no"]
