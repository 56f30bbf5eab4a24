"""Packets for tests of the recorder: columns as the engine gives them, of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from meshbus.log.packets.reader import PacketReader
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.log.packets.row import NOT_ASKED
from meshbus.names.channel import ChannelName
from meshbus.policy.channels import Visibility
from meshbus.policy.fate import ArrivalReason, TransitReason
from meshbus.policy.snapshot import ChannelPolicy, GatewayPolicy
from meshbus.policy.transit import ROUTE_DTYPE
from meshbus.policy.verdict import DropReason
from meshbus.wire.header import HEADER_DTYPE

NODE = 0xFEDC_BA98_7654_3210
CHANNELS = tuple(ChannelName(name) for name in ("sensors/lidar", "plans", "a"))
POLICY = GatewayPolicy(
    local_subnet=0x03000000, channels=tuple(ChannelPolicy(str(name), Visibility.GLOBAL) for name in CHANNELS)
)
REASONS = [0, 0, 0, *DropReason, *TransitReason, *ArrivalReason]


def some_packets(count: int, seed: int, *, routed: bool = True, judged: bool = True) -> dict[str, Any]:
    """Make columns of random packets, of which some are publications on channels that are known."""
    random = np.random.default_rng(seed)
    headers = np.frombuffer(bytearray(random.bytes(count * HEADER_DTYPE.itemsize)), HEADER_DTYPE)
    for number, channel in enumerate((*CHANNELS, ChannelName("unheard/of"))):
        headers["stream_id"][number::6] = channel.stream_id
        headers["channel_hash"][number::6] = channel.wire_hash
        headers["subprotocol_id"][number::6] = 0
    headers["session_id"][::7] = 0
    return {
        "headers": headers,
        "reasons": random.choice(np.array(REASONS, np.uint8), count),
        "ts_ns": int(random.integers(1 << 60)),
        "here": bool(random.integers(2)),
        "routes": np.frombuffer(bytearray(random.bytes(count * 18)), ROUTE_DTYPE) if routed else None,
        "previous_hops": random.integers(0, 1 << 64, count, np.uint64) * random.integers(0, 2, count, np.uint64),
        "next_hops": random.integers(0, 1 << 64, 1 if count % 2 else count, np.uint64),
        "sources": random.integers(0, 1 << 32, count, np.uint32) if judged else None,
        "dests": random.integers(0, 1 << 32, count, np.uint32) if judged else None,
        "guard": random.choice(np.array([0, 1, 2, NOT_ASKED], np.uint8), count) if judged else None,
    }


def numbered(first: int, count: int) -> dict[str, Any]:
    """Make packets of one session whose counters say which they are."""
    headers = np.zeros(count, HEADER_DTYPE)
    headers["session_id"], headers["counter"] = 5, np.arange(first, first + count)
    return {"headers": headers, "reasons": np.zeros(count, np.uint8), "ts_ns": first, "here": True}


def open_recorder(log_dir: Path, **options: Any) -> PacketRecorder:
    """Open a recorder that does nothing by itself."""
    return PacketRecorder(log_dir, NODE, background=False, **options)


def read_rows(log_dir: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Read everything that was recorded."""
    return [
        row for batch in PacketReader(log_dir, NODE).snapshot().batches(columns=columns) for row in batch.to_pylist()
    ]


def counters(log_dir: Path) -> list[int]:
    """Give the counters of all recorded packets in order."""
    return [row["counter"] for row in read_rows(log_dir, ["counter"])]
