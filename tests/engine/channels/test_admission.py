"""Admission of subscribers: throttle and limit, roster and guard in step, later checks, and the filter of a publish."""

from typing import Any

import pytest

from meshbus.engine.base.notices import Subscribed, Unsubscribed
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.admission import MIN_REBUILD, Ending, Lapse
from meshbus.engine.channels.authorize import ack_of
from meshbus.engine.session.peer import Peer
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import ChannelConfigRegistry, Visibility
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.limits import FailureThrottle
from meshbus.policy.reason import Reason
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.token import Scope, decode_chain
from tests.engine.stage import ROOT, Stage, channel_config, configs, entity, token
from tests.vectors import load

THROTTLE = load("policy")["auth_throttle"]
CAP = load("policy")["max_channels_per_peer"]

OPEN, SECRET, LOCAL, SKILLED = (ChannelName(name) for name in ("open", "secret", "local", "skilled"))
HERE, AWAY = SubnetId.new([3]), SubnetId.new([4])


def stage(**options: Any) -> Stage:
    registry = configs(
        channel_config(OPEN),
        channel_config(SECRET, require_token=True),
        channel_config(LOCAL, visibility=Visibility.SUBNET_LOCAL),
        channel_config(SKILLED, subscribe_caps=CapabilityFilter(require_tags=("s",))),
    )
    return Stage(registry, subnet=HERE, **options)


def leg(scene: Stage, peer: Peer, channel: ChannelName, now: float = 0.0) -> Reason | None:
    config = scene.authorizer.config_of(channel)
    return scene.admission.filter(peer.node_id, channel, channel.hash, config, now)


def guard_says(scene: Stage, peer: Peer, channel: ChannelName) -> tuple[AuthVerdict, bool]:
    guard = scene.admission.guard
    return guard.check_fast(peer.node_id, channel.hash), guard.is_authorized_full(peer.node_id, channel)


# ── in ──────────────────────────────────────────────────────────────────────────────────────


def test_an_admitted_peer_is_in_the_roster_and_the_guard() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    assert scene.admission.subscribe(alice, OPEN, 0.0, out, queue_group="g") is None
    assert out.control == [Subscribed(alice.node_id, OPEN, "g")]
    assert scene.roster.groups(OPEN) == {"g": [alice.node_id]}
    assert guard_says(scene, alice, OPEN) == (AuthVerdict.ALLOWED, True)
    assert leg(scene, alice, OPEN) is None


def test_a_refused_peer_is_in_neither_and_is_counted() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    nothing = ChannelName("nothing")
    refusals = {
        channel: scene.admission.subscribe(alice, channel, 0.0, out) for channel in (nothing, SECRET, LOCAL, SKILLED)
    }
    assert refusals == {
        nothing: Reason.REFUSE_UNKNOWN_CHANNEL,
        SECRET: Reason.REFUSE_TOKEN,
        LOCAL: Reason.REFUSE_NOT_VISIBLE,
        SKILLED: Reason.REFUSE_CAPABILITY,
    }
    assert scene.counters.snapshot()["refuse"] == {reason.why: 1 for reason in refusals.values() if reason}
    assert out.control == []
    assert len(scene.roster) == 0
    assert guard_says(scene, alice, SECRET) == (AuthVerdict.DENIED, False)


def test_subscribing_again_changes_nothing_and_another_mode_moves() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    for group in ("", "", "g"):
        assert scene.admission.subscribe(alice, OPEN, 0.0, out, queue_group=group) is None
    assert out.control == [Subscribed(alice.node_id, OPEN), Subscribed(alice.node_id, OPEN, "g")]


# ── throttle and cap ────────────────────────────────────────────────────────────────────────


