"""Publishers at a gateway: a permission begins with an announcement or a packet, and ends with what it rests on."""

from __future__ import annotations

import pytest

from meshbus.engine.routes import publishers as module
from meshbus.engine.routes.publishers import RECHECK_S, Publishers
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.testing.rig import rig
from meshbus.wire.messages.token import PermissionToken, Scope

ROOT, ALICE, BOB = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
OWN, SKILLED, LEARNED, FREE = (ChannelName(name) for name in ("own", "skilled", "lab/a", "free"))
RESTRICTED = {name.stream_id: name for name in (OWN, SKILLED, LEARNED)}
UNIX = 1_000


class Rig:
    """Publishers of one engine, with two rules by name and one by prefix."""

    def __init__(self) -> None:
        engine = rig(wall=lambda now: round((UNIX + now) * 1e9), trusted_issuers=(ROOT.entity_id,))
        self.index, self.tokens = engine.index, engine.tokens
        self.publishers: Publishers = engine.mesh.boundary._publishers
        registry = ChannelConfigRegistry()
        registry.insert(ChannelConfig(name=OWN, require_token=True))
        registry.insert(ChannelConfig(name=SKILLED, publish_caps=CapabilityFilter(require_tags=("skill",))))
        registry.insert_prefix("lab/", ChannelConfig(name=ChannelName("lab/x"), require_token=True))
        self.publishers.reset(registry)
        self.publishers.restrict(RESTRICTED)
        self.publishers.recheck(0.0)

    def announce(self, who: Identity, *tags: str, now: float = 0.0, ttl_s: float = 300) -> None:
        version = 1 if (entry := self.index.get(who.node_id)) is None else entry.version + 1
        self.index.apply(who.node_id, CapabilitySet(tags), version, ttl_s, now)
        assert self.publishers.heard(who.node_id, who.entity_id, now) == who.origin_hash

    def issue(self, who: Identity, channel: ChannelName, ttl_s: int = 50) -> None:
        token = PermissionToken.issue(ROOT, who.entity_id, Scope.PUBLISH, channel, ttl_s=ttl_s, now=UNIX, entropy=bytes)
        self.tokens.insert(token)

    def allowed(self, who: Identity, channel: ChannelName) -> bool:
        return self.publishers.guard.is_authorized(who.origin_hash, channel.hash)


def test_a_rule_by_name_is_checked_when_a_node_announces_itself() -> None:
    scene = Rig()
    scene.announce(ALICE, "skill")
    assert (scene.allowed(ALICE, SKILLED), scene.allowed(ALICE, OWN)) == (True, False)
    scene.announce(ALICE)
    assert not scene.allowed(ALICE, SKILLED)


def test_a_rule_by_prefix_is_checked_when_a_packet_is_judged() -> None:
    scene = Rig()
    scene.announce(ALICE)
    scene.issue(ALICE, LEARNED)
    assert not scene.allowed(ALICE, LEARNED)
    pairs = [(ALICE.origin_hash, LEARNED.stream_id), (BOB.origin_hash, LEARNED.stream_id), (ALICE.origin_hash, 7)]
    scene.publishers.admit(pairs)
    assert (scene.allowed(ALICE, LEARNED), scene.allowed(BOB, LEARNED)) == (True, False)


def test_a_permission_ends_with_its_token_at_that_time_and_without_a_packet() -> None:
    scene = Rig()
    scene.issue(ALICE, OWN)
    scene.announce(ALICE)
    assert scene.publishers.permitted_until(ALICE.origin_hash, OWN.stream_id) == pytest.approx(50.0)
    scene.publishers.tick(RECHECK_S)
    assert scene.publishers.next_timer() == pytest.approx(50.0)
    scene.publishers.tick(49.999)
    assert scene.allowed(ALICE, OWN)
    version = scene.publishers.guard.version
    scene.publishers.tick(50.0)
    assert not scene.allowed(ALICE, OWN)
    assert scene.publishers.guard.version > version, "so that kept decisions are dropped"
    assert scene.publishers.permitted_until(ALICE.origin_hash, OWN.stream_id) == float("inf")


