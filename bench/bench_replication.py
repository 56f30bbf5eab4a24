"""Replicated appends: meshbus with three members compared with NATS JetStream with three replicas (R3).

Bias: one machine, so three disks are one, and members share its cores. One client, one channel, events of equal size,
warm. The load of meshbus runs in the process of the leader, as in an application that embeds a node; that of JetStream in
a client of its own, nats-py, whose processor time counts too: the row "servers alone" leaves it out. Both batches have
4000 events under way. meshbus syncs before it acknowledges in both of its settings: `local` on the leader's disk,
`majority` on a majority of disks. JetStream with `sync always` does the same as `majority`; its default syncs every two
minutes, so a loss of power may lose what was acknowledged. meshbus encrypts, JetStream does not. meshbus also seals what it
has stored, in each member: what that takes while a load runs counts, and a backlog that is left does not. Events are zeros,
which compress well where sealing keeps up; JetStream does not compress.

Fail-over is the time from the kill of the leader to the next acknowledged append of a client that stays, tried again as
often as necessary. Both detect a silent leader by time-outs, with their defaults.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable

import msgspec

from bench.harness import Cell, Table
from bench.replicated.contender import Contender, Measured, Mode, measure
from bench.replicated.jetstream import ALWAYS, DEFAULT, JetStream
from bench.replicated.members import Members

SIZES = (64, 1024)
MAJORITY, LOCAL = "meshbus, majority", "meshbus, local"
SYNCED, FAST, UNSYNCED = "JetStream, sync always", "JetStream, sync always, fast ingest", "JetStream, default"
UNSYNCED_FAST = "JetStream, default, fast ingest"
COMMITTED_TIMES = 2.0
"""Target: events per second of processor time, batches, `majority` against JetStream with sync always."""

Start = Callable[[], Awaitable[Contender]]


class Found(msgspec.Struct, frozen=True):
    """What was measured of one contender."""

    loads: dict[tuple[Mode, int], Measured]
    fail_overs_s: list[float]


def run(quick: bool) -> list[Table]:
    """Measure all contenders, one after the other."""
    seconds, fail_overs = (1.0, 1) if quick else (5.0, 3)
    found = {name: asyncio.run(_measure(start, seconds, fail_overs)) for name, start in CONTENDERS.items()}
    loads = Table(
        "Replicated appends, three members",
        ["log", "appends", "bytes", "events/s", "events/cpu s", "p50 ms", "p99 ms", "failed"],
        [row for name, one in found.items() for row in _rows(name, one)],
        [
            "p50, p99: wait for the acknowledgement of one event, or of a batch of 4000",
            "failed: calls that were not acknowledged, because the leader changed under the load",
        ],
    )
    return [loads, _fail_over_table(found), _claims(found)]


CONTENDERS: dict[str, Start] = {
    SYNCED: lambda: JetStream.start(ALWAYS),
    FAST: lambda: JetStream.start(ALWAYS, fast=True),
    UNSYNCED: lambda: JetStream.start(DEFAULT),
    UNSYNCED_FAST: lambda: JetStream.start(DEFAULT, fast=True),
    MAJORITY: lambda: Members.start("majority"),
    LOCAL: lambda: Members.start("local"),
}


async def _measure(start: Start, seconds: float, fail_overs: int) -> Found:
    loads, times = {}, []
    for again in range(fail_overs):
        contender = await start()
        try:
            if not again:
                for mode in Mode:
                    for size in SIZES:
                        loads[mode, size] = await measure(contender, mode, size, seconds)
            times.append(await contender.fail_over())
        finally:
            await contender.close()
    return Found(loads, times)


def _rows(name: str, found: Found) -> list[list[Cell]]:
    return [
        [
            name,
            str(mode),
            size,
            one.per_second,
            one.per_cpu_second,
            one.load.wait_s(0.5) * 1e3,
            one.load.wait_s(0.99) * 1e3,
            one.load.failed,
        ]
        for (mode, size), one in found.loads.items()
    ]


def _fail_over_table(found: dict[str, Found]) -> Table:
    return Table(
        "From the kill of the leader to the next acknowledged append, in seconds",
        ["log", "median", "lowest", "highest"],
        [
            [name, statistics.median(one.fail_overs_s), min(one.fail_overs_s), max(one.fail_overs_s)]
            for name, one in found.items()
        ],
    )


def _claims(found: dict[str, Found]) -> Table:
    rows: list[list[Cell]] = []
    for size in SIZES:
        ours = found[MAJORITY].loads[Mode.BATCH, size]
        for peer in (SYNCED, FAST):
            theirs = found[peer].loads[Mode.BATCH, size]
            for what, times in (
                ("all processes", ours.per_cpu_second / theirs.per_cpu_second),
                ("servers alone", ours.per_cpu_second / theirs.per_server_second),
            ):
                rows.append([f"batches per cpu second, {what}, against {peer}", size, times, *_judged(times, what)])
    ours_s, theirs_s = (statistics.median(found[name].fail_overs_s) for name in (MAJORITY, SYNCED))
    rows.append(
        ["fail-over, times JetStream's", "–", ours_s / theirs_s, "at most 1×", "yes" if ours_s <= theirs_s else "no"]
    )
    return Table("Replication: ratios", ["claim", "bytes", "measured", "target", "met"], rows)


def _judged(times: float, what: str) -> tuple[str, str]:
    if what != "all processes":
        return "–", "–"
    return f"{COMMITTED_TIMES:g}×", "yes" if times >= COMMITTED_TIMES else "no"
