"""Recorded packets for tests: random headers on the edges of every rule, judged by the node's own gateway."""

from typing import Any

import numpy as np
import pyarrow as pa

from meshbus.log.schema import PACKETS, arrow_schema, signed
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.guard import AuthGuard, AuthVerdict
from meshbus.policy.snapshot import ChannelPolicy, GatewayPolicy
from meshbus.wire.header import HEADER_DTYPE

SUBNETS = [0, 0x03000000, 0x03070000, 0x03070500, 0x03070501, 0x03080000, 0x04000000, 0xFE010000, 0x05000000]
"""Relatives of every kind; the last is a stranger, and the one before it needs all 32 bits."""
CHANNELS = [f"plant/line{number}/state" for number in range(12)]
ORIGINS = [11, 12, 2**63 + 13, 2**64 - 14]
START_NS = 1_794_780_000_000_000_000


def random_policy(rng: np.random.Generator) -> GatewayPolicy:
    """A policy with every visibility, exports, listed and unlisted publishers; some channels have no rule."""
    channels = []
    for number, name in enumerate(CHANNELS[:-2]):
        visibility = list(Visibility)[number % 4]
        exports = rng.choice(SUBNETS[:-1], int(rng.integers(0, 4)), replace=False).tolist()
        enforced = bool(rng.integers(0, 2))
        listed = rng.choice(np.array(ORIGINS, np.uint64), 2, replace=False).tolist() if rng.integers(0, 2) else None
        channels.append(
            ChannelPolicy(
                name=name,
                visibility=visibility,
                exports=tuple(exports) if visibility is Visibility.EXPORTED else (),
                enforced=enforced,
                publishers=tuple(listed) if enforced and listed is not None else None,
            )
        )
    return GatewayPolicy(
        local_subnet=SUBNETS[1],
        peer_subnets=tuple(SUBNETS[2:-1]),
        forward_unknown=bool(rng.integers(0, 2)),
        channels=tuple(channels),
    )


def gateway_of(policy: GatewayPolicy) -> SubnetGateway:
    """The gateway of a node with this policy; whom a channel does not list, its guard does not know."""
    registry, guard = ChannelConfigRegistry(), AuthGuard()
    for channel in policy.channels:
        name = ChannelName(channel.name)
        registry.insert(ChannelConfig(channel=name, visibility=channel.visibility, require_token=channel.enforced))
        for origin in channel.publishers or ():
            guard.authorize(origin, name.hash)
    gateway = SubnetGateway(
        policy.local_subnet,
        policy.peer_subnets,
        channels=registry,
        forward_unknown=policy.forward_unknown,
        publishers=guard,
    )
    for channel in policy.channels:
        gateway.export(channel.name, channel.exports)
    return gateway


def random_headers(rng: np.random.Generator, count: int) -> Any:
    """Headers of publications and of other packets, of known and unknown channels, on both sides of each limit."""
    headers = np.zeros(count, HEADER_DTYPE)
    hashes = np.array([ChannelName(name).hash for name in CHANNELS], np.uint64)
    chosen = rng.integers(0, len(hashes), count)
    publish = rng.random(count) < 0.95
    headers["stream_id"] = np.where(
        publish, hashes[chosen] | np.uint64(PUBLISH_STREAM_BIT), rng.integers(0, 9, count).astype(np.uint64)
    )
    headers["channel_hash"] = hashes[chosen] & np.uint64(0xFFFF)
    headers["channel_hash"] += (rng.random(count) < 0.02).astype(np.uint16)
    headers["subprotocol_id"] = np.where(rng.random(count) < 0.03, 0x0A00, 0)
    headers["hop_ttl"] = rng.choice([0, 0, 0, 1, 4, 255], count)
    headers["hop_count"] = rng.choice([0, 0, 1, 3, 4, 255], count)
    headers["origin_hash"] = rng.choice(np.array(ORIGINS, np.uint64), count)
    headers["payload_len"] = rng.integers(0, 8000, count)
    headers["event_count"] = rng.integers(1, 50, count)
    headers["sequence"] = np.arange(count)
    headers["session_id"] = rng.integers(0, 2**63, count).astype(np.uint64) * 2
    return headers


