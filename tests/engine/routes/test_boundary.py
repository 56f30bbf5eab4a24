"""Inputs of the gateway: subnets from signed announcements, and allowed publishers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshbus.engine.routes.boundary import NOT_ASKED, NOWHERE
from meshbus.engine.routes.learnednames import LearnedNames
from meshbus.engine.routes.publishers import RECHECK_S
from meshbus.engine.settings import GatewayConfig
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import SubnetPolicy, SubnetRule
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.reason import DropReason
from meshbus.testing.rig import rig
from meshbus.wire.header import HEADER_DTYPE, Header, pack_header
from meshbus.wire.headerbatch import HeaderBatch
from meshbus.wire.messages.token import PermissionToken, Scope

NODE, PUBLISHER, READER, ROOT, LATER = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3, 4, 5))
HERE, WEST, EAST, LOST = (SubnetId.new([level]) for level in (1, 2, 3, 9))
OPEN, LIMITED, TOKENED = ChannelName("open"), ChannelName("limited"), ChannelName("tokened")
POLICY = SubnetPolicy(
    rules=tuple(
        SubnetRule(match_tags=(tag,), target_subnet=subnet)
        for tag, subnet in (("west", WEST), ("east", EAST), ("lost", LOST))
    )
)


class BoundaryRig:
    """One gateway between two subnets, and what was announced to it."""

    def __init__(self, *, assignment: Any = POLICY, config: GatewayConfig | None = None) -> None:
        engine = rig(
            NODE,
            wall=lambda now: round((1_000 + now) * 1e9),
            subnet=HERE,
            assignment=assignment,
            trusted_issuers=(ROOT.entity_id,),
            gateway=GatewayConfig(peer_subnets=(WEST, EAST)) if config is None else config,
        )
        self.engine = engine
        self.counters, self.index, self.tokens = engine.counters, engine.index, engine.tokens
        self.boundary = engine.mesh.boundary
        registry = ChannelConfigRegistry()
        registry.insert(ChannelConfig(name=OPEN, visibility=Visibility.GLOBAL))
        registry.insert(ChannelConfig(name=LIMITED, publish_caps=CapabilityFilter(require_tags=("sensor",))))
        registry.insert(ChannelConfig(name=TOKENED, require_token=True))
        self.boundary.set_channels(registry, 0.0)

    def announce(self, who: Identity, *tags: str, version: int = 1, ttl_s: float = 300, now: float = 0.0) -> None:
        self.index.apply(who.node_id, CapabilitySet(tags), version, ttl_s, now)
        self.boundary.heard(who.node_id, who.entity_id, now)

    def judge(
        self, channel: ChannelName, *, origin: int = PUBLISHER.origin_hash, now: float = 0.0, subnet_id: int = 0
    ) -> tuple[int, int]:
        """Judge a publication for the reader; return the verdict and the code of the guard."""
        header = Header(
            stream_id=channel.hash | 1 << 48, channel_hash=channel.wire_hash, origin_hash=origin, subnet_id=subnet_id
        )
        headers = HeaderBatch.of(np.frombuffer(pack_header(header), HEADER_DTYPE))
        judgment = self.boundary.judge(headers, np.array([READER.node_id], np.uint64), np.array([8], np.uint8), now)
        self.boundary.count(judgment.verdicts.item(0), 1)
        return judgment.verdicts.item(0), judgment.guard.item(0)


def announced_rig(**options: Any) -> BoundaryRig:
    setup = BoundaryRig(**options)
    setup.announce(PUBLISHER, "west", "sensor")
    setup.announce(READER, "east")
    return setup


def test_a_publication_passes_between_known_subnets() -> None:
    assert announced_rig().judge(OPEN) == (0, NOT_ASKED)


def test_who_never_announced_is_nowhere() -> None:
    setup = BoundaryRig()
    assert setup.boundary.subnet_of(READER.node_id, 0.0) == NOWHERE
    assert setup.judge(OPEN)[0] == DropReason.UNKNOWN_SUBNET
    setup.announce(PUBLISHER, "west")
    assert setup.judge(OPEN)[0] == DropReason.UNKNOWN_SUBNET, "the reader is still unknown"
    setup.announce(READER, "lost")
    assert setup.judge(OPEN)[0] == DropReason.UNKNOWN_SUBNET, "no subnet of ours or of a peer"
    setup.announce(READER, "east", version=2)
    assert setup.judge(OPEN)[0] == 0
    assert setup.judge(OPEN, origin=LATER.origin_hash)[0] == DropReason.UNKNOWN_SUBNET, (
        "nor is GLOBAL the subnet of others"
    )


def test_without_rules_every_node_is_in_global() -> None:
    assert BoundaryRig(assignment=None).judge(OPEN)[0] == 0


def test_an_expired_announcement_has_no_effect() -> None:
    setup = announced_rig()
    setup.announce(PUBLISHER, "west", "sensor", version=2, ttl_s=10)
    assert setup.judge(OPEN, now=10.0)[0] == 0
    assert setup.judge(OPEN, now=11.0)[0] == DropReason.UNKNOWN_SUBNET


def test_this_node_is_in_its_configured_subnet() -> None:
    setup = announced_rig()
    assert setup.boundary.subnet_of(NODE.node_id, 0.0) == HERE
    assert setup.judge(OPEN, origin=NODE.origin_hash)[0] == 0


@pytest.mark.parametrize("claimed", [0, int(WEST), int(EAST), int(LOST)])
def test_what_a_packet_claims_decides_nothing(claimed: int) -> None:
    setup = announced_rig()
    assert setup.judge(OPEN, subnet_id=claimed)[0] == 0
    assert setup.counters.get("gateway", "subnet_forged") == (claimed not in {0, int(WEST)})


def test_publishers_are_let_through_by_what_they_announce() -> None:
    setup = announced_rig()
    assert setup.judge(LIMITED) == (0, AuthVerdict.ALLOWED)
    setup.announce(PUBLISHER, "west", version=2)
    verdict, _ = setup.judge(LIMITED)
    assert verdict == DropReason.UNAUTHORIZED_PUBLISHER
    setup.announce(PUBLISHER, "west", "sensor", version=3)
    assert setup.judge(LIMITED)[0] == 0


def test_a_stranger_is_no_publisher() -> None:
    setup = BoundaryRig(assignment=None)
    assert setup.judge(LIMITED, origin=77) == (DropReason.UNAUTHORIZED_PUBLISHER, AuthVerdict.DENIED)


def test_publishers_are_let_through_by_token_while_it_holds() -> None:
    setup = announced_rig()
    assert setup.judge(TOKENED)[0] == DropReason.UNAUTHORIZED_PUBLISHER
    token = PermissionToken.issue(ROOT, PUBLISHER.entity_id, Scope.PUBLISH, TOKENED, ttl_s=50, now=1_000, entropy=bytes)
    setup.tokens.insert(token)
    setup.boundary.recheck(0.0)
    assert setup.judge(TOKENED)[0] == 0
    due = setup.boundary.next_timer()
    assert due == RECHECK_S
    setup.boundary.tick(due)
    assert setup.judge(TOKENED, now=due)[0] == 0
    assert setup.judge(TOKENED, now=49.9)[0] == 0
    assert setup.judge(TOKENED, now=50.0)[0] == DropReason.UNAUTHORIZED_PUBLISHER


def test_a_kept_verdict_ends_with_the_token_that_it_rests_on() -> None:
    setup = announced_rig()
    token = PermissionToken.issue(ROOT, PUBLISHER.entity_id, Scope.PUBLISH, TOKENED, ttl_s=50, now=1_000, entropy=bytes)
    setup.tokens.insert(token)
    setup.boundary.recheck(0.0)
    until = setup.boundary.holds_until(PUBLISHER.origin_hash, READER.node_id, TOKENED.stream_id)
    assert 49.9 < until < 50.0
    assert setup.boundary.holds_until(PUBLISHER.origin_hash, READER.node_id, OPEN.stream_id) == 300.0


def test_publishers_need_not_be_asked_for() -> None:
    setup = announced_rig(config=GatewayConfig(peer_subnets=(WEST, EAST), enforce_publishers=False))
    assert setup.judge(TOKENED) == (0, NOT_ASKED)
    assert setup.boundary.next_timer() is None


def test_exports_and_unknown_channels_follow_the_configuration() -> None:
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=OPEN, visibility=Visibility.EXPORTED))
    for exports, verdict in (
        ({OPEN: (EAST,)}, 0),
        ({OPEN: (WEST,)}, DropReason.NOT_EXPORTED),
        ({}, DropReason.NOT_EXPORTED),
    ):
        setup = announced_rig(config=GatewayConfig(peer_subnets=(WEST, EAST), exports=exports))
        setup.boundary.set_channels(registry, 0.0)
        assert setup.judge(OPEN)[0] == verdict
        assert setup.judge(ChannelName("unheard/of"))[0] == DropReason.SUBNET_LOCAL
    assert (
        announced_rig(config=GatewayConfig(peer_subnets=(WEST, EAST), forward_unknown=True)).judge(
            ChannelName("unheard/of")
        )[0]
        == 0
    )


def test_counts_continue_over_a_change_of_policy() -> None:
    setup = announced_rig()
    setup.judge(OPEN)
    setup.boundary.set_channels(None, 1.0)
    setup.judge(OPEN)
    stats = setup.boundary.gateway.stats
    assert (stats.forwarded, stats.drops[DropReason.SUBNET_LOCAL]) == (1, 1)


# ── rules by prefix ─────────────────────────────────────────────────────────────────────────

LAB, FREE = ChannelName("lab/a"), ChannelName("free/a")


def by_prefix(**options: Any) -> BoundaryRig:
    """A gateway with a rule by prefix that asks for a token, and one that does not."""
    setup = announced_rig(config=GatewayConfig(peer_subnets=(WEST, EAST), **options))
    registry = ChannelConfigRegistry()
    registry.insert_prefix("lab/", ChannelConfig(name=ChannelName("lab/x"), require_token=True))
    registry.insert_prefix("free/", ChannelConfig(name=ChannelName("free/x")))
    setup.boundary.set_channels(registry, 0.0)
    return setup


@pytest.mark.parametrize("forward_unknown", [False, True])
def test_a_channel_whose_name_is_not_known_is_dropped_for_its_own_reason(forward_unknown: bool) -> None:
    setup = by_prefix(forward_unknown=forward_unknown)
    for channel in (LAB, FREE, ChannelName("else")):
        assert setup.judge(channel) == (DropReason.UNRESOLVED_CHANNEL, NOT_ASKED)
    assert setup.boundary.gateway.stats.drops[DropReason.UNRESOLVED_CHANNEL] == 3


def test_names_are_learned_from_signed_announcements_of_any_node() -> None:
    setup = by_prefix(forward_unknown=True)
    setup.announce(READER, "east", f"publishes:{LAB}", f"publishes:{FREE}", "publishes:else", version=2)
    assert setup.judge(FREE) == (0, NOT_ASKED)
    assert setup.judge(LAB)[0] == DropReason.UNAUTHORIZED_PUBLISHER
    assert setup.judge(ChannelName("else")) == (0, NOT_ASKED), "known to have no rule"
    token = PermissionToken.issue(ROOT, PUBLISHER.entity_id, Scope.PUBLISH, LAB, ttl_s=50, now=1_000, entropy=bytes)
    setup.tokens.insert(token)
    assert setup.judge(LAB) == (0, AuthVerdict.ALLOWED)
    assert setup.judge(LAB, now=50.0)[0] == DropReason.UNAUTHORIZED_PUBLISHER


def test_the_channels_of_this_node_are_known_to_it() -> None:
    setup = by_prefix()
    with_name = setup.boundary.versions()
    setup.engine.joined.add(PUBLISHER.node_id, FREE)
    assert setup.boundary.versions() != with_name, "so that kept decisions are dropped"
    assert setup.judge(FREE)[0] == 0
    setup.engine.interests.channels.open(LAB)
    assert setup.judge(LAB)[0] == DropReason.UNAUTHORIZED_PUBLISHER


def test_a_flood_of_names_rebuilds_the_policy_once_a_second() -> None:
    setup = by_prefix()
    rebuilt = []
    for step in range(40):
        setup.announce(READER, "east", f"publishes:free/{step}", version=step + 2, now=step / 10)
        setup.boundary.tick(step / 10)
        rebuilt.append(setup.boundary.gateway.version)
    assert len(set(rebuilt)) <= 5
    due = setup.boundary.next_timer()
    assert due is not None
    assert due <= 4.9, "what waits is applied by the timer"
    setup.boundary.tick(due)
    assert setup.judge(ChannelName("free/39"), now=due)[0] == 0


def test_the_names_of_nodes_that_are_gone_make_room_before_any_other() -> None:
    setup = by_prefix()
    setup.boundary._names = LearnedNames(max_names=2)
    setup.announce(READER, "east", "publishes:free/a", version=2)
    setup.announce(PUBLISHER, "west", "publishes:free/b", version=2)
    setup.index.remove(READER.node_id)
    setup.announce(LATER, "east", "publishes:free/c", now=5.0)
    setup.boundary.tick(6.0)
    assert setup.boundary.gateway.snapshot().names == ("free/b", "free/c")
    assert setup.counters.get("evict", "channel_names") == 0
    setup.announce(LATER, "east", "publishes:free/c", "publishes:free/d", version=2, now=6.5)
    assert setup.counters.get("evict", "channel_names") == 2, "refused: both nodes are there and spoke for themselves"


def test_names_beyond_the_limit_are_counted() -> None:
    setup = by_prefix()
    setup.boundary._names = LearnedNames(max_names=1)
    setup.announce(READER, "east", "publishes:free/a", "publishes:free/b", version=2)
    assert setup.counters.get("evict", "channel_names") == 2


def test_a_rule_that_is_added_later_applies_at_once() -> None:
    setup = announced_rig()
    registry = setup.boundary._registry
    late = ChannelName("late")
    registry.insert(ChannelConfig(name=late, publish_caps=CapabilityFilter(require_tags=("sensor",))))
    setup.announce(PUBLISHER, "west", "sensor", version=2)
    assert setup.judge(late) == (0, AuthVerdict.ALLOWED)


def test_a_plain_relay_learns_nothing() -> None:
    engine = rig(NODE, gateway=None)
    registry = ChannelConfigRegistry()
    registry.insert_prefix("lab/", ChannelConfig(name=ChannelName("lab/x"), require_token=True))
    boundary = engine.mesh.boundary
    boundary.set_channels(registry, 0.0)
    engine.index.apply(READER.node_id, CapabilitySet([f"publishes:{LAB}"]), 1, 300, 0.0)
    boundary.heard(READER.node_id, READER.entity_id, 0.0)
    boundary.tick(5.0)
    assert boundary.gateway.snapshot().names == ()
    assert boundary.next_timer() is None


def test_a_relay_that_becomes_a_gateway_knows_the_names_that_were_announced_before() -> None:
    engine = rig(NODE, gateway=None, subnet=HERE)
    boundary = engine.mesh.boundary
    engine.index.apply(READER.node_id, CapabilitySet([f"publishes:{LAB}"]), 1, 300, 0.0)
    boundary.heard(READER.node_id, READER.entity_id, 0.0)
    registry = ChannelConfigRegistry()
    registry.insert_prefix("lab/", ChannelConfig(name=ChannelName("lab/x"), require_token=True))
    boundary.set_gateway(GatewayConfig(peer_subnets=(WEST, EAST)), POLICY, 1.0)
    boundary.set_channels(registry, 1.0)
    assert boundary.gateway.snapshot().names == (LAB,)
    assert boundary.gateway.peer_subnets == (WEST, EAST)


def test_new_rules_apply_to_the_next_packet_and_counts_continue() -> None:
    setup = announced_rig()
    assert setup.judge(OPEN) == (0, NOT_ASKED)
    before = setup.boundary.versions()
    setup.boundary.set_gateway(GatewayConfig(peer_subnets=(WEST,)), POLICY, 1.0)
    setup.boundary.set_channels(setup.boundary._registry, 1.0)
    assert setup.boundary.versions() != before
    assert setup.judge(OPEN, now=1.0)[0] == DropReason.UNKNOWN_SUBNET
    setup.boundary.set_gateway(None, None, 2.0)
    setup.boundary.set_channels(setup.boundary._registry, 2.0)
    assert setup.judge(OPEN, now=2.0) == (0, NOT_ASKED)
    assert setup.boundary.gateway.stats.forwarded == 2


def test_without_rules_by_prefix_names_change_no_decision() -> None:
    setup = announced_rig()
    setup.judge(OPEN)
    version = setup.boundary.gateway.version
    setup.announce(READER, "east", f"publishes:{FREE}", version=2)
    assert setup.boundary.next_timer() == RECHECK_S
    assert setup.judge(FREE)[0] == DropReason.SUBNET_LOCAL
    assert setup.boundary.gateway.version == version
    setup.boundary._registry.insert_prefix("free/", ChannelConfig(name=ChannelName("free/x")))
    assert setup.judge(FREE)[0] == 0, "the name was kept for a rule that comes later"