def test_the_17th_failure_is_throttled_as_observed() -> None:
    scene, out = stage(), Output()
    alice, bob = scene.peer(1), scene.peer(2)
    answers = [scene.admission.subscribe(alice, ChannelName("nothing"), n / 10, out) for n in range(18)]
    reasons = [ack_of(refusal).name.lower() for refusal in answers if refusal is not None]
    assert reasons == THROTTLE["reasons_for_18_unknown_channel_subscribes"]
    then = scene.admission.subscribe(alice, OPEN, 2.0, out)
    assert then is Reason.REFUSE_THROTTLED
    assert THROTTLE["then_open_channel"] == {"accepted": False, "reason": ack_of(then).name.lower()}
    assert scene.counters.get("refuse", "throttled") == 3
    assert scene.admission.subscribe(bob, OPEN, 2.0, out) is None, "others are not concerned"
    assert scene.admission.subscribe(alice, OPEN, 1.5 + 30, out) is None, "after 30 s it is heard again"


def test_a_throttled_peer_costs_no_signature_work() -> None:
    scene, out = stage(throttle=FailureThrottle[int](1)), Output()
    alice = scene.peer(1)
    assert scene.admission.subscribe(alice, SECRET, 0.0, out) is Reason.REFUSE_TOKEN
    assert scene.admission.subscribe(alice, SECRET, 0.0, out, token=b"x") is Reason.REFUSE_THROTTLED
    assert scene.counters.total("token") == 0


def test_a_success_clears_failures_and_the_cap_does_not_count_as_one() -> None:
    scene, out = stage(throttle=FailureThrottle[int](2), max_channels_per_peer=1), Output()
    alice = scene.peer(1)
    assert scene.admission.subscribe(alice, SECRET, 0.0, out) is Reason.REFUSE_TOKEN
    assert scene.admission.subscribe(alice, OPEN, 0.0, out) is None
    for _ in range(5):
        assert scene.admission.subscribe(alice, SKILLED, 0.0, out) is Reason.REFUSE_TOO_MANY_CHANNELS
    assert scene.admission.subscribe(alice, OPEN, 0.0, out) is None


def test_the_number_of_channels_per_peer_is_limited_as_observed() -> None:
    scene, out = Stage(), Output()
    alice = scene.peer(1)
    names = [ChannelName(f"c/{n}") for n in range(CAP["sent"])]
    answers = [scene.admission.subscribe(alice, name, 0.0, out) for name in names]
    assert answers.count(None) == CAP["accepted"]
    refused = [refusal for refusal in answers if refusal is not None]
    assert len(refused) == CAP["rejected"]
    assert {(0, int(ack_of(refusal))) for refusal in refused} == {tuple(pair) for pair in CAP["reject_bytes"]}
    assert (scene.admission.subscribe(alice, names[0], 0.0, out) is None) == CAP["resubscribe_existing_at_cap"][
        "accepted"
    ]
    scene.admission.release(alice.node_id, names[0], out)
    assert (scene.admission.subscribe(alice, names[-1], 0.0, out) is None) == CAP["new_after_one_unsubscribe"][
        "accepted"
    ]


# ── out ─────────────────────────────────────────────────────────────────────────────────────


def test_leaving_removes_the_peer_from_the_guard() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, OPEN, 0.0, out)
    assert scene.admission.release(alice.node_id, OPEN, out)
    assert not scene.admission.release(alice.node_id, OPEN, out)
    assert out.control[1:] == [Unsubscribed(alice.node_id, OPEN, "asked")]
    assert guard_says(scene, alice, OPEN) == (AuthVerdict.NEEDS_FULL_CHECK, False)
    assert leg(scene, alice, OPEN) is Reason.FILTER_NOT_AUTHORIZED


def test_a_subscription_stays_while_another_request_holds_it() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, OPEN, 0.0, out)
    scene.admission.admit(alice, OPEN, 0.0, out, request=7)
    assert not scene.admission.release(alice.node_id, OPEN, out)
    assert leg(scene, alice, OPEN) is None
    assert scene.admission.release(alice.node_id, OPEN, out, request=7, why=Ending.CANCELED)
    assert out.control[1:] == [Unsubscribed(alice.node_id, OPEN, "canceled")]


