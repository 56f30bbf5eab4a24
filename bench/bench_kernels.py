"""The per-packet kernels: auth guard, gateway, header columns, event framing.

Bias: inputs are in the processor's cache and the policy is small (1 000 authorized pairs, 200 channels), as in a quiet
fleet. Outputs are reused, as in a node. "reference" is the numpy or Python implementation that runs without numba,
"scalar" is one Python call per packet. Ratios compare with the reference in the same run, not with another project: no
published figure of a peer was measured on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from bench.harness import Case, Table, compare
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy import guard, verdict
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.guard import AuthGuard
from meshbus.wire import frames, headerbatch
from meshbus.wire.constants import HEADER_BYTES, MAX_PAYLOAD, PACKET_COST
from meshbus.wire.frames import decode_frames, encode_frames, pack_frames, unpack_frames
from meshbus.wire.header import HEADER_DTYPE, unpack_header
from meshbus.wire.headerbatch import HeaderBatch, read_headers

BATCHES = (1, 64, 1024, 65_536)
WINDOW_EVENTS = 7616
"""64 B events in a window of 64 packets."""
REFERENCE_LIMIT = 1024
"""Python loops get no larger batches, because their cost per item no longer changes."""

Maker = Callable[[int], dict[str, Case]]


def run(quick: bool) -> list[Table]:
    """Measure all kernels."""
    seconds = 0.05 if quick else 0.5
    return [
        _table(
            "Auth guard: check_batch, 1 000 pairs, 90 % authorized (target: ≤ 10 ns at 1024, ≤ 25 ns at 64)",
            _auth,
            seconds,
        ),
        _table(
            "Gateway: decide_batch, 200 channels, 4 visibilities (target: ≤ 10 ns at 1024, ≤ 25 ns at 64)",
            _gateway,
            seconds,
        ),
        _table(
            "Header columns: read_headers, 84-byte packets (target: ≤ 10 ns at 1024, ≤ 25 ns at 64)", _headers, seconds
        ),
        _table(
            "Framing, equal 64 B events (target: ≤ 5 ns per event)",
            lambda n: _framing(np.full(n, 64)),
            seconds,
            (*BATCHES, WINDOW_EVENTS),
        ),
        _table(
            "Framing, mixed 16–512 B events (target: ≤ 15 ns per event)",
            lambda n: _framing(np.random.default_rng(1).integers(16, 513, n)),
            seconds,
        ),
    ]


def _table(title: str, make: Maker, seconds: float, batches: tuple[int, ...] = BATCHES) -> Table:
    rows: list[list[str | int | float]] = []
    for batch in sorted(batches):
        timings = compare(make(batch), seconds=seconds)
        compiled = [name for name in timings if not name.startswith(("reference", "scalar"))]
        for name in compiled:
            against = {other: timings[other] for other in timings if other.endswith(name) and other != name}
            best = timings[name]
            rows.append(
                [
                    batch,
                    name,
                    best.best_ns,
                    best.median_ns,
                    *(
                        round(against[f"{kind} {name}"].median_ns / best.median_ns, 1)
                        if f"{kind} {name}" in against
                        else "–"
                        for kind in ("reference", "scalar")
                    ),
                ]
            )
    return Table(
        title,
        ["batch", "kernel", "best ns/item", "median ns/item", "× reference", "× scalar Python"],
        rows,
    )


def _auth(batch: int) -> dict[str, Case]:
    rng = np.random.default_rng(3)
    pairs = rng.integers(0, 2**64, (1000, 2), dtype=np.uint64)
    pairs[:, 1] = pairs[rng.integers(0, 64, 1000), 1]
    authority = AuthGuard()
    for origin, channel in pairs.tolist():
        authority.authorize(origin, channel)
    probes = rng.integers(0, 2**64, (batch, 2), dtype=np.uint64)
    known = rng.random(batch) < 0.9
    probes[known] = pairs[rng.integers(0, 1000, int(known.sum()))]
    origins, channels = (np.ascontiguousarray(column) for column in probes.T)
    out = np.empty(batch, np.uint8)
    scalar = list(zip(origins.tolist(), channels.tolist(), strict=True))
    cases: dict[str, Case] = {"check": (lambda: authority.check_batch(origins, channels, out=out), batch)}
    if batch <= REFERENCE_LIMIT:
        reference = guard._check.reference
        cases["reference check"] = (
            lambda: reference(origins, channels, authority._bloom, authority._slots, out),
            batch,
        )
        cases["scalar check"] = (lambda: [authority.check_fast(*pair) for pair in scalar], batch)
    return cases


def _fleet_gateway() -> tuple[SubnetGateway, list[ChannelName]]:
    rng = np.random.default_rng(4)
    registry = ChannelConfigRegistry()
    names = [ChannelName(f"fleet/{n}/telemetry") for n in range(200)]
    gateway = SubnetGateway(SubnetId.new([3, 7]), _subnets(rng, 16), channels=registry)
    for number, name in enumerate(names):
        registry.insert(ChannelConfig(name=name, visibility=list(Visibility)[number % 4]))
        gateway.export(name, _subnets(rng, number % 4))
    return gateway, names


def _subnets(rng: np.random.Generator, count: int) -> list[SubnetId]:
    return [SubnetId.new([int(rng.integers(1, 4)), int(rng.integers(0, 6))]) for _ in range(count)]


def _gateway(batch: int) -> dict[str, Case]:
    rng = np.random.default_rng(5)
    gateway, names = _fleet_gateway()
    chosen = rng.integers(0, len(names), batch)
    headers = np.zeros(batch, HEADER_DTYPE)
    headers["stream_id"] = np.array([name.stream_id for name in names], np.uint64)[chosen]
    headers["channel_hash"] = headers["stream_id"] & np.uint64(0xFFFF)
    headers["hop_ttl"] = 8
    headers["hop_count"] = rng.integers(0, 9, batch)
    places = np.array([*gateway.peer_subnets, gateway.local_subnet, SubnetId.new([99])], np.uint32)
    source, dest = (places[rng.integers(0, len(places), batch)] for _ in range(2))
    ttl = rng.integers(0, 9, batch).astype(np.uint8)
    rows = HeaderBatch.of(headers)
    out, counts = np.empty(batch, np.uint8), np.zeros(verdict.VERDICTS, np.int64)
    cases: dict[str, Case] = {
        "decide": (lambda: gateway.decide_batch(rows, dest, source=source, ttl=ttl, out=out), batch)
    }
    if batch <= REFERENCE_LIMIT:
        reference = verdict.judge.reference
        cases["reference decide"] = (
            lambda: reference(rows.rows, source, dest, ttl, gateway.policy, out, counts),
            batch,
        )
        scalar = list(zip([names[n].hash for n in chosen], source.tolist(), dest.tolist(), ttl.tolist(), strict=True))
        cases["scalar decide"] = (lambda: [gateway.decide(*row) for row in scalar], batch)
    return cases


def _headers(batch: int) -> dict[str, Case]:
    rng = np.random.default_rng(6)
    raw = np.zeros((batch, PACKET_COST), np.uint8)
    headers = np.zeros(batch, HEADER_DTYPE)
    headers["magic"], headers["version"] = 0x4E45, 1
    headers["stream_id"] = rng.integers(0, 2**64, batch, dtype=np.uint64)
    raw[:, :HEADER_BYTES] = headers.view(np.uint8).reshape(batch, HEADER_BYTES)
    data = raw.reshape(-1)
    starts = np.arange(batch, dtype=np.int64) * PACKET_COST
    lengths = np.full(batch, PACKET_COST, np.int64)
    rows, status = np.empty(batch * HEADER_BYTES, np.uint8), np.empty(batch, np.uint8)
    cases: dict[str, Case] = {"read": (lambda: read_headers(data, starts, lengths), batch)}
    if batch <= REFERENCE_LIMIT:
        reference = headerbatch._read.reference
        packets = [row.tobytes() for row in raw]
        cases["reference read"] = (lambda: reference(data, starts, lengths, rows, status), batch)
        cases["scalar read"] = (lambda: [unpack_header(packet) for packet in packets], batch)
    return cases


def _framing(sizes: Any) -> dict[str, Case]:
    count = len(sizes)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    data = np.random.default_rng(7).integers(0, 256, int(offsets[-1]), dtype=np.uint8)
    scratch, events = (np.empty(len(data) + 4 * count, np.uint8) for _ in range(2))
    packed = encode_frames(offsets, data)
    starts, lengths, counts = packed.bounds[:-1].copy(), np.diff(packed.bounds), packed.counts.copy()
    cases: dict[str, Case] = {
        "pack": (lambda: encode_frames(offsets, data, out=scratch), count),
        "unpack": (lambda: decode_frames(packed.data, starts, lengths, counts, out=events), count),
    }
    if count <= REFERENCE_LIMIT:
        edges, places = np.empty(2 * count + 1, np.int64), np.empty(count + 1 + len(starts), np.int64)
        pack, unpack = frames._pack.reference, frames._unpack.reference
        pieces = [data[a:b].tobytes() for a, b in pairwise(offsets)]
        groups = [pieces[a : a + n] for a, n in zip(np.cumsum(counts) - counts, counts, strict=True)]
        payloads = list(zip((pack_frames(group) for group in groups), counts.tolist(), strict=True))
        cases["reference pack"] = (lambda: pack(offsets, data, MAX_PAYLOAD, scratch, edges), count)
        cases["reference unpack"] = (
            lambda: unpack(packed.data, starts, lengths, counts, events, places),
            count,
        )
        cases["scalar pack"] = (lambda: [pack_frames(group) for group in groups], count)
        cases["scalar unpack"] = (lambda: [unpack_frames(payload, n) for payload, n in payloads], count)
    return cases
