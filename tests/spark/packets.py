"""Recorded packets for tests: random headers on the edges of every rule, judged by a gateway, written by a recorder."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from meshbus.log.packets.reader import PacketReader, list_recorders
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.log.packets.row import NOT_ASKED
from meshbus.log.schema import PACKETS, arrow_schema
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.fate import Fate
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.policy.guard import AuthGuard
from meshbus.policy.reason import BEFORE_GATEWAY, Reason
from meshbus.spark.replay.kernelgateway import Judge
from meshbus.wire.constants import NET_MAGIC, VERSION
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.routebatch import ROUTE_DTYPE

STEPS = 40
SUBNETS = [0, 0x03000000, 0x03070000, 0x03070500, 0x03070501, 0x03080000, 0x04000000, 0xFE010000, 0x05000000]
"""Relatives of every kind; the last is a stranger, and the one before it needs all 32 bits."""
CHANNELS = [f"plant/line{number}/state" for number in range(12)]
ORIGINS = [11, 12, 2**63 + 13, 2**64 - 14]
START_NS = 1_794_780_000_000_000_000


class Clock:
    """Nanoseconds that move when told to."""

    def __init__(self, now: int = START_NS) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


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


def prefix_policy(rng: np.random.Generator) -> GatewayPolicy:
    """A random policy with rules by prefix, of which some channels are known by name."""
    policy = random_policy(rng)
    longer = ("plant/", "plant/line1", "plant/line2/")
    return msgspec.structs.replace(
        policy,
        channels=policy.channels[:3],
        prefixes=tuple(
            msgspec.structs.replace(rule, name=prefix, exports=())
            for rule, prefix in zip(policy.channels[3:], longer[int(rng.integers(0, 2)) :], strict=False)
        ),
        names=tuple(sorted(rng.choice(CHANNELS[3:], 6, replace=False).tolist())),
    )


def gateway_of(policy: GatewayPolicy) -> SubnetGateway:
    """The gateway of a node with this policy; its guard knows the first origin where a channel lists nobody."""
    registry, guard = ChannelConfigRegistry(), AuthGuard()
    for channel in policy.channels:
        name = ChannelName(channel.name)
        registry.insert(ChannelConfig(name=name, visibility=channel.visibility, require_token=channel.enforced))
    for rule in policy.prefixes:
        config = ChannelConfig(name=ChannelName("x"), visibility=rule.visibility, require_token=rule.enforced)
        registry.insert_prefix(rule.name, config)
    for channel in filter(None, policy.resolved().values()):
        for origin in ORIGINS[:1] if channel.publishers is None else channel.publishers:
            guard.authorize(origin, ChannelName(channel.name).hash)
    gateway = SubnetGateway(
        policy.local_subnet,
        policy.peer_subnets,
        channels=registry,
        forward_unknown=policy.forward_unknown,
        publishers=guard,
    )
    for channel in policy.channels:
        gateway.export(channel.name, channel.exports)
    gateway.learn(map(ChannelName, policy.names))
    return gateway


def numbered_headers(first: int, count: int) -> Any:
    """Headers with nothing in them but their number in the stream."""
    headers = np.zeros(count, HEADER_DTYPE)
    headers["magic"], headers["version"] = NET_MAGIC, VERSION
    headers["sequence"] = range(first, first + count)
    return headers


def random_headers(rng: np.random.Generator, count: int) -> Any:
    """Headers of publications and of other packets, of known and unknown channels, on both sides of each limit."""
    headers = numbered_headers(0, count)
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
    headers["session_id"] = rng.integers(1, 2**63, count).astype(np.uint64) * 2
    headers["counter"] = np.arange(count)
    return headers


def record(
    log_dir: Path,
    recorder: int,
    gateway: SubnetGateway,
    rng: np.random.Generator,
    count: int,
    *,
    sampling: int = 1,
    start_ns: int = START_NS,
) -> None:
    """Make a node's flight recorder write what a gateway says about random packets, partly sealed, over two hours.

    Some packets never reach the gateway, some find no room behind it, and some are for the node itself.
    """
    clock = Clock(start_ns)
    flight = PacketRecorder(log_dir, recorder, sampling=sampling, clock=clock, background=False)
    flight.set_policy(gateway.snapshot(), [ChannelName(CHANNELS[-1])])
    for number in range(STEPS):
        size = count * (number + 1) // STEPS - count * number // STEPS
        headers = random_headers(rng, size)
        routes = np.zeros(size, ROUTE_DTYPE)
        routes["ttl"] = rng.choice([0, 1, 64, 255], size, p=[0.02, 0.03, 0.45, 0.5])
        src, dst = (rng.choice(np.array(SUBNETS, np.uint32), size) for _ in range(2))
        guard = np.full(size, NOT_ASKED, np.uint8)
        ttl = np.ascontiguousarray(routes["ttl"])
        reasons = gateway.decide_batch(headers, dst, source=src, ttl=ttl, guard=guard)
        lost = rng.random(size) < 0.02
        reasons[lost] = Reason.NO_ROUTE.code
        reasons[(reasons == 0) & (rng.random(size) < 0.02)] = Reason.CROWDED.code
        common = {"ts_ns": clock(), "previous_hops": headers["origin_hash"].copy()}
        hops = np.full(1, 99, np.uint64)
        flight.take(
            headers, reasons, here=False, routes=routes, next_hops=hops, sources=src, dests=dst, guard=guard, **common
        )
        few = size // 20
        flight.take(headers[:few], np.where(lost[:few], 33, 0).astype(np.uint8), here=True, ts_ns=clock())
        flight.drain()
        clock.now += 7_200_000_000_000 // STEPS
        if number in {STEPS // 3, STEPS // 2}:
            flight.seal()
    flight.close()


def read_record(log_dir: Path, recorder: int | None = None) -> pa.Table:
    """Read what was recorded, without Spark."""
    recorders = list_recorders(log_dir) if recorder is None else [recorder]
    schema = arrow_schema(PACKETS, dictionaries=False)
    batches = [b for one in recorders for b in PacketReader(log_dir, one).snapshot().batches(dictionaries=False)]
    return pa.Table.from_batches(batches, schema)


def said(row: dict[str, Any]) -> int | None:
    """What the gateway said about a recorded packet; None where it was not asked."""
    if row["verdict"] == Fate.DELIVERED or row["reason"] in BEFORE_GATEWAY or row["reason"] >= Reason.BAD_TAG.code:
        return None
    return 0 if row["reason"] == Reason.CROWDED.code else int(row["reason"])


def recorded(
    log_dir: Path,
    rng: np.random.Generator,
    count: int = 20_000,
    recorder: int = 7,
    policy: GatewayPolicy | None = None,
) -> GatewayPolicy:
    """Record random packets by a policy, by default a random one, and return what the recorder was told of it."""
    gateway = gateway_of(random_policy(rng) if policy is None else policy)
    record(log_dir, recorder, gateway, rng, count)
    return gateway.snapshot()


def by_kernel(policy: GatewayPolicy, table: pa.Table) -> list[int | None]:
    """Judge by the kernel on columns; None where no verdict is meant."""
    verdicts, meant = Judge(policy).judge_batch(table)
    return [int(verdict) if own else None for verdict, own in zip(verdicts, meant, strict=True)]