def test_a_failed_peer_is_removed_from_all_channels() -> None:
    scene, out = stage(), Output()
    alice, bob = scene.peer(1), scene.peer(2)
    scene.announce(alice, 1, tags=["s"])
    for channel in (OPEN, SKILLED):
        assert scene.admission.subscribe(alice, channel, 0.0, out) is None
    scene.admission.subscribe(bob, OPEN, 0.0, out)
    out = Output()
    scene.fail(alice, out)
    assert out.control == [Unsubscribed(alice.node_id, channel, "silent") for channel in (OPEN, SKILLED)]
    assert scene.roster.channels_of(alice.node_id) == []
    assert scene.roster.members(OPEN) == [bob.node_id]
    assert not scene.admission.guard.is_authorized(alice.node_id, OPEN.hash)
    scene.fail(alice, out)
    assert len(out.control) == 2, "once is enough"


# ── again ───────────────────────────────────────────────────────────────────────────────────


def test_the_sweep_ends_subscriptions_whose_token_expired() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    assert scene.admission.next_timer() is None, "nobody is there"
    scene.admission.subscribe(alice, OPEN, 5.0, out)
    assert scene.admission.subscribe(alice, SECRET, 5.0, out, token=token(entity(1), SECRET, ttl_s=40)) is None
    assert scene.admission.next_timer() == 35.0
    scene.admission.tick(34.9, out)
    assert scene.lapses() == []
    scene.admission.tick(35.0, out)
    assert scene.lapses() == []
    assert scene.admission.next_timer() == 65.0
    out = Output()
    scene.admission.tick(65.0, out)
    assert scene.lapses() == [Lapse(alice.node_id, SECRET, Reason.LAPSE_TOKEN)]
    assert out.control == [Unsubscribed(alice.node_id, SECRET, "token")]
    assert scene.roster.channels_of(alice.node_id) == [OPEN]
    assert scene.counters.get("lapse", "token") == 1
    assert len(scene.tokens) == 0, "and the token is thrown away"


def test_the_sweep_ends_subscriptions_whose_token_was_revoked() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, SECRET, 0.0, out, token=token(entity(1), SECRET))
    scene.tokens.revoke_below(ROOT.entity_id, 1)
    scene.admission.tick(30.0, out)
    assert scene.lapses() == [Lapse(alice.node_id, SECRET, Reason.LAPSE_TOKEN)]
    assert scene.admission.next_timer() is None, "nobody is left"


@pytest.mark.parametrize(("interval", "due"), [(0.0, 1.0), (10.0, 10.0), (None, None)])
def test_the_sweep_has_an_interval_of_a_second_at_least_or_none(interval: float | None, due: float | None) -> None:
    scene, out = stage(token_sweep_s=interval), Output()
    scene.admission.subscribe(scene.peer(1), OPEN, 0.0, out)
    assert scene.admission.next_timer() == due


def test_new_claims_are_checked_at_once() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    scene.announce(alice, 1, tags=["s"])
    for channel in (OPEN, SKILLED):
        scene.admission.subscribe(alice, channel, 0.0, out)
    scene.admission.claims_changed(alice, 1.0, out)
    assert scene.lapses() == []
    scene.announce(alice, 1)
    scene.admission.claims_changed(alice, 2.0, out)
    assert scene.lapses() == [Lapse(alice.node_id, SKILLED, Reason.LAPSE_CAPABILITY)]
    assert scene.roster.channels_of(alice.node_id) == [OPEN]