def random_packets(
    rng: np.random.Generator, count: int, policy: GatewayPolicy | None = None, *, start_ns: int = START_NS
) -> pa.Table:
    """Rows of a flight recorder. Verdicts are what the node's gateway said; without a policy they are placeholders."""
    headers = random_headers(rng, count)
    src, dst = (rng.choice(np.array(SUBNETS, np.uint32), count) for _ in range(2))
    route_ttl = rng.choice([0, 1, 64, 255], count, p=[0.02, 0.03, 0.45, 0.5])
    routed = rng.random(count) < 0.9
    guard = np.ma.masked_array(rng.choice([*AuthVerdict], count), mask=rng.random(count) < 0.2)
    names = {ChannelName(name).hash | PUBLISH_STREAM_BIT: name for name in CHANNELS}
    verdict, reason = np.zeros(count, np.int16), np.zeros(count, np.int16)
    if policy is not None:
        ttl = np.where(routed, route_ttl, 1).astype(np.uint8)
        judged = gateway_of(policy).decide_batch(headers, dst, source=src, ttl=ttl)
        unlisted = {
            ChannelName(rule.name).stream_id for rule in policy.channels if rule.enforced and rule.publishers is None
        }
        asks = np.isin(headers["stream_id"], np.array(sorted(unlisted), np.uint64)) & (judged == 6)
        judged = np.where(asks & (guard.filled(-1) == AuthVerdict.ALLOWED), 0, judged)
        reason = judged.astype(np.int16)
        verdict = np.where(reason == 0, 0, 2).astype(np.int16)
    delivered = rng.random(count) < 0.05
    lost = rng.random(count) < 0.02
    verdict = np.where(delivered, 1, np.where(lost, 2, verdict)).astype(np.int16)
    reason = np.where(delivered, 0, np.where(lost, 16, reason)).astype(np.int16)
    ts_ns = start_ns + np.sort(rng.integers(0, 7_200_000_000_000, count))
    known = {
        "recorder": rng.choice([7, 8, 9], count, p=[0.8, 0.15, 0.05]),
        "ts": ts_ns // 1000,
        "ts_ns": ts_ns,
        "sampling_rate": rng.choice([1, 1, 10], count),
        "previous_hop": signed(headers["origin_hash"].astype(np.uint64)),
        "next_hop": np.ma.masked_array(np.full(count, 99), mask=verdict != 0),
        "route_ttl": np.ma.masked_array(route_ttl, mask=~routed),
        "version": np.ones(count),
        "ttl": headers["hop_ttl"],
        "hops": headers["hop_count"],
        "subprotocol_id": headers["subprotocol_id"],
        "chash": headers["channel_hash"],
        "session_id": signed(headers["session_id"].astype(np.uint64)),
        "stream_id": signed(headers["stream_id"].astype(np.uint64)),
        "packet_seq": np.arange(count),
        "counter": np.arange(count),
        "origin": signed(headers["origin_hash"].astype(np.uint64)),
        "payload_len": headers["payload_len"],
        "event_count": headers["event_count"],
        "verdict": verdict,
        "reason": reason,
        "policy_version": np.ones(count),
        "channel": [names.get(stream) for stream in headers["stream_id"].tolist()],
        "src": np.ma.masked_array(signed(src), mask=delivered),
        "dst": np.ma.masked_array(signed(dst), mask=delivered),
        "guard": guard,
    }
    fields = arrow_schema(PACKETS, dictionaries=False)
    return pa.table([_column(known.get(field.name), field, count) for field in fields], schema=fields)


def _column(values: Any, field: pa.Field, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, field.type) if field.nullable else pa.array(np.zeros(count, np.int64)).cast(field.type)
    if isinstance(values, list):
        return pa.array(values, field.type)
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    return pa.array(np.asarray(values).astype(np.int64), mask=mask).cast(field.type)
