"""Gateway policy as a value: complete, stored and read again, with the verdicts of the gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.guard import AuthGuard
from meshbus.wire.header import HEADER_DTYPE

NAMES = [ChannelName(name) for name in ("a", "b/c", "sensors/lidar", "plans")]
SUBNETS = [SubnetId.new(levels) for levels in ([], [1], [1, 2], [1, 2, 3], [7])]
CONFIGS = st.builds(
    ChannelConfig,
    name=st.sampled_from(NAMES),
    visibility=st.sampled_from(Visibility),
    require_token=st.booleans(),
    publish_caps=st.sampled_from([None, CapabilityFilter(require_tags=("x",))]),
)


@st.composite
def gateways(draw: st.DrawFn) -> SubnetGateway:
    registry = ChannelConfigRegistry()
    for config in draw(st.lists(CONFIGS, max_size=4)):
        registry.insert(config)
    guard = AuthGuard()
    for name in NAMES[:2]:
        guard.authorize(1, name.hash)
    gateway = SubnetGateway(
        draw(st.sampled_from(SUBNETS)),
        draw(st.sets(st.sampled_from(SUBNETS))),
        channels=registry,
        forward_unknown=draw(st.booleans()),
        publishers=draw(st.sampled_from([None, guard])),
    )
    for name in draw(st.sets(st.sampled_from(NAMES))):
        gateway.export(name, draw(st.lists(st.sampled_from(SUBNETS), max_size=2)))
    return gateway


def packets(seed: int) -> tuple[Any, ...]:
    random = np.random.default_rng(seed)
    headers = np.zeros(60, HEADER_DTYPE)
    names = random.choice(np.array(NAMES, object), 60)
    headers["stream_id"] = [name.stream_id for name in names]
    headers["channel_hash"] = [name.wire_hash for name in names]
    headers["channel_hash"][::9] += 1
    headers["hop_ttl"], headers["hop_count"] = random.integers(0, 4, 60), random.integers(0, 3, 60)
    headers["origin_hash"] = random.integers(1, 3, 60)
    source, dest = (random.choice(np.array([*SUBNETS, 99], np.uint32), 60) for _ in range(2))
    return headers, source, dest, random.integers(0, 5, 60).astype(np.uint8)


@given(gateways(), st.integers(0, 1 << 32))
def test_judging_again_is_judging(gateway: SubnetGateway, seed: int) -> None:
    headers, source, dest, ttl = packets(seed)
    guard = np.full(len(headers), 0xFF, np.uint8)
    verdicts = gateway.decide_batch(headers, dest, source=source, ttl=ttl, guard=guard)
    written = msgspec.json.encode(gateway.snapshot())
    policy = msgspec.json.decode(written, type=GatewayPolicy)
    assert policy == gateway.snapshot()
    assert policy.words().tolist() == gateway.policy.tolist()
    assert policy.judge_again(headers, source, dest, ttl, guard).tolist() == verdicts.tolist()


@given(gateways(), st.integers(0, 1 << 32))
def test_listed_publishers_are_all_that_the_guard_would_say(gateway: SubnetGateway, seed: int) -> None:
    headers, source, dest, ttl = packets(seed)
    policy = gateway.snapshot()
    allowed = {str(name): (1,) if name in NAMES[:2] else () for name in NAMES}
    listed = msgspec.structs.replace(
        policy,
        channels=tuple(msgspec.structs.replace(rule, publishers=allowed[rule.name]) for rule in policy.channels),
    )
    verdicts = gateway.decide_batch(headers, dest, source=source, ttl=ttl)
    unheard = np.full(len(headers), 0xFF, np.uint8)
    assert listed.judge_again(headers, source, dest, ttl, unheard).tolist() == verdicts.tolist()


def test_a_policy_does_not_depend_on_the_order_of_its_channels() -> None:
    registries = [ChannelConfigRegistry() for _ in range(2)]
    for registry, names in zip(registries, (NAMES, NAMES[::-1]), strict=True):
        for name in names:
            registry.insert(ChannelConfig(name=name))
    one, other = (SubnetGateway(0, channels=registry).snapshot() for registry in registries)
    assert one == other
    assert one.streams() == {name.stream_id: name for name in NAMES}


def test_names_on_one_stream_are_none() -> None:
    policy = SubnetGateway(0, channels=ChannelConfigRegistry()).snapshot()
    twice = msgspec.structs.replace(policy, channels=(*_channel("a"), *_channel("a")))
    assert twice.streams() == {ChannelName("a").stream_id: None}


def _channel(name: str) -> Any:
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName(name)))
    return SubnetGateway(0, channels=registry).snapshot().channels
