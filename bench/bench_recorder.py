"""The cost of the flight recorder at a gateway: forwarding with full verdicts, not recorded, recorded, and sampled.

One process contains a source, a gateway on real UDP sockets, and a sink on loopback; the time of source and sink is
subtracted. The cost is the share of packets per second that no longer fit. `clock` is the elapsed time of forwarding,
including waiting for the interpreter, the writing thread and other processes: packets per second, for which there is a
target. `thread` is the processor time of the forwarding thread alone. `process` is that of the gateway including the
thread that writes, syncs and seals, with every row sealed within the measured time: the whole cost, on a machine without a
spare core. Bias: loopback costs less than a network card, which makes the recorder look more expensive; packets of one
stream differ only in their counters, which makes rows short and sealing cheap. There is no peer to compare with, because
the reference implementation has no recorder. Rounds are short, many and interleaved. Other load on the machine only adds
time, so the best round counts; the median is also printed.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from bench.harness import Cell, Table
from meshbus.engine.base.packets import Output, Train
from meshbus.engine.core import Engine
from meshbus.engine.session.link import Link
from meshbus.engine.settings import EngineSettings, GatewayConfig
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity, routing_id
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.driving.warmup import warm
from meshbus.node.logs.recording import Recording
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.wire.constants import PACKET_COST, ROUTE_BYTES
from meshbus.wire.header import Header, pack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.route import RouteHeader, pack_route

COMMITTED = 0.20
"""Limit for the share of packets per second that recording may cost."""
EVERY = "every packet recorded"
CHANNEL = ChannelName("bench/events")
_FULL, _TRAIN = 1434, 44
"""Bytes of a full packet without routing header on an ordinary network, and packets per train: 64 KB."""
_COUNTERS_AT = ROUTE_BYTES + 16, ROUTE_BYTES + 40
"""The packet counter, and the sequence in its stream."""
_NEAR, _FAR = 11, 22


class Gateway:
    """A gateway between a source and a sink."""

    def __init__(self, packet_bytes: int, packets: int) -> None:
        self.source, self.socket, self.sink = (UdpSocket.bind("127.0.0.1", 0) for _ in range(3))
        self.others = 0.0
        """Processor seconds used by source and sink."""
        settings = EngineSettings(psk=bytes(32), gateway=GatewayConfig())
        now = time.monotonic()
        self.engine = Engine(Identity.generate(os.urandom), settings, now=now, wall=round, entropy=os.urandom)
        registry = ChannelConfigRegistry()
        registry.insert(ChannelConfig(name=CHANNEL))
        self.engine.set_channel_configs(registry, now, Output())
        for node_id, place in ((_NEAR, self.source), (_FAR, self.sink)):
            link = Link(derive_keys(bytes([node_id]) * 32, Role.INITIATOR), Role.INITIATOR, place.address, now)
            self.engine.peers.establish(node_id, link, now)
            self.engine.mesh.table.install(node_id, place.address, now)
        header = Header(
            hop_ttl=16,
            channel_hash=CHANNEL.wire_hash,
            stream_id=CHANNEL.stream_id,
            session_id=77,
            origin_hash=99,
            payload_len=packet_bytes - PACKET_COST,
            event_count=10,
        )
        route = RouteHeader(ttl=8, src_id=routing_id(_NEAR), dest_id=_FAR)
        one = (pack_route(route) + pack_header(header)).ljust(ROUTE_BYTES + packet_bytes, b"\0")
        self._size, self._packets = len(one), packets
        self._train = np.frombuffer(bytearray(one * packets), np.uint8)
        self._counters = [
            np.lib.stride_tricks.as_strided(self._train[at : at + 8].view("<u8"), (packets,), (self._size,))
            for at in _COUNTERS_AT
        ]
        for counters in self._counters:
            counters[:] = np.arange(packets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for socket in (self.source, self.socket, self.sink):
            socket.close()

    def forward(self, packets: int) -> None:
        """Forward this many packets."""
        sent = received = 0
        while received < packets:
            began = time.thread_time()
            if sent - received < 4 * self._packets and sent < packets:
                for counters in self._counters:
                    np.add(counters, self._packets, out=counters)
                self.source.send([Train(self.socket.address, self._train.data, self._size)])
                sent += self._packets
            self.others += time.thread_time() - began
            while (batch := self.socket.drain()) is not None:
                out = self.engine.receive(batch, time.monotonic())
                self.socket.send(out.trains)
            began = time.thread_time()
            while (arrived := self.sink.drain()) is not None:
                received += len(arrived)
            self.others += time.thread_time() - began


class Price:
    """Nanoseconds per packet, by round."""

    def __init__(self) -> None:
        self.path: list[float] = []
        self.clock: list[float] = []
        self.whole: list[float] = []
        self.lost = 0


def one_round(price: Price, packet_bytes: int, train: int, packets: int, sampling: int) -> None:
    """Measure one round; a sampling of 0 means no recorder."""
    with tempfile.TemporaryDirectory() as folder, Gateway(packet_bytes, train) as gateway:
        recording = None
        if sampling:
            recorder = PacketRecorder(Path(folder), gateway.engine.node_id, sampling=sampling)
            recording = Recording(gateway.engine, recorder)
        gateway.forward(packets // 10)
        if recording is not None:
            recording.recorder.seal()  # rows of the warm-up are not measured
        gateway.others, path, clock, whole = 0.0, time.thread_time(), time.perf_counter(), time.process_time()
        gateway.forward(packets)
        path, clock = (end - gateway.others for end in (time.thread_time() - path, time.perf_counter() - clock))
        if recording is not None:
            recording.recorder.seal()
            price.lost += recording.recorder.stats.lost_full
        whole = time.process_time() - whole - gateway.others
        if recording is not None:
            recording.close()
    price.path.append(path * 1e9 / packets)
    price.clock.append(clock * 1e9 / packets)
    price.whole.append(whole * 1e9 / packets)


def measure(title: str, packet_bytes: int, train: int, packets: int, rounds: int, *, committed: bool) -> Table:
    """Compare forwarding without, with full and with sampled recording."""
    cases = {"not recorded": 0, EVERY: 1, "one in ten": 10}
    prices = {name: Price() for name in cases}
    for _ in range(rounds):
        for name, sampling in cases.items():
            one_round(prices[name], packet_bytes, train, packets, sampling)
    base = prices["not recorded"]
    rows: list[tuple[Cell, ...]] = []
    for name, price in prices.items():
        cells: list[Cell] = [name]
        for mine, theirs in ((price.whole, base.whole), (price.path, base.path), (price.clock, base.clock)):
            cells += [f"{min(mine):.0f} ({statistics.median(mine):.0f})", _costs(mine, theirs)]
        met = 1 - min(base.clock) / min(price.clock) <= COMMITTED
        judged = committed and name == EVERY
        rows.append((*cells, price.lost, ("yes" if met else "no") if judged else "–"))
    columns = ("packets", "process ns", "costs", "thread ns", "costs", "clock ns", "costs", "rows lost", "met")
    notes = [f"best of {rounds} rounds, and (median)"]
    if committed:
        notes.append(f"target: at most {COMMITTED:.0%} fewer packets per second by the wall clock")
    return Table(title, columns, rows, notes)


def _costs(mine: list[float], theirs: list[float]) -> str:
    """Return the share of packets lost per second: best round against best, and the median over paired rounds."""
    pairs = statistics.median(other / one for one, other in zip(mine, theirs, strict=True))
    return f"{1 - min(theirs) / min(mine):.0%} ({1 - pairs:.0%})"


def run(quick: bool) -> list[Table]:
    """Measure full packets in trains, and single packets."""
    warm()
    packets, rounds = (44_000, 3) if quick else (110_000, 15)
    return [
        measure("Gateway, packets of 1434 bytes in trains of 44", _FULL, _TRAIN, packets, rounds, committed=True),
        measure("Gateway, single packets of 200 bytes", 200, 1, packets // 10, rounds, committed=False),
    ]
