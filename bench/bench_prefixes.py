"""Claim: matching a topic is hundreds of times faster than a linear scan of the sorted table, and thousands in batches.

Bias: the reference is the documented scan with its early exit, in plain Python; a compiled scan would be much closer. It
visits half the table for a random topic, and the topics are random (60 % lie below a subscribed prefix). It is timed on a
sample of the topics; the figure holds for every batch size, because the scan does not depend on it. Batches repeat the same
topics in every round, so small ones find the table in the processor's cache. Nothing changes while they are matched, so
the snapshot always exists; the cost of a change is in the second table. `column` gets its topics as offsets and data,
`list` as Python bytes that must be joined first. `reference` is the plain-Python implementation of the kernels, which
unpacks the whole table on every call: it is a test oracle, not a competitor.
"""

from __future__ import annotations

import random

import numpy as np

from bench.harness import Case, Cell, Table, compare, ns_per_item
from meshbus.policy import prefixmatch
from meshbus.policy.prefixes import SubscriptionIndex
from meshbus.policy.prefixmatch import FlatTable

SIZES = (100, 1_000, 10_000)
BATCHES = (1, 64, 1_024, 65_536)
SENSORS = ("battery", "camera/front", "camera/rear", "gps", "imu", "lidar", "motor/left", "motor/right")
SCANNED = 64
"""Topics per call of the linear scan, which takes up to a millisecond per topic."""
REFERENCED = 1_024
"""Limit of topics per call of the reference."""
OWN_PREFIXES = 10
"""Number of prefixes of a peer that disconnects."""

Held = dict[bytes, list[int]]


def run(quick: bool) -> list[Table]:
    """Measure matching and changes."""
    seconds, rounds = (0.05, 3) if quick else (0.4, 7)
    matching: list[list[Cell]] = []
    changing: list[list[Cell]] = []
    peers_per_topic = []
    for size in SIZES:
        rng = random.Random(size)
        held = draw_subscriptions(rng, size)
        topics = draw_topics(rng, list(held), max(BATCHES))
        index = SubscriptionIndex()
        for prefix in rng.sample(list(held), size):
            for peer in held[prefix]:
                index.subscribe(peer, prefix)
        for batch in BATCHES:
            cases = cases_for(index, held, topics, batch)
            timings = compare(cases, seconds=seconds, rounds=rounds)
            ratios = [timings[name].times_faster_than(timings["scan"]) for name in ("match", "list", "column")]
            matching.append([size, batch, *(timings[name].cpu_ns for name in cases), *ratios])
        peers_per_topic.append(len(index.match_batch(topics).peers) / len(topics))
        changing.append([size, *change_costs(index, held, seconds)])
    return [
        Table(
            "Subscription match: processor ns per topic, and speed-up over the scan",
            ["prefixes", "batch", "scan", "match", "list", "column", "reference", "match x", "list x", "column x"],
            matching,
            [f"peers per topic: {', '.join(f'{count:.2f}' for count in peers_per_topic)}"],
        ),
        Table(
            "Subscription changes, and size of the snapshot",
            ["prefixes", "leaf on+off µs", f"peer of {OWN_PREFIXES} on+off µs", "snapshot µs", "bytes/subscription"],
            changing,
        ),
    ]


def draw_subscriptions(rng: random.Random, count: int) -> Held:
    """Return random prefixes like `region-3/fleet-12/vehicle-77/lidar`, some of whole vehicles and fleets, and their peers."""
    found: set[bytes] = set()
    while len(found) < count:
        found.add(draw_name(rng))
    peers = range(max(count // 10, 2))
    return {prefix: sorted(rng.sample(peers, rng.choice((1, 1, 1, 2)))) for prefix in sorted(found)}


def draw_topics(rng: random.Random, prefixes: list[bytes], count: int) -> list[bytes]:
    """Return random topics of the same hierarchy, 60 % of them below a prefix of the table."""
    return [rng.choice(prefixes) + b"/v" if rng.random() < 0.6 else draw_name(rng) + b"/w" for _ in range(count)]


def draw_name(rng: random.Random) -> bytes:
    """Return a random name in the hierarchy, usually a sensor."""
    parts = (f"region-{rng.randrange(8)}/", f"fleet-{rng.randrange(16)}/", f"vehicle-{rng.randrange(200)}/")
    depth = rng.choices((1, 2, 3, 4), (1, 10, 200, 789))[0]
    return "".join([*parts, rng.choice(SENSORS)][:depth]).encode()


def cases_for(index: SubscriptionIndex, held: Held, topics: list[bytes], batch: int) -> dict[str, Case]:
    """Return the candidates, which all find the same peers."""
    table = list(held.items())
    batched, scanned, referenced = topics[:batch], topics[-SCANNED:], topics[: min(batch, REFERENCED)]
    offsets, data = prefixmatch.pack_topics(batched)
    column = (offsets.astype(np.int32), data)
    snapshot = index.snapshot()

    assert [scan(table, topic) for topic in scanned] == [index.match(topic) for topic in scanned]
    assert index.match_batch(column).tolist() == [index.match(topic) for topic in batched]
    return {
        "scan": (lambda: [scan(table, topic) for topic in scanned], len(scanned)),
        "match": (lambda: [index.match(topic) for topic in batched], batch),
        "list": (lambda: index.match_batch(batched), batch),
        "column": (lambda: index.match_batch(column), batch),
        "reference": (lambda: match_by_reference(snapshot, referenced), len(referenced)),
    }


def scan(table: list[tuple[bytes, list[int]]], topic: bytes) -> list[int]:
    """Match by a linear scan: walk the sorted table, stop after the topic, sort the peers."""
    found: list[int] = []
    for prefix, peers in table:
        if prefix > topic:
            break
        if topic.startswith(prefix):
            found += peers
    return sorted(set(found)) if len(found) > 1 else found


def match_by_reference(table: FlatTable, topics: list[bytes]) -> None:
    """Run the plain-Python implementations of the kernels."""
    offsets, data = prefixmatch.pack_topics(topics)
    rows, bounds = np.empty(len(topics), np.int32), np.empty(len(topics) + 1, np.int64)
    total = prefixmatch._locate.reference(table.starts, table.data, table.links, offsets, data, rows, bounds)
    prefixmatch._fill.reference(table.links, table.peers, rows, bounds, np.empty(total, np.uint64))


def change_costs(index: SubscriptionIndex, held: Held, seconds: float) -> list[Cell]:
    """Measure adding and removing a leaf and a peer, a new snapshot, and its size."""
    newcomer = 1 << 40
    leaf = b"region-4/fleet-7/vehicle-100/new"
    own = list(held)[:: max(len(held) // OWN_PREFIXES, 1)][:OWN_PREFIXES]

    def toggle_leaf() -> None:
        index.subscribe(newcomer, leaf)
        index.unsubscribe(newcomer, leaf)

    def toggle_peer() -> None:
        for prefix in own:
            index.subscribe(newcomer, prefix)
        index.remove_peer(newcomer)

    def take_snapshot() -> None:
        toggle_leaf()
        index.snapshot()

    leaf_ns = ns_per_item(toggle_leaf, 1, seconds=seconds).cpu_ns
    peer_ns = ns_per_item(toggle_peer, 1, seconds=seconds).cpu_ns
    snapshot_ns = ns_per_item(take_snapshot, 1, seconds=seconds).cpu_ns - leaf_ns
    table = index.snapshot()
    size = sum(part.nbytes for part in (table.starts, table.data, table.links, table.peers))
    return [leaf_ns / 1e3, peer_ns / 1e3, snapshot_ns / 1e3, size / sum(map(len, held.values()))]
