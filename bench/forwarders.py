"""Forwarders in separate processes, and the two ends that drive them: meshbus, a net-mesh node, a bare UDP loop.

The ends are engines in this process. They connect to the forwarder like any node, announce themselves and send pingwaves,
so that it learns the routes. Then one end sends routed packets and the other counts them. A window limits the packets in
flight, so that nothing is lost; a run that loses a packet raises an error. Only the processor time of the forwarder
counts, for all its threads, as reported by the kernel.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import select
import socket  # noqa: TID251 - the bare forwarder is a socket and nothing else
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from meshbus.engine.base.packets import Address, Output, Train
from meshbus.engine.core import Engine
from meshbus.engine.settings import EngineSettings, LivenessConfig
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity, routing_id
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.testing.realpeer import RealPeer
from meshbus.wire.constants import PACKET_COST, ROUTE_BYTES, TAG_BYTES
from meshbus.wire.header import Header, pack_header
from meshbus.wire.route import RouteHeader, pack_route

PSK = bytes([0x42]) * 32
CHANNEL = ChannelName("bench/events")
SUBNETS = {"west": "1", "east": "2"}
SETTLE_S = 20.0
STALL_S = 2.0
"""Seconds without arrivals after which packets count as lost."""


class Run(msgspec.Struct, frozen=True):
    """The result of one run."""

    packets: int
    seconds: float
    cpu_s: float
    """Processor time of the forwarder alone."""

    @property
    def per_s(self) -> float:
        """Return packets per second by the wall clock."""
        return self.packets / self.seconds

    @property
    def per_cpu_s(self) -> float:
        """Return packets per second of the forwarder's processor time."""
        return self.packets / self.cpu_s


class End:
    """One end: an engine on a socket, driven explicitly."""

    def __init__(self, number: int, tag: str) -> None:
        self.socket = UdpSocket.bind("127.0.0.1", 0)
        self.engine = Engine(
            Identity.from_seed(bytes([number]) * 32),
            EngineSettings(psk=PSK, liveness=LivenessConfig(heartbeat_s=0.2, session_timeout_s=60.0)),
            now=time.monotonic(),
            wall=lambda _now: time.time_ns(),
            entropy=os.urandom,
        )
        self.engine.announce(CapabilitySet([tag, "bench"]), time.monotonic(), Output())

    def connect(self, node_id: int, address: str, public_key: bytes, *, routed: bool) -> None:
        """Start a session with the forwarder."""
        out = Output()
        host, _, port = address.rpartition(":")
        where = self.socket.resolve(host, int(port))
        self.engine.connect(node_id, where, public_key, time.monotonic(), out, routed=routed)
        self.socket.send(out.trains)

    def pump(self) -> None:
        """Process received packets and due timers."""
        batch = self.socket.drain()
        now = time.monotonic()
        if batch is not None:
            self.socket.send(self.engine.receive(batch, now).trains)
        due = self.engine.next_timer()
        if due is not None and now >= due:
            self.socket.send(self.engine.tick(now).trains)


class Bench:
    """Two ends and a forwarder between them."""

    def __init__(self, pid: int, address: Address, ends: tuple[End, End], *, trains: bool) -> None:
        self.pid = pid
        self._address = address
        self._near, self._far = ends
        self._sender = self._near.socket
        if not trains:
            self._sender.sends_trains = False

    def run(self, size: int, window: int, seconds: float) -> Run:
        """Send packets for some seconds, at most `window` of them in flight. Raises RuntimeError if one is lost."""
        step = window // 2 or 1
        train, half = (Train(self._address, self._packets(size, count), size) for count in (window, step))
        self._clear()
        sent = received = 0
        cpu, begun = cpu_ns(self.pid), time.perf_counter()
        self._send(train)
        sent += window
        while time.perf_counter() - begun < seconds:
            received += self._take(sent - received - (window - step))
            self._send(half)
            sent += step
        received += self._take(sent - received)
        return Run(received, time.perf_counter() - begun, (cpu_ns(self.pid) - cpu) / 1e9)

    def _send(self, train: Train) -> None:
        left = self._sender.send([train])
        while left:
            left = self._sender.send(left)

    def _take(self, count: int) -> int:
        """Wait for at least this many packets at the far end; return how many came."""
        taken, last = 0, time.perf_counter()
        while taken < count:
            batch = self._far.socket.drain()
            if batch is not None:
                routed = int((batch.lengths > 200).sum())
                taken += routed
                last = time.perf_counter()
            elif time.perf_counter() - last > STALL_S:
                raise RuntimeError(f"{count - taken} packets were lost; use a smaller window")
        return taken

    def _clear(self) -> None:
        while self._far.socket.drain() is not None:
            pass

    def _packets(self, size: int, count: int) -> bytes:
        """Return routed publications of this size, each with its own counters; forwarders do not check seals."""
        payload = size - ROUTE_BYTES - PACKET_COST
        identity = self._near.engine.identity
        first = Header(
            stream_id=CHANNEL.hash | 1 << 48,
            channel_hash=CHANNEL.wire_hash,
            origin_hash=identity.origin_hash,
            session_id=7,
            subnet_id=1 << 24,
            payload_len=payload,
            event_count=1,
        )
        route = RouteHeader(src_id=routing_id(identity.node_id), dest_id=self._far.engine.node_id)
        headers = (
            msgspec.structs.replace(first, sequence=number, nonce=bytes(4) + number.to_bytes(8, "little"))
            for number in range(count)
        )
        return b"".join(pack_route(route) + pack_header(header) + bytes(payload + TAG_BYTES) for header in headers)


