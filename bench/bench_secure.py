"""Secure sessions beside those of the 0.23 wire: how long the handshake takes, and what a packet costs afterwards.

Bias: throughput is that of two engines connected by a memory copy in one process, without sockets: the cost of the protocol,
in which a change of one percent can be seen; on a network the difference is smaller. The handshake is that of two nodes on
one event loop on loopback, so both sides take turns on one core, and no path adds its round trips. Both forms run in
interleaved rounds of the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from bench.engines import Pair
from bench.harness import Cell, Table, compare
from meshbus.engine.base.notices import Negotiated, PeerSecured
from meshbus.engine.settings import SecureMode
from meshbus.node.node import Node
from meshbus.wire.constants import Subprotocol

SIZES = (64, 256, 1024, 8000)
BATCH_BYTES = 512 << 10
COMMITTED = 0.95
"""Throughput of secure sessions over plain ones."""


def run(quick: bool) -> Iterator[Table]:
    """Measure throughput, then handshakes."""
    yield _throughput(quick)
    yield asyncio.run(_handshakes(10 if quick else 100))


def _throughput(quick: bool) -> Table:
    rows: list[list[Cell]] = []
    for size in SIZES:
        count = BATCH_BYTES // size
        offsets = np.arange(count + 1, dtype=np.int64) * size
        data = np.zeros(count * size, np.uint8)
        pairs = {name: Pair(window=4 << 20, reliable=True, secure=name == "secure") for name in ("plain", "secure")}
        for name, pair in pairs.items():
            assert [peer.link.epoch for peer in pair.sender.peers] == [name == "secure"]
        cases = {name: (partial(pair.publish, offsets, data), count) for name, pair in pairs.items()}
        found = compare(cases, seconds=1.0 if quick else 6.0, rounds=9 if quick else 31)
        assert all(pair.events for pair in pairs.values())
        ratio = found["secure"].times_faster_than(found["plain"])
        verdict = "met" if ratio >= COMMITTED else "NOT met"
        for name, timing in found.items():
            rows.append([size, name, round(timing.cpu_ns), round(timing.per_second), ""])
        rows[-1][-1] = f"{ratio:.3f}x (at least {COMMITTED}: {verdict})"
    return Table(
        "throughput, reliable stream, batches of 512 KiB",
        ["bytes", "session", "CPU ns/event", "events/s", "secure over plain"],
        rows,
        ["ratio of the median processor times per event; above 1: secure is faster, which is noise"],
    )


async def _handshakes(count: int) -> Table:
    times: dict[str, list[float]] = {"plain": [], "secure": []}
    for number in range(count + 1):
        for name, found in times.items():
            took = await _handshake(SecureMode.AUTO if name == "secure" else SecureMode.OFF)
            if number:  # the first one loads code
                found.append(took)
    medians = {name: statistics.median(found) * 1000 for name, found in times.items()}
    rows: list[list[Cell]] = [
        [name, round(medians[name], 2), round(max(found) * 1000, 2), round(medians[name] / medians["plain"], 2)]
        for name, found in times.items()
    ]
    return Table(
        "from connect until both nodes use the profile",
        ["session", "median ms", "longest ms", "over plain"],
        rows,
        [
            f"{count} pairs of new nodes; plain: 0.23 handshake, announcements, manifests; secure: also the exchange of keys"
        ],
    )


async def _handshake(mode: SecureMode) -> float:
    psk = bytes(32)
    async with (
        Node.open(psk=psk, ephemeral=True, secure=mode) as one,
        Node.open(psk=psk, ephemeral=True, secure=mode) as other,
    ):
        done = asyncio.Event()

        def look(notice: object) -> None:
            uses = isinstance(notice, Negotiated) and Subprotocol.RELIABLE in notice.compatible
            if uses or isinstance(notice, PeerSecured):
                peers = [*one.peers, *other.peers]
                if len(peers) == 2 and all(peer.profile for peer in peers):
                    done.set()

        for node in (one, other):
            node.watch(look)
        begun = time.perf_counter()
        await one.connect(other.address, public_key=other.public_key)
        async with asyncio.timeout(30):
            await done.wait()
        assert all(peer.secure is (mode is SecureMode.AUTO) for peer in (*one.peers, *other.peers))
        return time.perf_counter() - begun
