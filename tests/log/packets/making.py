"""Packets for tests of the recorder: columns of every kind, as the engine passes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from meshbus.log.packets.reader import PacketReader
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.log.packets.row import NOT_ASKED, ROW, ROW_WORDS, Names, models
from meshbus.names.channel import ChannelName
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.policy.reason import RECORDED
from meshbus.wire.constants import HEADER_BYTES, NET_MAGIC, ROUTE_BYTES, VERSION
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.routebatch import ROUTE_DTYPE

NODE = 0xFEDC_BA98_7654_3210
CHANNELS = tuple(ChannelName(name) for name in ("sensors/lidar", "plans", "a"))
POLICY = GatewayPolicy(
    local_subnet=0x03000000, channels=tuple(ChannelPolicy(str(name), Visibility.GLOBAL) for name in CHANNELS)
)
REASONS = [0, 0, 0, *RECORDED]


def some_packets(count: int, seed: int, *, routed: bool = True, judged: bool = True) -> dict[str, Any]:
    """Return columns of random packets, some of which are publications on known channels."""
    random = np.random.default_rng(seed)
    headers = np.frombuffer(bytearray(random.bytes(count * HEADER_DTYPE.itemsize)), HEADER_DTYPE)
    for number, channel in enumerate((*CHANNELS, ChannelName("unheard/of"))):
        headers["stream_id"][number::6] = channel.stream_id
        headers["channel_hash"][number::6] = channel.wire_hash
        headers["subprotocol_id"][number::6] = 0
    headers["session_id"][::7] = 0
    headers["magic"], headers["version"] = NET_MAGIC, VERSION
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


Places = tuple[Any, int, int, int]


def arguments(packets: dict[str, Any], policy: int = 3) -> tuple[Places, Any]:
    """Return packets in the form that the kernel takes: their buffer and their models."""
    routes, judged = packets["routes"], packets["sources"] is not None
    facts = models(
        len(packets["headers"]),
        packets["reasons"],
        here=packets["here"],
        routed=routes is not None,
        previous_hops=packets["previous_hops"],
        next_hops=packets["next_hops"],
        subnets=(packets["sources"], packets["dests"]) if judged else None,
        guard=packets["guard"] if judged else NOT_ASKED,
        policy=policy,
        hashes=Names.of(CHANNELS).hashes_of(packets["headers"]),
    )
    count = len(packets["headers"])
    lying = np.zeros((count, ROUTE_BYTES + HEADER_BYTES), np.uint8)
    lying[:, ROUTE_BYTES:] = packets["headers"].view(np.uint8).reshape(count, -1)
    if routes is not None:
        lying[:, :ROUTE_BYTES] = routes.view(np.uint8).reshape(count, -1)
    return (lying.reshape(-1), 0, ROUTE_BYTES + HEADER_BYTES, count), facts


def changing_rows(count: int, seed: int, changes: float) -> Any:
    """Return rows in which each word differs from that of the row before with a given probability."""
    random = np.random.default_rng(seed)
    words = random.integers(0, 1 << 64, (count, ROW_WORDS), np.uint64) * random.integers(0, 2, (count, ROW_WORDS))
    changed = random.random(words.shape) < changes
    newest = np.maximum.accumulate(np.where(changed, np.arange(count)[:, None], 0), axis=0)
    return np.take_along_axis(words.astype(np.uint64), newest, axis=0).view(ROW)[:, 0]


def traffic(kind: str, count: int, seed: int) -> tuple[Any, dict[int, str]]:
    """Return the rows of one kind of traffic, and the names of their channels."""
    random, number = np.random.default_rng(seed), np.arange(count)
    rows = np.zeros(count, ROW)
    changed = {"train": number // 44, "single": number, "mixed": number // 5, "random": number}[kind]
    chosen = random.integers(0, len(CHANNELS), count)[changed] if kind != "train" else np.zeros(count, np.int64)
    if kind == "random":
        rows = random.integers(0, 1 << 64, (count, ROW_WORDS), np.uint64).view(ROW)[:, 0]
    rows["header"]["stream_id"] = np.array([channel.stream_id for channel in CHANNELS], np.uint64)[chosen]
    rows["header"]["channel_hash"] = np.array([channel.wire_hash for channel in CHANNELS])[chosen]
    rows["chash64"] = np.array([*(channel.hash for channel in CHANNELS[:-1]), 0], np.uint64)[chosen]
    if kind != "random":
        rows["header"]["counter"], rows["header"]["sequence"] = (
            1000 + number,
            np.uint64((1 << 63) - count // 2) + number.astype(np.uint64),
        )
        rows["header"]["payload_len"] = 1300 if kind == "train" else random.integers(0, 1400, count)
        rows["header"]["subnet_id"] = np.array([0xFE010000, 3], np.uint32)[changed % 2]
        rows["present"], rows["src"], rows["dst"] = 3, 0x03000000, 0xFFFF0000
        rows["guard"] = np.where(changed % 3 == 1, NOT_ASKED, 1)
        rows["reason"] = np.where(changed % 7 == 6, 2, 0)
    rows["ts_ns"] = 1_794_780_000_000_000_000 + changed * 40_123
    return rows, {channel.hash: str(channel) for channel in CHANNELS}


KINDS = ("train", "single", "mixed", "random")
"""Of traffic."""


def blank_headers(count: int) -> Any:
    """Return valid headers without any other content."""
    headers = np.zeros(count, HEADER_DTYPE)
    headers["magic"], headers["version"] = NET_MAGIC, VERSION
    return headers


def numbered(first: int, count: int) -> dict[str, Any]:
    """Return packets of one session, identified by their counters."""
    headers = blank_headers(count)
    headers["session_id"], headers["counter"] = 5, np.arange(first, first + count)
    return {"headers": headers, "reasons": np.zeros(count, np.uint8), "ts_ns": first, "here": True}


def open_recorder(log_dir: Path, **options: Any) -> PacketRecorder:
    """Open a recorder without a background thread."""
    return PacketRecorder(log_dir, NODE, background=False, **options)


def read_rows(log_dir: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Read everything that was recorded."""
    return [
        row for batch in PacketReader(log_dir, NODE).snapshot().batches(columns=columns) for row in batch.to_pylist()
    ]


def counters(log_dir: Path) -> list[int]:
    """Return the counters of all recorded packets in order."""
    return [row["counter"] for row in read_rows(log_dir, ["counter"])]