def test_new_configurations_are_checked_at_once_and_changed_ones_by_the_sweep() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, OPEN, 0.0, out)
    registry = configs(channel_config(OPEN), channel_config(SECRET))
    scene.admission.channels_configured(registry, 1.0, out)
    assert scene.lapses() == []
    registry.insert(channel_config(OPEN, require_token=True))
    assert leg(scene, alice, OPEN, 2.0) is Reason.FILTER_TOKEN, "the publish knows before"
    scene.admission.tick(30.0, out)
    assert scene.lapses() == [Lapse(alice.node_id, OPEN, Reason.LAPSE_TOKEN)]
    scene.admission.subscribe(alice, SECRET, 31.0, out)
    scene.admission.channels_configured(ChannelConfigRegistry(), 32.0, out)
    assert scene.lapses() == [Lapse(alice.node_id, SECRET, Reason.LAPSE_UNKNOWN_CHANNEL)]
    scene.admission.channels_configured(None, 33.0, out)
    assert scene.lapses() == []
    assert scene.admission.subscribe(alice, ChannelName("anything"), 34.0, out) is None


def test_many_revocations_lead_to_a_fresh_bloom_filter() -> None:
    scene, out = Stage(max_channels_per_peer=MIN_REBUILD + 1), Output()
    alice, bob = scene.peer(1), scene.peer(2)
    scene.admission.subscribe(bob, OPEN, 0.0, out)
    for number in range(MIN_REBUILD + 1):
        scene.admission.subscribe(alice, ChannelName(f"c/{number}"), 0.0, out)
    scene.fail(alice, out)
    before = sum(byte.bit_count() for byte in scene.admission.guard.bloom)
    scene.admission.tokens_changed(30.0, out)
    assert sum(byte.bit_count() for byte in scene.admission.guard.bloom) <= 2 < before
    assert leg(scene, bob, OPEN) is None


# ── filter ──────────────────────────────────────────────────────────────────────────────────


def test_a_peer_that_leaves_its_subnet_gets_nothing_until_it_returns() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    scene.announce(alice, 1, subnet=HERE)
    assert scene.admission.subscribe(alice, LOCAL, 0.0, out) is None
    assert leg(scene, alice, LOCAL) is None
    scene.announce(alice, 1, subnet=AWAY)
    scene.admission.claims_changed(alice, 1.0, out)
    assert scene.lapses() == []
    assert leg(scene, alice, LOCAL) is Reason.FILTER_NOT_VISIBLE
    scene.announce(alice, 1, subnet=HERE)
    assert leg(scene, alice, LOCAL) is None


def test_an_expired_token_filters_at_once_and_the_roster_follows() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, SECRET, 0.0, out, token=token(entity(1), SECRET, ttl_s=2))
    assert leg(scene, alice, SECRET, 1.9) is None
    assert leg(scene, alice, SECRET, 2.0) is Reason.FILTER_TOKEN
    assert guard_says(scene, alice, SECRET) == (AuthVerdict.NEEDS_FULL_CHECK, False)
    assert leg(scene, alice, SECRET, 2.0) is Reason.FILTER_NOT_AUTHORIZED
    assert scene.roster.members(SECRET) == [alice.node_id]
    assert scene.admission.next_timer() == 2.0, "no need to wait for the interval"
    scene.admission.tick(2.0, out)
    assert scene.lapses() == [Lapse(alice.node_id, SECRET, Reason.LAPSE_TOKEN)]
    fresh = token(entity(1), SECRET, now=3)
    assert scene.admission.subscribe(alice, SECRET, 3.0, out, token=fresh) is None
    assert leg(scene, alice, SECRET, 3.0) is None


def test_without_a_sweep_the_publish_alone_filters() -> None:
    scene, out = stage(token_sweep_s=None), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, SECRET, 0.0, out, token=token(entity(1), SECRET, ttl_s=2))
    assert leg(scene, alice, SECRET, 2.0) is Reason.FILTER_TOKEN
    assert scene.admission.next_timer() is None
    scene.admission.tick(100.0, out)
    assert scene.lapses() == []
    assert scene.roster.members(SECRET) == [alice.node_id]


