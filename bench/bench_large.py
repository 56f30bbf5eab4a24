"""Large events: throughput beside pyzmq and beside a plain TCP copy, and how much camera frames delay poses.

Bias: loopback, one publisher and one subscriber in two processes, warm. meshbus encrypts, acknowledges and resends in user
space; pyzmq and TCP do not encrypt, and the kernel does the rest for them. A TCP copy is the bound of what any of them can
reach. Poses: two robots and a hub in three processes on the same machine, so the frames also take processor time from the
poses. Latency is one way, from the call of `publish` to the subscriber, by the clock that all processes share.
"""

from __future__ import annotations

import asyncio
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
from meshbus.node.node import Node

SIZES = (1 << 20, 16 << 20, 64 << 20)
VOLUME = 256 << 20
"""Bytes of one measurement."""
WARM = 32 << 20
"""Bytes before it, so that everything is loaded and compiled."""
ROBOTS = ("west", "east")
COMMITTED_P99 = 2.0

Send = Callable[[bytes], Awaitable[object]]


def run(quick: bool) -> Iterator[Table]:
    """Measure throughput, then the delay of poses."""
    rounds = 1 if quick else 3
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
    event = bytes(size)
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


async def _poses(rounds: int, seconds: float) -> Table:
    delays: dict[bool, list[list[float]]] = {False: [], True: []}
    async with Node.open(psk=PSK, ephemeral=True) as hub:
        robots = [await Child.start("bench.large.robot", name) for name in ROBOTS]
        try:
            for robot in robots:
                await robot.ask("start", address=hub.address, public_key=hub.public_key.hex())
            async with hub.subscribe(POSES) as poses, hub.subscribe(FRAMES) as frames:
                watching = asyncio.ensure_future(_read(frames))
                await _drive(robots, poses, 1.0, frames=True)  # loads and compiles what is used
                for _ in range(rounds):
                    for with_frames in (False, True):
                        delays[with_frames].append(await _drive(robots, poses, seconds, frames=with_frames))
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
        finally:
            for robot in robots:
                await robot.kill()
    rows: list[list[Cell]] = []
    for share, bound in ((0.5, None), (0.99, COMMITTED_P99)):
        alone, beside = (statistics.median(_at(one, share) for one in delays[kind]) for kind in (False, True))
        met = "–" if bound is None else ("yes" if beside <= bound * alone else "no")
        target = "–" if bound is None else f"≤ {bound:g}×"
        rows.append(
            [f"p{share * 100:g}", round(alone * 1e6), round(beside * 1e6), f"{beside / alone:.2f}×", target, met]
        )
    return Table(
        "Poses of two robots at 100 Hz, without and with 5 frames of 200 KB a second from each",
        ["delay", "alone, µs", "beside frames, µs", "ratio", "target", "met"],
        rows,
        [f"median of {rounds} rounds of {seconds:g} s, each with and without frames"],
    )


async def _drive(robots: list[Child], poses: Subscription, seconds: float, *, frames: bool) -> list[float]:
    """Let the robots publish, and return the delays of their poses in seconds, in ascending order."""
    driving = asyncio.gather(*(robot.ask("drive", seconds=seconds, frames=frames) for robot in robots))
    delays: list[float] = []
    while not driving.done() or len(delays) < sum(driving.result()):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                batch = await poses.next_batch()
                assert batch is not None
                now = time.monotonic_ns()
                delays.extend((now - int.from_bytes(pose, "little")) / 1e9 for pose in batch.payloads())
    return sorted(delays)


async def _read(frames: Subscription) -> None:
    while await frames.next_batch() is not None:
        pass


def _at(delays: list[float], share: float) -> float:
    return delays[min(int(share * len(delays)), len(delays) - 1)]