def test_a_permission_ends_with_the_announcement_that_it_rests_on() -> None:
    scene = Rig()
    scene.announce(ALICE, "skill", ttl_s=10)
    scene.publishers.tick(10.0)
    assert scene.allowed(ALICE, SKILLED), "valid until then, inclusive"
    due = scene.publishers.next_timer()
    assert due is not None
    assert 10.0 < due < 10.001
    scene.publishers.tick(due)
    assert not scene.allowed(ALICE, SKILLED)


def test_a_renewed_token_prolongs_the_permission() -> None:
    scene = Rig()
    scene.issue(ALICE, OWN)
    scene.announce(ALICE)
    scene.issue(ALICE, OWN, ttl_s=200)
    scene.publishers.tick(50.0)
    assert scene.allowed(ALICE, OWN)
    assert scene.publishers.permitted_until(ALICE.origin_hash, OWN.stream_id) == pytest.approx(200.0)


@pytest.mark.parametrize("channel", [OWN, LEARNED])
def test_a_revoked_token_ends_every_permission_with_the_next_check(channel: ChannelName) -> None:
    scene = Rig()
    scene.issue(ALICE, channel)
    scene.announce(ALICE)
    scene.publishers.admit([(ALICE.origin_hash, channel.stream_id)])
    assert scene.allowed(ALICE, channel)
    scene.tokens.revoke_below(ROOT.entity_id, 1)
    scene.publishers.recheck(1.0)
    assert not scene.allowed(ALICE, channel)


def test_a_channel_that_is_no_longer_restricted_keeps_no_permission() -> None:
    scene = Rig()
    scene.announce(ALICE, "skill")
    scene.publishers.restrict({OWN.stream_id: OWN})
    scene.publishers.recheck(1.0)
    assert not scene.allowed(ALICE, SKILLED)
    assert not scene.publishers.may_publish(ALICE.origin_hash, SKILLED.hash)


def test_permissions_are_limited_and_the_first_to_end_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PERMITS", 2)
    scene = Rig()
    scene.announce(ALICE, "skill", ttl_s=100)
    scene.announce(BOB, "skill", ttl_s=20)
    scene.issue(ALICE, LEARNED)
    scene.publishers.admit([(ALICE.origin_hash, LEARNED.stream_id)])
    assert [scene.allowed(*pair) for pair in ((ALICE, SKILLED), (ALICE, LEARNED), (BOB, SKILLED))] == [
        True,
        True,
        False,
    ]
    assert scene.publishers.may_publish(BOB.origin_hash, SKILLED.hash), "checked again by the next packet"
    assert [scene.allowed(*pair) for pair in ((BOB, SKILLED), (ALICE, LEARNED))] == [True, False]


def test_without_restricted_channels_nothing_is_due() -> None:
    scene = Rig()
    scene.publishers.restrict({})
    scene.publishers.recheck(1.0)
    assert scene.publishers.next_timer() is None


def test_a_pair_that_was_refused_by_a_rule_by_prefix_is_checked_again_after_a_change_of_tokens() -> None:
    scene = Rig()
    version = scene.publishers.version
    scene.publishers.recheck(1.0)
    assert scene.publishers.version > version, "so that kept decisions are dropped"
    scene.publishers.restrict({OWN.stream_id: OWN})
    version = scene.publishers.version
    scene.publishers.recheck(2.0)
    assert scene.publishers.version == version, "rules by name are in the guard"


def test_the_origin_of_a_succeeded_key_is_judged_as_that_of_its_heir() -> None:
    scene = Rig()
    scene.announce(ALICE, "skill")
    assert scene.allowed(ALICE, SKILLED)
    scene.index.rename(ALICE.node_id, BOB.node_id, 0.0)
    scene.publishers.rename(ALICE.node_id, BOB.node_id, BOB.entity_id)
    scene.publishers.recheck(1.0)
    assert scene.allowed(ALICE, SKILLED)
    scene.index.apply(BOB.node_id, CapabilitySet(), 5, 300, 1.0)
    scene.publishers.recheck(2.0)
    assert not scene.allowed(ALICE, SKILLED)
