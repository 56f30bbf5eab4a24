"""What a process grows by while it takes subscriptions: run by bench_index in a process of its own for each row.

    python -m bench.memory "1 000 peers" 1000000

prints bytes per subscription, as a JSON list: after subscribing, after a tenth was replaced, after as many topics were
matched, with a snapshot for batches; and the processor time of one change in microseconds. A dash where it means nothing.
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
    """Give a prefix like `sensors/lidar/0042117/fr`, 24 bytes long, a different one for each number."""
    return b"sensors/%b/%08d/fr" % ((b"lidar", b"radar", b"sonar")[number % 3], number)


def resident() -> int:
    """Give the bytes of memory that this process occupies."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def plan(count: int) -> tuple[list[int], list[int]]:
    """Choose an order for the numbers of all prefixes, and those that are replaced."""
    order = random.Random(1).sample(range(count), count)
    return order, random.Random(2).sample(order, count // 10)


def measure_ours(count: int, peers: int) -> list[Cell]:
    """Measure the index of this package."""
    order, replaced = plan(count)
    rng = random.Random(3)
    SubscriptionIndex().snapshot()  # the compiler is no part of the figure
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
    """Measure a libzmq publisher whose one subscriber is another process."""
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
    """Be the subscriber of `measure_pyzmq`, until ended."""
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
    """Give the processor seconds of one call, all threads of this process together."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Measure what the command line names."""
    what, count = sys.argv[1], int(sys.argv[2])
    measures: dict[str, Callable[[], list[Cell]]] = {
        "one peer": lambda: measure_ours(count, 1),
        "1 000 peers": lambda: measure_ours(count, 1_000),
        "pyzmq": lambda: measure_pyzmq(count),
    }
    print(json.dumps(measures[what]()))


if __name__ == "__main__":
    main()
