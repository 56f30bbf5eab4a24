"""Claim: the subscription index stays fast and small from a hundred prefixes to a million.

Bias: `scan` is the documented linear scan with its early exit, in plain Python and compiled by numba. It visits half the
table for a random topic, and the topics are random (60 % lie below a subscribed prefix). `match` matches one topic per
call; at a million prefixes there are more topics than its cache holds, below that fewer. `column` matches 4 096 topics in
one call on an existing snapshot; the cost of a snapshot after a change is a separate column. `pyzmq` is a whole `send` of
an empty message to inproc subscribers whose pipes are full, so it drops what matches; the cost of the call without any
subscriber is printed below the table. Each pyzmq subscriber holds all prefixes; in meshbus the peers hold them in turn.
The pyzmq rows stop at ten million subscriptions, because a hundred million would need more memory than most machines have.
`scan` uses a sample of the topics where it is slow.

Memory is the growth of the resident set of a new process while it takes a million subscriptions, changes a tenth of them
and matches as many topics. For pyzmq it is the process of the publisher only. See bench/memory.py.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from bisect import bisect_right

import numpy as np
import zmq
from numpy.typing import NDArray

from bench.bench_prefixes import Held, scan
from bench.harness import Case, Cell, Table, compare, ns_per_item
from bench.memory import draw_prefix
from meshbus import jit
from meshbus.policy import prefixmatch
from meshbus.policy.prefixes import SubscriptionIndex

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
PEERS = (1, 4, 100)
MOST_QUICK = 100_000
"""Limit of subscriptions per row in a quick run."""
MOST_PYZMQ = 10_000_000
"""Limit of subscriptions per row for pyzmq, which needs 150 to 190 bytes for each."""
REMEMBERED = 1_000_000
"""Number of prefixes for the memory measurement."""
TOPICS = 4_096
SCAN_VISITS = 2_000_000
"""Approximate number of prefixes that one call of a linear scan visits."""
ALL_PEERS = 1_000
"""Number of peers that hold the prefixes in turn."""


def run(quick: bool) -> list[Table]:
    """Measure matching, changes and memory."""
    seconds, rounds = (0.05, 3) if quick else (0.4, 5)
    matching: list[list[Cell]] = []
    changing: list[list[Cell]] = []
    remembered = MOST_QUICK if quick else REMEMBERED
    floor = ns_per_item(*send_cases([], 0, [b"x"] * TOPICS), seconds=seconds).cpu_ns
    for each in PEERS:
        for size in SIZES:
            if quick and size * each > MOST_QUICK:
                continue
            held = draw_table(size, each)
            topics = draw_topics(list(held), 10 * size)
            index = SubscriptionIndex()
            for prefix in random.Random(each).sample(list(held), size):
                for peer in held[prefix]:
                    index.subscribe(peer, prefix)
            timings = compare(cases_for(index, held, topics, each), seconds=seconds, rounds=rounds)
            ours = [timings[name].times_faster_than(timings["scan"]) for name in ("match", "column")]
            compiled = timings["column"].times_faster_than(timings["scan numba"])
            cpu = [timings[name].cpu_ns for name in ("scan", "scan numba", "match", "column")]
            sent = timings["pyzmq"].cpu_ns if "pyzmq" in timings else "–"
            matching.append([size, each, *cpu, sent, *ours, compiled])
            changing.append([size, each, *change_costs(index, list(held), seconds)])
    return [
        Table(
            "Subscription match: processor ns per topic, and speed-up over the scan and the compiled scan",
            ["prefixes", "peers", "scan", "numba", "match", "column", "pyzmq", "match x", "column x", "column x numba"],
            matching,
            [f"pyzmq send without a subscriber: {floor:.0f} ns"],
        ),
        Table(
            "Subscription changes: processor µs",
            ["prefixes", "peers", "leaf on+off", "empty prefix on+off, 1 match", "peer of 10 on+off", "snapshot"],
            changing,
        ),
        Table(
            f"Memory: bytes per subscription, {remembered} distinct prefixes, after a tenth was replaced and matched",
            ["index", "subscribed", "changed", "matched", "with snapshot", "µs per change"],
            [measure_memory(what, remembered) for what in ("one peer", "1 000 peers", "pyzmq")],
            ["growth of the resident set of a separate process; in pyzmq, one SUB holds all subscriptions"],
        ),
    ]


def draw_topics(prefixes: list[bytes], numbers: int) -> list[bytes]:
    """Return random topics, 60 % of them below a prefix of the table."""
    rng = random.Random(numbers)
    below = [rng.choice(prefixes) for _ in range(TOPICS * 6 // 10)]
    others = [draw_prefix(rng.randrange(numbers)) for _ in range(TOPICS - len(below))]
    return [prefix + b"/v" for prefix in rng.sample(below + others, TOPICS)]


def draw_table(size: int, each: int) -> Held:
    """Return random prefixes in byte order, each held by `each` peers."""
    rng = random.Random(size)
    numbers = rng.sample(range(10 * size), size)
    peers = max(ALL_PEERS, each)
    found = {}
    for place, prefix in enumerate(sorted(draw_prefix(number) for number in numbers)):
        found[prefix] = sorted((place * each + turn) % peers for turn in range(each))
    return found


def cases_for(index: SubscriptionIndex, held: Held, topics: list[bytes], each: int) -> dict[str, Case]:
    """Return the candidates, which all find the same peers."""
    table = list(held.items())
    sample = topics[: min(max(SCAN_VISITS // len(table), 1), len(topics))]
    offsets, data = prefixmatch.pack_topics(topics)
    flat = index.snapshot()
    loop = jit.compile_loop(scan_rows)
    rows = np.empty(len(sample), np.int64)
    scanned = prefixmatch.pack_topics(sample)

    assert [scan(table, topic) for topic in sample] == [index.match(topic) for topic in sample]
    assert index.match_batch((offsets, data)).tolist() == [index.match(topic) for topic in topics]
    loop(flat.starts, flat.data, *scanned, rows)
    assert rows.tolist() == [sum(topic.startswith(prefix) for prefix in held) for topic in sample]
    cases: dict[str, Case] = {
        "scan": (lambda: [scan(table, topic) for topic in sample], len(sample)),
        "scan numba": (lambda: loop(flat.starts, flat.data, *scanned, rows), len(sample)),
        "match": (lambda: [index.match(topic) for topic in topics], len(topics)),
        "column": (lambda: index.match_batch((offsets, data)), len(topics)),
    }
    if len(held) * each <= MOST_PYZMQ:
        cases["pyzmq"] = send_cases(list(held), each, topics)
    return cases


def scan_rows(
    starts: NDArray[np.int32],
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    topics: NDArray[np.uint8],
    found: NDArray[np.int64],
) -> None:
    """Count the prefixes of each topic by a linear scan that stops after the topic; compiled by numba."""
    for index in range(len(found)):
        begin, end = offsets[index], offsets[index + 1]
        count = 0
        for row in range(1, len(starts) - 1):
            start, size = starts[row], starts[row + 1] - starts[row]
            shared = 0
            most = min(size, end - begin)
            while shared < most and data[start + shared] == topics[begin + shared]:
                shared += 1
            if shared == size:
                count += 1
            elif shared == most or data[start + shared] > topics[begin + shared]:
                break
        found[index] = count


def send_cases(prefixes: list[bytes], peers: int, topics: list[bytes]) -> Case:
    """Return a pyzmq publisher whose subscribers each hold all prefixes and read nothing."""
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    publisher.set(zmq.SNDHWM, 1)
    publisher.bind("inproc://index")
    subscribers = [context.socket(zmq.SUB) for _ in range(peers)]
    for subscriber in subscribers:
        subscriber.set(zmq.SNDHWM, 0)
        subscriber.set(zmq.RCVHWM, 1)
        subscriber.connect("inproc://index")
        for prefix in prefixes:
            subscriber.subscribe(prefix)
    for _ in prefixes if peers else ():
        publisher.recv()

    def send() -> None:
        for topic in topics:
            publisher.send(topic)
        _ = subscribers  # keep the sockets alive as long as this function

    return send, len(topics)


def change_costs(index: SubscriptionIndex, prefixes: list[bytes], seconds: float) -> list[Cell]:
    """Measure adding and removing a leaf, the empty prefix and a peer, and a new snapshot."""
    newcomer = 1 << 40
    leaf = prefixes[len(prefixes) // 2] + b"/new"
    own = prefixes[:: max(len(prefixes) // 10, 1)][:10]
    topic = prefixes[bisect_right(prefixes, leaf) // 2] + b"/v"

    def toggle_leaf() -> None:
        index.subscribe(newcomer, leaf)
        index.unsubscribe(newcomer, leaf)

    def toggle_all() -> None:
        index.subscribe(newcomer, b"")
        index.match(topic)
        index.unsubscribe(newcomer, b"")

    def toggle_peer() -> None:
        for prefix in own:
            index.subscribe(newcomer, prefix)
        index.remove_peer(newcomer)

    def take_snapshot() -> None:
        toggle_leaf()
        index.snapshot()

    costs = [ns_per_item(change, 1, seconds=seconds).cpu_ns / 1e3 for change in (toggle_leaf, toggle_all, toggle_peer)]
    snapshot = ns_per_item(take_snapshot, 1, seconds=seconds, rounds=3).cpu_ns / 1e3 - costs[0]
    return [*costs, snapshot]


def measure_memory(what: str, count: int) -> list[Cell]:
    """Return the memory growth of a separate process that takes subscriptions."""
    command = [sys.executable, "-m", "bench.memory", what, str(count)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - this interpreter, on our own module
    cells: list[Cell] = json.loads(answer.stdout)
    return [what, *cells]
