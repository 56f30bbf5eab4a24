"""Memory growth of a process that takes subscriptions. bench_index runs it in a separate process for each row.

    python -m bench.memory "1 000 peers" 1000000

prints bytes per subscription as a JSON list: after subscribing, after a tenth was replaced, after as many topics were
matched, and with a snapshot for batches; then the processor time of one change in microseconds. A dash means that the
value does not apply.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from bench.harness import Cell
from meshbus.policy.prefixes import SubscriptionIndex


def draw_prefix(number: int) -> bytes:
    """Return a prefix like `sensors/lidar/0042117/fr`, 24 bytes long, different for each number."""
    return b"sensors/%b/%08d/fr" % ((b"lidar", b"radar", b"sonar")[number % 3], number)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def plan(count: int) -> tuple[list[int], list[int]]:
    """Return the numbers of all prefixes in random order, and those that are replaced."""
    order = random.Random(1).sample(range(count), count)
    return order, random.Random(2).sample(order, count // 10)


def measure_ours(count: int, peers: int) -> list[Cell]:
    """Measure the index of this package."""
    order, replaced = plan(count)
    rng = random.Random(3)
    SubscriptionIndex().snapshot()  # compile before measuring
    gc.collect()
    before = resident()
    index = SubscriptionIndex()

    def grown() -> float:
        gc.collect()
        return (resident() - before) / count

    def take() -> None:
        for number in order:
            index.subscribe(number % peers, draw_prefix(number))

    def change() -> None:
        for number in replaced:
            index.unsubscribe(number % peers, draw_prefix(number))
        for number in replaced:
            index.subscribe(number % peers, draw_prefix(number + count))

    take()
    subscribed = grown()
    spent = cpu_of(change)
    changed = grown()
    for _ in range(count // 10):
        index.match(draw_prefix(rng.randrange(2 * count)) + b"/v")
    matched = grown()
    index.snapshot()
    return [subscribed, changed, matched, grown(), spent / (2 * len(replaced)) * 1e6]


def measure_pyzmq(count: int) -> list[Cell]:
    """Measure a libzmq publisher with one subscriber in another process."""
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    publisher.set(zmq.RCVHWM, 0)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    order, replaced = plan(count)
    gc.collect()
    before = resident()
    spawn = multiprocessing.get_context("spawn")
    go = spawn.Event()
    subscriber = spawn.Process(target=subscribe_pyzmq, args=(port, order, replaced, go), daemon=True)
    subscriber.start()

    def hear(messages: int) -> None:
        for _ in range(messages):
            publisher.recv()

    hear(count)
    subscribed = (resident() - before) / count
    go.set()
    spent = cpu_of(lambda: hear(2 * len(replaced)))
    changed = (resident() - before) / count
    subscriber.terminate()
    return [subscribed, changed, "-", "-", spent / (2 * len(replaced)) * 1e6]


def subscribe_pyzmq(port: int, order: list[int], replaced: list[int], go: multiprocessing.synchronize.Event) -> None:
    """Run the subscriber of `measure_pyzmq` until it is terminated."""
    subscriber = zmq.Context().socket(zmq.SUB)
    subscriber.set(zmq.SNDHWM, 0)
    subscriber.connect(f"tcp://127.0.0.1:{port}")
    for number in order:
        subscriber.subscribe(draw_prefix(number))
    go.wait()
    for number in replaced:
        subscriber.unsubscribe(draw_prefix(number))
    for number in replaced:
        subscriber.subscribe(draw_prefix(number + len(order)))
    subscriber.poll(None)


def cpu_of(function: Callable[[], None]) -> float:
    """Return the processor seconds of one call, for all threads of this process."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Run the measurement given on the command line."""
    what, count = sys.argv[1], int(sys.argv[2])
    measures: dict[str, Callable[[], list[Cell]]] = {
        "one peer": lambda: measure_ours(count, 1),
        "1 000 peers": lambda: measure_ours(count, 1_000),
        "pyzmq": lambda: measure_pyzmq(count),
    }
    print(json.dumps(measures[what]()))


if __name__ == "__main__":
    main()