def cpu_ns(pid: int) -> int:
    """Return the processor time of all threads of a process."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


@contextmanager
def ours(*, trains: bool, recorded: bool = False) -> Iterator[Bench]:
    """Run a meshbus node as gateway with full verdicts: subnets, visibility, and publishers by capability.

    With `recorded`, its flight recorder writes every packet to the disk.
    """
    ends = End(1, "west"), End(2, "east")
    ids = [end.engine.node_id for end in ends]
    with (
        tempfile.TemporaryDirectory() as log_dir,
        _process(_serve_ours, ids, log_dir if recorded else None) as (pid, link),
    ):
        node_id, address, public_key = link.recv()
        for end in ends:
            end.connect(node_id, address, public_key, routed=True)
        _settle(ends, lambda: bool(link.poll()))
        assert link.recv() == "ready"
        yield _bench(pid, address, ends, trains=trains)


@contextmanager
def netmesh(*, trains: bool) -> Iterator[Bench]:
    """Run a net-mesh node as forwarder."""
    ends = End(1, "west"), End(2, "east")
    with RealPeer(psk=PSK, heartbeat_interval_ms=200, session_timeout_ms=60_000) as peer:
        for end in ends:
            accepted = peer.begin("accept", end.engine.node_id)
            end.connect(peer.node_id, peer.address, peer.public_key, routed=False)
            _settle(ends, accepted.done)
        peer.start()
        discovered = {end.engine.node_id for end in ends}
        _settle(ends, lambda: all(discovered - {end.engine.node_id} <= set(end.engine.mesh.table) for end in ends))
        yield _bench(peer.pid, peer.address, ends, trains=trains)


@contextmanager
def bare(*, trains: bool) -> Iterator[Bench]:
    """Run a loop of recvfrom and sendto that only increments the hop count."""
    ends = End(1, "west"), End(2, "east")
    with _process(_serve_bare, ends[1].socket.address) as (pid, link):
        yield _bench(pid, link.recv(), ends, trains=trains)


@contextmanager
def bare_trains(*, trains: bool) -> Iterator[Bench]:
    """Run a loop that only receives and sends trains with meshbus's own socket."""
    ends = End(1, "west"), End(2, "east")
    with _process(_serve_trains, ends[1].socket.address) as (pid, link):
        yield _bench(pid, link.recv(), ends, trains=trains)


def _bench(pid: int, address: str, ends: tuple[End, End], *, trains: bool) -> Bench:
    host, _, port = address.rpartition(":")
    return Bench(pid, ends[0].socket.resolve(host, int(port)), ends, trains=trains)


def _settle(ends: tuple[End, End], done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError("the forwarder did not learn about its ends in time")
        for end in ends:
            end.pump()
        time.sleep(0.002)


@contextmanager
def _process(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[int, Connection]]:
    context = mp.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=target, args=(far, *arguments))
    process.start()
    try:
        assert process.pid is not None
        yield process.pid, near
    finally:
        process.kill()
        process.join()


def _serve_ours(link: Connection, ends: list[int], log_dir: str | None) -> None:
    warm()  # otherwise kernels load beside the first packets, and the loop waits for that thread half of the time
    asyncio.run(_run_ours(link, ends, log_dir))


async def _run_ours(link: Connection, ends: list[int], log_dir: str | None) -> None:
    rules = [{"match_tags": [tag], "target_subnet": subnet} for tag, subnet in SUBNETS.items()]
    record: dict[str, Any] = {} if log_dir is None else {"record_packets": True, "log_dir": log_dir}
    node = Node.open(
        psk=PSK.hex(), ephemeral=True, gateway=True, peer_subnets=list(SUBNETS.values()), subnet_rules=rules, **record
    )
    async with node:
        registry = ChannelConfigRegistry()
        allowed = CapabilityFilter(require_tags=("bench",))
        registry.insert(ChannelConfig(name=CHANNEL, visibility=Visibility.GLOBAL, publish_caps=allowed))
        node.set_channel_configs(registry)
        link.send((node.node_id, node.address, node.noise_public_key))
        while set(ends) - set(node.find_nodes()):  # noqa: ASYNC110 - announcements tell
            await asyncio.sleep(0.01)
        link.send("ready")
        await asyncio.Event().wait()


def _serve_bare(link: Connection, to: Any) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind(("127.0.0.1", 0))
    link.send("{}:{}".format(*sock.getsockname()))
    buffer = bytearray(65536)
    view = memoryview(buffer)
    while True:
        size = sock.recv_into(buffer)
        buffer[2] -= 1
        buffer[3] += 1
        sock.sendto(view[:size], to)


def _serve_trains(link: Connection, to: Any) -> None:
    sock = UdpSocket.bind("127.0.0.1", 0)
    link.send("{}:{}".format(*sock.address[:2]))
    while True:
        select.select([sock.fileno()], [], [])
        batch = sock.drain()
        if batch is None:
            continue
        view, first = batch.data.data, batch.lengths.item(0)
        if (batch.lengths == first).all():
            sock.send([Train(to, view[: len(batch) * first], first)])
        else:
            places = zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True)
            sock.send([Train(to, view[start : start + size], size) for start, size in places])
