"""Large events: throughput beside pyzmq and beside a plain TCP copy, and how much camera frames delay poses.

Bias: loopback, one publisher and one subscriber in two processes, warm. meshbus encrypts, acknowledges and resends in user
space; pyzmq and TCP do not encrypt, and the kernel does the rest for them. A TCP copy is the bound of what any of them can
reach. Poses: two robots and a hub in three processes on the same machine, so the frames also take processor time from the
poses. Latency is one way, from the call of `publish` to the subscriber, by the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import os
import socket  # noqa: TID251  the peer of this comparison
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import zmq
import zmq.asyncio

from bench.child import Child
from bench.harness import Cell, Table
from bench.large.receiver import CHANNEL, CHANNELS, PSK
from bench.large.robot import FRAMES, POSES
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node

SIZES = (1 << 20, 16 << 20, 64 << 20)
VOLUME = 256 << 20
"""Bytes of one measurement."""
WARM = 32 << 20
"""Bytes before it, so that everything is loaded and compiled."""
ROBOTS = ("west", "east")
COMMITTED_P99 = 2.0
ARRIVE_S = 10.0
"""How long the last poses of a round may take."""

Send = Callable[[bytes], Awaitable[object]]


def run(quick: bool) -> Iterator[Table]:
    """Measure throughput, then the delay of poses."""
    rounds = 1 if quick else 3
    warm()
    yield asyncio.run(_throughput(rounds, VOLUME // 4 if quick else VOLUME))
    yield asyncio.run(_poses(rounds, 5.0 if quick else 12.0))


# ── throughput ──────────────────────────────────────────────────────────────────────────────


async def _throughput(rounds: int, volume: int) -> Table:
    figures: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for size in SIZES:
            for name, measure in (("meshbus", _meshbus), ("pyzmq PUSH-PULL", _pyzmq), ("TCP copy", _tcp)):
                figures.setdefault((size, name), []).append(await measure(size, max(volume // size, 1)))
    rows: list[list[Cell]] = []
    for (size, name), found in figures.items():
        rate, cpu_s = (statistics.median(column) for column in zip(*found, strict=True))
        ours, _ = (statistics.median(column) for column in zip(*figures[size, "meshbus"], strict=True))
        ratio = "" if name == "meshbus" else f"{ours / rate:.2f}×"
        rows.append([f"{size >> 20} MiB", name, round(rate), round(cpu_s * 1000), ratio])
    return Table(
        "Large events, one after the other",
        ["event", "transport", "MB/s", "CPU ms per 256 MiB", "meshbus compared"],
        rows,
        [f"median of {rounds} rounds; encrypted: meshbus only"],
    )


async def _meshbus(size: int, events: int) -> tuple[float, float]:
    child = await Child.start("bench.large.receiver", "meshbus")
    try:
        async with Node.open(psk=PSK, ephemeral=True, channels=CHANNELS) as node:
            await child.ask("start", address=node.address, public_key=node.public_key.hex())
            publisher = node.publisher(CHANNEL, reliable=True, wait_s=120.0)
            return await _measure(child, publisher.publish, size, events)
    finally:
        await child.kill()


async def _pyzmq(size: int, events: int) -> tuple[float, float]:
    child = await Child.start("bench.large.receiver", "pyzmq")
    try:
        with zmq.asyncio.Context() as context, context.socket(zmq.PUSH) as pushing:
            pushing.connect(await child.ask("start"))
            return await _measure(child, lambda event: pushing.send(event, copy=False), size, events)
    finally:
        await child.kill()


async def _tcp(size: int, events: int) -> tuple[float, float]:
    child = await Child.start("bench.large.receiver", "tcp")
    try:
        port = int(await child.ask("start"))
        with socket.create_connection(("127.0.0.1", port)) as sending:
            return await _measure(child, lambda event: asyncio.to_thread(sending.sendall, event), size, events)
    finally:
        await child.kill()


async def _measure(child: Child, send: Send, size: int, events: int) -> tuple[float, float]:
    """Return MB per second and processor seconds for each 256 MiB; the first events only warm up."""
    event = os.urandom(size)  # not zeros, which a new bytes object reads from one page of the system
    rate = cpu_s = 0.0
    for count in (max(WARM // size, 1), events):
        began, used = time.perf_counter(), time.process_time()
        received = asyncio.ensure_future(child.ask("receive", events=count, size=size))
        for _ in range(count):
            await send(event)
        answer = await received
        if answer["bytes"] != count * size:
            raise RuntimeError(f"sent {count * size} bytes, received {answer['bytes']}")
        rate = count * size / 1e6 / (time.perf_counter() - began)
        cpu_s = (time.process_time() - used + answer["cpu_s"]) * VOLUME / (count * size)
    return rate, cpu_s


# ── poses ───────────────────────────────────────────────────────────────────────────────────


class _Watch:
    """What the hub saw: how long poses and frames took, and its reads of the network."""

    def __init__(self) -> None:
        self.poses: list[float] = []
        self.frames: list[float] = []
        self.reads: list[float] = []


async def _poses(rounds: int, seconds: float) -> Table:
    seen: dict[bool, list[_Watch]] = {False: [], True: []}
    async with Node.open(psk=PSK, ephemeral=True) as hub:
        robots = [await Child.start("bench.large.robot", name) for name in ROBOTS]
        try:
            for robot in robots:
                await robot.ask("start", address=hub.address, public_key=hub.public_key.hex())
            async with hub.subscribe(POSES) as poses, hub.subscribe(FRAMES) as frames:
                # Before the first round of either kind, so that everything is loaded and compiled.
                await _drive(hub, robots, poses, frames, 2.0, filming=True)
                for number in range(2 * rounds):
                    # Which of the two goes first changes, so that a machine that gets slower favors neither.
                    filming = number % 4 in {1, 2}
                    seen[filming].append(await _drive(hub, robots, poses, frames, seconds, filming=filming))
        finally:
            for robot in robots:
                await robot.kill()
    rows: list[list[Cell]] = []
    for share, bound in ((0.5, None), (0.99, COMMITTED_P99)):
        alone, beside = (statistics.median(_at(one.poses, share) for one in seen[filming]) for filming in (False, True))
        met = "–" if bound is None else ("yes" if beside <= bound * alone else "no")
        target = "–" if bound is None else f"≤ {bound:g}×"
        rows.append(
            [f"p{share * 100:g}", round(alone * 1e6), round(beside * 1e6), f"{beside / alone:.2f}×", target, met]
        )
    return Table(
        "Poses of two robots at 100 Hz, without and with 5 frames of 200 KB a second from each",
        ["delay", "alone, µs", "beside frames, µs", "ratio", "target", "met"],
        rows,
        [
            f"median of {rounds} rounds of {seconds:g} s, each with and without frames",
            "p99 of each round, alone / beside: " + ", ".join(map(_pair, seen[False], seen[True])),
            _frames(seen[True]),
        ],
    )


async def _drive(
    hub: Node, robots: list[Child], poses: Subscription, frames: Subscription, seconds: float, *, filming: bool
) -> _Watch:
    """Let the robots publish, and return what the hub saw."""
    watch = _Watch()
    hub.live.driver.took = watch.reads.append
    readers = [
        asyncio.ensure_future(_read(subscription, delays))
        for subscription, delays in ((poses, watch.poses), (frames, watch.frames))
    ]
    sent = sum(await asyncio.gather(*(robot.ask("drive", seconds=seconds, frames=filming) for robot in robots)))
    async with asyncio.timeout(ARRIVE_S):
        while len(watch.poses) < sent:  # noqa: ASYNC110 - poses may be lost, and then this must end
            await asyncio.sleep(0.01)
    for reader in readers:
        reader.cancel()
        with suppress(asyncio.CancelledError):
            await reader
    hub.live.driver.took = None
    return watch


async def _read(subscription: Subscription, delays: list[float]) -> None:
    """Note how long each event took; it begins with the time at which it was published."""
    while (batch := await subscription.next_batch()) is not None:
        now = time.monotonic_ns()
        times = (int.from_bytes(batch.payload(number)[:8], "little") for number in range(len(batch)))
        delays.extend((now - published) / 1e9 for published in times)


def _pair(alone: _Watch, beside: _Watch) -> str:
    return f"{_at(alone.poses, 0.99) * 1e6:.0f} / {_at(beside.poses, 0.99) * 1e6:.0f} µs"


def _frames(watches: list[_Watch]) -> str:
    delays = [delay for watch in watches for delay in watch.frames]
    reads = [took for watch in watches for took in watch.reads]
    return (
        f"frames took {_at(delays, 0.5) * 1e3:.1f} ms, p99 {_at(delays, 0.99) * 1e3:.1f} ms; reads of the hub beside them "
        f"took p99 {_at(reads, 0.99) * 1e6:.0f} µs, at most {max(reads) * 1e6:.0f} µs"
    )


def _at(delays: list[float], share: float) -> float:
    return sorted(delays)[min(int(share * len(delays)), len(delays) - 1)]
