"""Measure only the peers, without meshbus: `python -m bench.peers [--rounds 3] [--scale 1.0]`."""

from __future__ import annotations

import argparse

import msgspec

from bench.harness import describe_machine
from bench.peers.runner import Case, compare, latency_table, throughput_table
from bench.peers.task import Task

SIZES = [(64, 64), (256, 256), (1024, 1024), (16, 512)]
MODES = [
    ("net-mesh stream", "netmesh", "stream", 25_600_000),
    ("net-mesh publish", "netmesh", "publish", 640_000),
    ("pyzmq, a message per event", "pyzmq", "single", 25_600_000),
    ("pyzmq, framed batches", "pyzmq", "framed", 102_400_000),
]
"""Name, module, mode, and the bytes that take about half a second to send."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of events")
    arguments = parser.parse_args()
    print(" · ".join(f"{name} {value}" for name, value in describe_machine().items()), "\n")
    for least, most in SIZES:
        cases = {
            name: Case(
                peer, Task(mode=mode, least=least, most=most, events=_events(nbytes * arguments.scale, least, most))
            )
            for name, peer, mode, nbytes in MODES
        }
        title = f"Events of {next(iter(cases.values())).task.size}"
        print(throughput_table(title, compare(cases, rounds=arguments.rounds)).render(), flush=True)
    paced = {
        name: Case(peer, Task(mode=mode, least=64, most=64, events=int(1000 * arguments.scale), gap_s=0.0005))
        for name, peer, mode, _ in MODES
    }
    for name in ("net-mesh stream", "net-mesh publish"):
        task = msgspec.structs.replace(paced[name].task, options={"pause_s": 0.0002})
        paced[f"{name}, pause 0.2 ms"] = Case("netmesh", task)
    print(latency_table("One-way latency, an event every 0.5 ms", compare(paced, rounds=arguments.rounds)).render())


def _events(nbytes: float, least: int, most: int) -> int:
    return max(1000, int(nbytes / ((least + most) / 2)))


if __name__ == "__main__":
    main()
