"""Subnet gateway: the golden decision table, unknown subnets, and batches compared with single decisions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy import verdict
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.guard import AuthGuard
from meshbus.policy.reason import DropReason
from meshbus.policy.verdict import FORWARD, Drop, ForwardDecision
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.headerbatch import HeaderBatch
from tests.vectors import load

DECISIONS = load("policy")["gateway_decisions"]["rows"]
COLLISIONS = load("policy")["wire_hash_collisions"]["pairs"]

CHANNEL = ChannelName("sensors/lidar")
OTHER = SubnetId.new([200, 1])
ALL_SUBNETS = {int(row[column], 16) for row in DECISIONS for column in (2, 3)}


def gateway_for(
    visibility: Visibility | None, *, peers: set[int] | tuple[int, ...] = (), local: int = 0, **options: Any
) -> SubnetGateway:
    registry = ChannelConfigRegistry()
    if visibility is not None:
        registry.insert(ChannelConfig(name=CHANNEL, visibility=visibility))
    return SubnetGateway(local, peers, channels=registry, **options)


def publications(count: int, channel: ChannelName = CHANNEL, **fields: Any) -> Any:
    headers = np.zeros(count, HEADER_DTYPE)
    headers["stream_id"] = channel.stream_id
    headers["channel_hash"] = channel.wire_hash
    for name, value in fields.items():
        headers[name] = value
    return headers


def code(decision: ForwardDecision) -> int:
    return decision.reason if isinstance(decision, Drop) else 0


def decide_all(gateway: SubnetGateway, headers: Any, dest: Any, **columns: Any) -> list[int]:
    """Judge a batch with the compiled kernel, and check that the reference returns the same."""
    verdicts = gateway.decide_batch(headers, dest, **columns)
    reference, counts = np.empty(len(headers), np.uint8), np.zeros(verdict.VERDICTS, np.int64)
    verdict.judge.reference(
        HeaderBatch.of(headers).rows,
        np.asarray(columns.get("source", []), np.uint32),
        np.asarray(dest, np.uint32),
        np.asarray(columns.get("ttl", []), np.uint8),
        gateway.policy,
        reference,
        counts,
    )
    settled = reference != verdict.ASK_GUARD
    assert reference[settled].tolist() == verdicts[settled].tolist()
    assert counts.sum() == np.count_nonzero(settled)
    return list(verdicts.tolist())


@pytest.mark.parametrize("kind", ["global", "subnet_local", "parent_visible", "exported", "unknown_or_colliding_hash"])
def test_golden_decisions(kind: str) -> None:
    visibility = None if kind.startswith("unknown") else Visibility[kind.upper()]
    for _, _, source_text, dest_text, entry, hop_ttl, hop_count, expected in (r for r in DECISIONS if r[0] == kind):
        source, dest = SubnetId(int(source_text, 16)), SubnetId(int(dest_text, 16))
        gateway = gateway_for(visibility, peers=ALL_SUBNETS)
        exports = {
            "none": None,
            "empty_list": [],
            "exact_dest": [dest],
            "ancestor_of_dest": [dest.parent],
            "other": [OTHER],
            "global": [SubnetId.GLOBAL],
        }[entry]
        if exports is not None:
            gateway.export(CHANNEL, exports)
        wanted = 0 if expected == "forward" else DropReason[expected.removeprefix("drop:").upper()]
        assert code(gateway.decide(CHANNEL.wire_hash, source, dest, hop_ttl, hop_count)) == wanted
        assert code(gateway.decide(CHANNEL.hash, source, dest, hop_ttl, hop_count)) == wanted
        if hop_ttl:  # a batch ignores the inner pair when hop_ttl is 0, as 0.23 publishers send it
            headers = publications(1, hop_ttl=hop_ttl, hop_count=hop_count, subnet_id=source)
            assert decide_all(gateway, headers, [dest]) == [wanted]


@pytest.mark.parametrize(
    ("source", "dest", "known"),
    [
        ("3.7", "3.8", True),  # local to a registered peer
        ("3.8", "3.7", True),  # and back
        ("3.8", "4", True),  # between two registered peers
        ("global", "3.8", True),  # GLOBAL is always known
        ("3.7", "global", True),
        ("3.7", "3.9", False),  # nobody registered 3.9
        ("3.9", "3.7", False),  # nor as a source
        ("3.7", "3.8.1", False),  # registering a subnet does not register what lies below it
        ("3.7", "3", False),  # nor what lies above it
        ("3.7.1", "3.8", False),
        ("9", "9", False),
    ],
)
def test_unknown_subnets(source: str, dest: str, known: bool) -> None:
    gateway = gateway_for(Visibility.GLOBAL, local=SubnetId.parse("3.7"), peers=(SubnetId.parse("4"),))
    gateway.add_peer_subnet(SubnetId.parse("3.8"))
    places = SubnetId.parse(source), SubnetId.parse(dest)
    wanted = 0 if known else DropReason.UNKNOWN_SUBNET
    assert code(gateway.decide(CHANNEL.hash, *places, ttl=8)) == wanted
    assert decide_all(gateway, publications(1), [places[1]], source=[places[0]]) == [wanted]


def test_peer_subnets_are_sorted_once_each_and_removable() -> None:
    gateway = gateway_for(Visibility.GLOBAL, peers=(SubnetId.new([9]), SubnetId.new([3]), SubnetId.new([9])))
    assert gateway.peer_subnets == (SubnetId.new([3]), SubnetId.new([9]))
    assert decide_all(gateway, publications(1), [SubnetId.new([9])]) == [0]
    gateway.remove_peer_subnet(SubnetId.new([9]))
    assert decide_all(gateway, publications(1), [SubnetId.new([9])]) == [DropReason.UNKNOWN_SUBNET]


def test_expired_comes_before_unknown_and_unknown_before_visibility() -> None:
    gateway = gateway_for(Visibility.SUBNET_LOCAL)
    assert gateway.decide(CHANNEL.hash, 0, OTHER, ttl=0) == Drop(DropReason.TTL_EXPIRED)
    assert gateway.decide(CHANNEL.hash, 0, OTHER, ttl=1) == Drop(DropReason.UNKNOWN_SUBNET)
    assert gateway.decide(CHANNEL.hash, 0, 0, ttl=1) == Drop(DropReason.SUBNET_LOCAL)


def test_the_routing_ttl_is_judged_for_every_packet() -> None:
    gateway = gateway_for(Visibility.GLOBAL)
    control = publications(1, subprotocol_id=0x0A00)
    for headers in (publications(1), control):
        assert decide_all(gateway, headers, [0], ttl=[0]) == [DropReason.TTL_EXPIRED]
        assert decide_all(gateway, headers, [0], ttl=[1]) == [0]


@pytest.mark.parametrize(
    "fields",
    [
        {"subprotocol_id": 0x7777},
        {"stream_id": CHANNEL.stream_id & ~(1 << 48)},
        {"channel_hash": CHANNEL.wire_hash ^ 1},  # a stale channel hash on another stream
        {"stream_id": 0},
    ],
)
def test_packets_that_are_not_publications_are_opaque(fields: dict[str, Any]) -> None:
    gateway = gateway_for(Visibility.SUBNET_LOCAL)
    assert decide_all(gateway, publications(1, **fields), [OTHER]) == [0]
    expired = publications(1, hop_ttl=2, hop_count=2, **fields)
    assert decide_all(gateway, expired, [OTHER]) == [DropReason.TTL_EXPIRED]


def test_unknown_channels_stay_local_unless_asked_otherwise() -> None:
    closed, open_ = gateway_for(None), gateway_for(None, forward_unknown=True)
    assert decide_all(closed, publications(1), [0]) == [DropReason.SUBNET_LOCAL]
    assert decide_all(open_, publications(1), [0]) == [0]
    assert closed.decide(CHANNEL.hash, 0, 0, ttl=1) == Drop(DropReason.SUBNET_LOCAL)
    assert open_.decide(CHANNEL.hash, 0, 0, ttl=1) == FORWARD
    assert open_.decide(CHANNEL.wire_hash, 0, 0, ttl=1) == Drop(DropReason.SUBNET_LOCAL)  # 16 bits prove nothing


@pytest.mark.parametrize("pair", COLLISIONS)
def test_a_16_bit_collision_decides_nothing(pair: dict[str, str]) -> None:
    public, private = ChannelName(pair["a"]), ChannelName(pair["b"])
    assert public.wire_hash == private.wire_hash == int(pair["wire_u16"], 16)
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=public, visibility=Visibility.GLOBAL))
    registry.insert(ChannelConfig(name=private, visibility=Visibility.SUBNET_LOCAL))
    gateway = SubnetGateway(0, channels=registry)
    assert gateway.decide(public.wire_hash, 0, 0, ttl=1) == Drop(DropReason.SUBNET_LOCAL)
    assert gateway.decide(public.hash, 0, 0, ttl=1) == FORWARD
    assert decide_all(gateway, publications(1, public), [0]) == [0]
    assert decide_all(gateway, publications(1, private), [0]) == [DropReason.SUBNET_LOCAL]


def test_a_changed_configuration_takes_effect_at_once() -> None:
    registry = ChannelConfigRegistry()
    gateway = SubnetGateway(0, channels=registry)
    assert decide_all(gateway, publications(1), [0]) == [DropReason.SUBNET_LOCAL]
    registry.insert(ChannelConfig(name=CHANNEL, visibility=Visibility.GLOBAL))
    assert decide_all(gateway, publications(1), [0]) == [0]
    registry.insert(ChannelConfig(name=CHANNEL, visibility=Visibility.EXPORTED))
    assert decide_all(gateway, publications(1), [0]) == [DropReason.NOT_EXPORTED]
    gateway.export(CHANNEL, [SubnetId.GLOBAL])
    assert gateway.exports_of(CHANNEL) == (SubnetId.GLOBAL,)
    assert decide_all(gateway, publications(1), [0]) == [0]


def test_publishers_are_checked_where_the_channel_names_them() -> None:
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=CHANNEL, publish_caps=CapabilityFilter(require_tags=("lidar",))))
    guard = AuthGuard()
    asked: list[tuple[int, int]] = []

    def verify(origin: int, channel: int) -> bool:
        asked.append((origin, channel))
        return origin == 3

    gateway = SubnetGateway(0, channels=registry, publishers=guard, verify_publisher=verify)
    for origin in (1, 2, 3):
        guard.authorize(origin, CHANNEL.hash)
    guard.revoke(2, CHANNEL.hash)
    guard.revoke(3, CHANNEL.hash)
    headers = publications(8, origin_hash=[1, 2, 3, 4, 2, 3, 1, 9])
    denied = DropReason.UNAUTHORIZED_PUBLISHER
    assert decide_all(gateway, headers, [0] * 8) == [0, denied, 0, denied, denied, 0, 0, denied]
    assert asked == [(2, CHANNEL.hash), (3, CHANNEL.hash)]  # once each, and not for those the bloom turns away
    assert gateway.stats.forwarded == 4
    assert gateway.stats.drops[denied] == 4
    zeros, ttl = np.zeros(8, np.uint32), np.ones(8, np.uint8)
    again = gateway.judge_batch(HeaderBatch.of(headers), zeros, zeros, ttl)
    assert again.tolist() == [0, denied, 0, denied, denied, 0, 0, denied]
    assert (gateway.stats.forwarded, gateway.stats.dropped) == (4, 4), "judged, not counted"
    without = SubnetGateway(0, channels=registry)
    assert decide_all(without, headers, [0] * 8) == [0] * 8


def test_stats_count_every_decision_once() -> None:
    gateway = gateway_for(Visibility.PARENT_VISIBLE, peers=ALL_SUBNETS)
    gateway.decide(CHANNEL.hash, 0, 0, ttl=0)
    gateway.decide(CHANNEL.hash, 0, 0, ttl=1)
    gateway.record(Drop(DropReason.NOT_ANCESTOR))
    decide_all(gateway, publications(3, subnet_id=SubnetId.parse("3.7")), [0, SubnetId.parse("3.8"), OTHER])
    assert gateway.stats.forwarded == 2
    assert gateway.stats.dropped == 4
    assert gateway.stats.drops[DropReason.NOT_ANCESTOR] == 2
    assert gateway.stats.drops[DropReason.UNKNOWN_SUBNET] == 1


def test_packets_that_stand_for_others_are_counted_by_the_caller() -> None:
    gateway = gateway_for(Visibility.PARENT_VISIBLE, peers=ALL_SUBNETS)
    headers = publications(3, subnet_id=SubnetId.parse("3.7"))
    dest = np.array([0, SubnetId.parse("3.8"), OTHER], np.uint32)
    source, ttl = headers["subnet_id"].astype(np.uint32), np.ones(3, np.uint8)
    judged = gateway.judge_batch(HeaderBatch.of(headers), source, dest, ttl)
    assert (gateway.stats.forwarded, gateway.stats.dropped) == (0, 0)
    for verdict_code in judged.tolist():
        gateway.count(verdict_code, 10)
    assert (gateway.stats.forwarded, gateway.stats.dropped) == (10, 20)
    assert judged.tolist() == decide_all(gateway, headers, dest, source=source, ttl=ttl)


subnets = st.builds(SubnetId.new, st.lists(st.integers(0, 3), max_size=4))
names = st.sampled_from([ChannelName(f"fleet/{n}") for n in range(12)])
policies = st.dictionaries(names, st.tuples(st.sampled_from(Visibility), st.lists(subnets, max_size=3)), max_size=12)
packets = st.lists(st.tuples(names, subnets, subnets, st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


prefixes = st.dictionaries(st.sampled_from(["", "fleet/", "fleet/1", "else/"]), st.sampled_from(Visibility))


@given(policies, st.lists(subnets, max_size=8), subnets, packets, st.booleans(), prefixes, st.sets(names))
def test_batch_equals_scalar_on_random_policies(
    policy: dict[ChannelName, tuple[Visibility, list[SubnetId]]],
    peers: list[SubnetId],
    local: SubnetId,
    traffic: list[tuple[ChannelName, SubnetId, SubnetId, int, int]],
    forward_unknown: bool,
    prefixes: dict[str, Visibility],
    learned: set[ChannelName],
) -> None:
    registry = ChannelConfigRegistry()
    gateway = SubnetGateway(local, peers, channels=registry, forward_unknown=forward_unknown)
    gateway.learn(learned)
    for prefix, visibility in prefixes.items():
        registry.insert_prefix(prefix, ChannelConfig(name=ChannelName("label"), visibility=visibility))
    for name, (visibility, targets) in policy.items():
        registry.insert(ChannelConfig(name=name, visibility=visibility))
        gateway.export(name, targets)
    headers = np.zeros(len(traffic), HEADER_DTYPE)
    for row, (name, source, _, hop_ttl, hop_count) in zip(headers, traffic, strict=True):
        row["stream_id"], row["channel_hash"], row["subnet_id"] = name.stream_id, name.wire_hash, source
        row["hop_ttl"], row["hop_count"] = hop_ttl, hop_count
    scalar = [
        code(gateway.decide(name.hash, source, dest, hop_ttl or 255, hop_count))
        for name, source, dest, hop_ttl, hop_count in traffic
    ]
    dest = [dest for _, _, dest, _, _ in traffic]
    assert decide_all(gateway, headers, dest) == scalar
    assert decide_all(gateway, headers, dest, source=headers["subnet_id"]) == scalar


def test_a_learned_name_gets_the_rule_of_its_prefix_at_once() -> None:
    registry = ChannelConfigRegistry()
    registry.insert_prefix("lab/", ChannelConfig(name=ChannelName("lab/x"), visibility=Visibility.GLOBAL))
    gateway = SubnetGateway(0, channels=registry)
    headers = publications(1)
    headers["stream_id"], headers["channel_hash"] = ChannelName("lab/a").stream_id, ChannelName("lab/a").wire_hash
    assert decide_all(gateway, headers, [0]) == [DropReason.UNRESOLVED_CHANNEL]
    before = gateway.version
    gateway.learn([ChannelName("lab/a")])
    assert gateway.version != before
    assert decide_all(gateway, headers, [0]) == [0]
    settled = gateway.version
    gateway.learn([ChannelName("lab/a")])
    assert (gateway.version, gateway.snapshot().names) == (settled, ("lab/a",)), "nothing new, so decisions stay"


def test_an_export_names_a_channel_to_which_a_rule_by_prefix_applies() -> None:
    registry = ChannelConfigRegistry()
    registry.insert_prefix("lab/", ChannelConfig(name=ChannelName("lab/x"), visibility=Visibility.EXPORTED))
    gateway = SubnetGateway(0, [OTHER], channels=registry)
    gateway.export("lab/a", [OTHER])
    gateway.export("elsewhere", [OTHER])
    assert gateway.decide(ChannelName("lab/a").hash, 0, OTHER, ttl=1) == FORWARD
    assert gateway.decide(ChannelName("lab/b").hash, 0, OTHER, ttl=1) == Drop(DropReason.UNRESOLVED_CHANNEL)
    assert [rule.name for rule in gateway.snapshot().channels] == ["lab/a"]


def test_restricted_channels_are_those_whose_rule_asks_for_publishers() -> None:
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName("own"), require_token=True))
    registry.insert(ChannelConfig(name=ChannelName("free")))
    registry.insert_prefix("lab/", ChannelConfig(name=ChannelName("lab/x"), require_token=True))
    gateway = SubnetGateway(0, channels=registry, publishers=AuthGuard())
    gateway.learn([ChannelName("lab/a"), ChannelName("other")])
    assert set(gateway.restricted().values()) == {"own", "lab/a"}
    assert SubnetGateway(0, channels=registry).restricted() == {}, "without a guard nobody is asked"
