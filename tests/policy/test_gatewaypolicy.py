"""Gateway policy as a value: complete, stored and read again, with the verdicts of the gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy import gatewaypolicy
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.policy.guard import AuthGuard
from meshbus.policy.reason import DropReason
from meshbus.policy.verdict import LOCAL
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
    for prefix in draw(st.sets(st.sampled_from(["", "b", "b/c", "sensors/"]))):
        registry.insert_prefix(prefix, draw(CONFIGS))
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
    gateway.learn(draw(st.sets(st.sampled_from(NAMES))))
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
    known = gateway.snapshot().resolved()
    allowed = {str(name): (1,) if name in NAMES[:2] else () for name in NAMES}
    # Each known channel with a rule of its own, so that each can list its publishers.
    rules = [msgspec.structs.replace(rule, publishers=allowed[rule.name]) for rule in known.values() if rule]
    listed = msgspec.structs.replace(gateway.snapshot(), channels=tuple(rules))
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


def rule(name: str, visibility: Visibility = Visibility.GLOBAL, *, enforced: bool = False) -> ChannelPolicy:
    return ChannelPolicy(name, visibility, enforced=enforced)


def test_the_longest_prefix_applies_to_a_known_name_and_its_own_rule_wins() -> None:
    policy = GatewayPolicy(
        local_subnet=0,
        channels=(rule("s/own", Visibility.EXPORTED),),
        prefixes=(rule("s/"), rule("s/a", Visibility.PARENT_VISIBLE), rule("t/", enforced=True)),
        names=("s/own", "s/x", "s/ab", "t/x", "u/x"),
    )
    known = {name: policy.resolved()[ChannelName(name).stream_id] for name in policy.names}
    assert known == {
        "s/own": rule("s/own", Visibility.EXPORTED),
        "s/x": rule("s/x"),
        "s/ab": rule("s/ab", Visibility.PARENT_VISIBLE),
        "t/x": rule("t/x", enforced=True),
        "u/x": rule("u/x", Visibility.SUBNET_LOCAL),
    }
    assert policy.rule_of("s/abc") == rule("s/abc", Visibility.PARENT_VISIBLE), "learned or not"
    assert (policy.rule_of("s/own"), policy.rule_of("u/x")) == (rule("s/own", Visibility.EXPORTED), None)


def test_a_known_name_without_a_rule_is_treated_as_an_unknown_channel_would_be_without_prefixes() -> None:
    for forward, visibility in ((True, Visibility.GLOBAL), (False, Visibility.SUBNET_LOCAL)):
        policy = GatewayPolicy(local_subnet=0, forward_unknown=forward, prefixes=(rule("t/"),), names=("u",))
        assert policy.resolved() == {ChannelName("u").stream_id: rule("u", visibility)}


@pytest.mark.parametrize(
    ("prefixes", "forward", "verdict"),
    [
        ((), False, DropReason.SUBNET_LOCAL),
        ((), True, 0),
        ((rule("a/"),), False, DropReason.UNRESOLVED_CHANNEL),
        ((rule("a/"),), True, 0),
        ((rule("a/"), rule("b/", enforced=True)), True, DropReason.UNRESOLVED_CHANNEL),
        ((rule("a/", Visibility.EXPORTED),), True, DropReason.UNRESOLVED_CHANNEL),
        ((rule("a/", Visibility.SUBNET_LOCAL),), True, DropReason.UNRESOLVED_CHANNEL),
    ],
)
def test_an_unknown_channel_passes_only_if_no_rule_by_prefix_could_stop_it(
    prefixes: tuple[ChannelPolicy, ...], forward: bool, verdict: int
) -> None:
    policy = GatewayPolicy(local_subnet=0, prefixes=prefixes, forward_unknown=forward)
    headers = np.zeros(1, HEADER_DTYPE)
    headers["stream_id"], headers["channel_hash"] = ChannelName("b/x").stream_id, ChannelName("b/x").wire_hash
    nowhere, asked = np.zeros(1, np.uint32), np.full(1, 0xFF, np.uint8)
    assert policy.judge_again(headers, nowhere, nowhere, np.ones(1, np.uint8), asked).tolist() == [verdict]


def test_a_second_name_on_a_stream_closes_it_unless_the_first_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gatewaypolicy, "hash_name", lambda _name: 5)
    learned = GatewayPolicy(local_subnet=0, prefixes=(rule(""),), names=("a", "b"))
    stream = 5 | PUBLISH_STREAM_BIT
    assert learned.resolved() == {stream: None}
    assert learned.rules()[stream].visibility == LOCAL
    configured = msgspec.structs.replace(learned, channels=(rule("c"),))
    assert configured.resolved() == {stream: rule("c")}


def test_a_policy_that_was_recorded_before_there_were_prefixes_is_read_as_it_was() -> None:
    old = (
        b'{"local_subnet":7,"peer_subnets":[8],"forward_unknown":false,"channels":[{"name":"a","visibility":"global"}]}'
    )
    policy = msgspec.json.decode(old, type=GatewayPolicy)
    assert policy == GatewayPolicy(local_subnet=7, peer_subnets=(8,), channels=(rule("a"),))
    assert policy.unknown_verdict == DropReason.SUBNET_LOCAL


def _channel(name: str) -> Any:
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName(name)))
    return SubnetGateway(0, channels=registry).snapshot().channels