def test_a_hash_collision_admits_only_the_allowed_name() -> None:
    scene, out = Stage(), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, OPEN, 0.0, out)
    twin = ChannelName("twin")
    assert scene.admission.filter(alice.node_id, twin, OPEN.hash, None, 0.0) is Reason.FILTER_NOT_AUTHORIZED
    assert scene.admission.filter(alice.node_id, OPEN, OPEN.hash, None, 0.0) is None


def test_a_full_check_that_passes_is_remembered() -> None:
    scene, out = Stage(), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, OPEN, 0.0, out)
    scene.admission.guard.revoke(alice.node_id, OPEN.hash)
    assert guard_says(scene, alice, OPEN) == (AuthVerdict.NEEDS_FULL_CHECK, True)
    assert leg(scene, alice, OPEN) is None
    assert guard_says(scene, alice, OPEN) == (AuthVerdict.ALLOWED, True)


def test_a_removed_peer_is_checked_as_one_without_claims() -> None:
    scene, out = stage(), Output()
    alice = scene.peer(1)
    scene.admission.subscribe(alice, SECRET, 0.0, out, token=token(entity(1), SECRET))
    scene.peers.remove(alice.node_id)
    assert leg(scene, alice, SECRET) is Reason.FILTER_TOKEN


def test_an_admission_makes_its_own_roster_and_guard() -> None:
    one, other = (Stage().admission for _ in range(2))
    assert one.roster is not other.roster
    assert one.guard is not other.guard


def test_a_reader_is_checked_as_a_subscriber_and_is_not_in_the_roster() -> None:
    scene = stage()
    peer = scene.peer(1)
    assert scene.admission.vet(peer, OPEN, 0.0) is None
    assert scene.admission.vet(peer, SKILLED, 0.0) is Reason.REFUSE_CAPABILITY
    assert scene.admission.vet(peer, SECRET, 0.0) is Reason.REFUSE_TOKEN
    assert scene.admission.roster.count(peer.node_id) == 0
    assert scene.counters.get("refuse", "capability") == 1
    answers = [scene.admission.vet(peer, SKILLED, 0.0) for _ in range(100)]
    assert answers[-1] is Reason.REFUSE_THROTTLED


@pytest.mark.parametrize(
    ("scope", "answer"),
    [
        (Scope.SUBSCRIBE, AckReason.UNAUTHORIZED),
        (Scope.PUBLISH, AckReason.UNAUTHORIZED),
        (Scope.SUBSCRIBE | Scope.PUBLISH, AckReason.NONE),
    ],
)
def test_a_requester_must_be_allowed_to_subscribe_and_to_publish(scope: Scope, answer: AckReason) -> None:
    scene = Stage(configs(channel_config(SECRET, require_token=True)))
    peer = scene.peer(7)
    scene.tokens.insert_chain(decode_chain(token(entity(7), SECRET, scope=scope)))
    assert scene.admission.may_request(peer, SECRET, 0.0) is answer


def test_a_requester_needs_the_capabilities_of_a_publisher() -> None:
    scene = Stage(configs(channel_config(SECRET, publish_caps=CapabilityFilter(require_tags=("radar",)))))
    peer = scene.peer(7)
    assert scene.admission.may_request(peer, SECRET, 0.0) is AckReason.UNAUTHORIZED
    scene.announce(peer, 7, ["radar"])
    assert scene.admission.may_request(peer, SECRET, 0.0) is AckReason.NONE


def test_requests_are_checked_by_the_policy_of_their_channel() -> None:
    scene = stage()
    peer = scene.peer(1)
    assert scene.admission.may_request(peer, OPEN, 0.0) is AckReason.NONE
    assert scene.admission.may_request(peer, SKILLED, 0.0) is AckReason.UNAUTHORIZED
    assert scene.admission.may_request(peer, ChannelName("else"), 0.0) is AckReason.UNKNOWN_CHANNEL
