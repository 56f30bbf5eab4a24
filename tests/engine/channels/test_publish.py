"""Publish plans, legs and reports: recipients, header fields, rate limits, and failed legs."""

from typing import Any

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.channels.publish import (
    MAX_PLANS,
    Fanout,
    LegError,
    OnFailure,
    Planner,
    PublishConfig,
    PublishPlan,
    PublishReport,
    Reliability,
    settle,
)
from meshbus.engine.session.peer import Peer, PeerClaims
from meshbus.engine.session.stream import TxStream
from meshbus.errors import (
    AuthError,
    AuthFault,
    Backpressure,
    ChannelError,
    ChannelFault,
    ConfigError,
    PartialDelivery,
    PeerError,
    PeerFault,
)
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfigRegistry, Visibility
from meshbus.wire.constants import Flags
from meshbus.wire.messages.token import Scope, decode_token
from tests.engine.stage import NODE, ROOT, Stage, channel_config, configs, entity, token
from tests.vectors import load

OUTCOMES = load("policy")["on_failure_observed"]
REFILTER = load("policy")["publish_refilters_on_subnet_change"]
EMPTY = load("policy")["publish_empty_roster"]["report"]
OWN_TOKEN = load("policy")["publisher_needs_own_token"]

A, LOCAL, SECRET = ChannelName("a"), ChannelName("local"), ChannelName("lab/secret")
HERE, AWAY = SubnetId.new([3]), SubnetId.new([4])
DEFAULT = PublishConfig()


def setting(registry: ChannelConfigRegistry | None = None, **options: Any) -> tuple[Stage, Planner]:
    scene = Stage(registry, **options)
    return scene, Planner(scene.admission, scene.counters)


def join(scene: Stage, peer: Peer, channel: ChannelName = A, **options: Any) -> None:
    assert scene.admission.subscribe(peer, channel, 0.0, Output(), **options) is None


# ── configuration ───────────────────────────────────────────────────────────────────────────


def test_the_defaults() -> None:
    assert (DEFAULT.reliable, DEFAULT.reliability) == (None, None)
    assert DEFAULT.on_failure is OnFailure.BEST_EFFORT
    assert (DEFAULT.max_inflight, DEFAULT.wait_s) == (32, 5.0)


def test_reliability_has_two_spellings() -> None:
    assert PublishConfig(reliability=Reliability.RELIABLE) == PublishConfig(reliable=True)
    assert PublishConfig(reliability="fire-and-forget") == PublishConfig(reliable=False)  # type: ignore[arg-type]
    assert PublishConfig(reliable=True, reliability=Reliability.RELIABLE).reliable
    with pytest.raises(ConfigError, match="contradict"):
        PublishConfig(reliable=False, reliability=Reliability.RELIABLE)


def test_bad_values_are_named_and_a_limit_below_one_is_one() -> None:
    assert PublishConfig(max_inflight=0).max_inflight == 1
    assert PublishConfig(on_failure="collect").on_failure is OnFailure.COLLECT  # type: ignore[arg-type]
    for options, problem in [
        ({"on_failure": "never"}, "on_failure: unknown value 'never'; choose from best-effort, fail-fast, collect"),
        ({"reliability": "mostly"}, "reliability: unknown value 'mostly'"),
        ({"wait_s": -1.0}, "wait_s: must be 0 or more seconds, got -1.0"),
        ({"wait_s": float("nan")}, "wait_s: must be 0 or more seconds, got nan"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            PublishConfig(**options)  # type: ignore[arg-type]


# ── the plan ────────────────────────────────────────────────────────────────────────────────


def test_one_leg_per_subscriber_and_one_per_group() -> None:
    scene, planner = setting()
    peers = [scene.peer(number) for number in range(1, 6)]
    for peer in peers[:2]:
        join(scene, peer)
    for peer in peers[2:4]:
        join(scene, peer, queue_group="g")
    turns = [planner.plan(A, DEFAULT, 0.0).legs for _ in range(3)]
    everyone = tuple(peer.node_id for peer in peers)
    assert turns == [(*everyone[:2], everyone[2]), (*everyone[:2], everyone[3]), (*everyone[:2], everyone[2])]
    assert everyone[4] not in turns[0], "connected is not subscribed"


def test_a_channel_without_subscribers_has_no_legs() -> None:
    _, planner = setting()
    plan = planner.plan(A, DEFAULT, 0.0)
    report = settle(OnFailure.BEST_EFFORT, len(plan.legs))
    assert (report.attempted, report.delivered, list(report.errors)) == tuple(EMPTY.values())
    assert report.is_empty
    assert report.all_delivered


def test_the_header_is_that_of_the_wire() -> None:
    _, planner = setting()
    plain = planner.plan(A, DEFAULT, 0.0).header(origin_hash=5)
    assert (plain.subprotocol_id, plain.flags, plain.priority) == (0, 0, 0)
    assert (plain.subnet_id, plain.hop_ttl) == (0, 0)
    assert (plain.stream_id, plain.channel_hash, plain.origin_hash) == (A.hash | 1 << 48, A.wire_hash, 5)
    stamped = planner.plan(A, PublishConfig(reliable=True), 0.0).header(origin_hash=5, subnet_id=int(HERE), hop_ttl=8)
    assert stamped.flags == Flags.RELIABLE
    assert (stamped.subnet_id, stamped.hop_ttl) == (HERE, 8)


def test_priority_and_reliability_come_from_the_channel_and_reliability_may_be_overridden() -> None:
    _, planner = setting(configs(channel_config(A, priority=7, reliable=True)))
    assert planner.plan(A, DEFAULT, 0.0).header(origin_hash=0).flags == Flags.RELIABLE | Flags.PRIORITY
    forgetful = planner.plan(A, PublishConfig(reliable=False), 0.0)
    assert (forgetful.reliable, forgetful.priority) == (False, 7)
    assert forgetful.header(origin_hash=0).priority == 7


def test_a_publisher_without_permission_is_denied_before_anything_is_sent() -> None:
    registry = configs(channel_config(SECRET, require_token=True, publish_caps=CapabilityFilter(require_tags=("p",))))
    scene, planner = setting(registry)
    with pytest.raises(AuthError, match=r"'lab/secret'.*publish_caps and a valid PUBLISH token") as caught:
        planner.plan(SECRET, DEFAULT, 0.0)
    assert caught.value.fault is AuthFault.DENIED
    assert "denied" in OWN_TOKEN["publish_outcome"]
    assert scene.counters.get("refuse", "publish_denied") == 1
    scene.tokens.insert(decode_token(token(NODE, SECRET, Scope.PUBLISH)))
    with pytest.raises(AuthError):
        planner.plan(SECRET, DEFAULT, 0.0)
    scene.authorizer.own = PeerClaims(NODE.entity_id, CapabilitySet(["p"]))
    assert planner.plan(SECRET, DEFAULT, 0.0).legs == ()


def test_the_subnet_is_checked_at_every_publish_as_observed() -> None:
    scene, planner = setting(configs(channel_config(LOCAL, visibility=Visibility.SUBNET_LOCAL)), subnet=HERE)
    alice = scene.peer(1)
    for key, subnet in [
        ("same_subnet", HERE),
        ("after_peer_reannounces_other_subnet", AWAY),
        ("after_peer_returns", HERE),
    ]:
        scene.announce(alice, 1, subnet=subnet)
        scene.admission.claims_changed(alice, 0.0, Output())
        if key == "same_subnet":
            join(scene, alice, LOCAL)
        plan = planner.plan(LOCAL, DEFAULT, 0.0)
        assert len(plan.legs) == REFILTER[key], key
        assert plan.filtered == (() if plan.legs else ((alice.node_id, "not_visible"),))
    assert scene.counters.get("filter", "not_visible") == 1


def test_filtered_subscribers_are_named_and_in_a_group_the_next_takes_over() -> None:
    scene, planner = setting(configs(channel_config(SECRET, require_token=True)))
    scene.tokens.insert(decode_token(token(NODE, SECRET, Scope.PUBLISH)))
    alice, bob = scene.peer(1), scene.peer(2)
    join(scene, alice, SECRET, token=token(entity(1), SECRET, ttl_s=10), queue_group="g")
    join(scene, bob, SECRET, token=token(entity(2), SECRET), queue_group="g")
    assert planner.plan(SECRET, DEFAULT, 0.0).legs == (alice.node_id,)
    assert planner.plan(SECRET, DEFAULT, 0.0).legs == (bob.node_id,)
    plan = planner.plan(SECRET, DEFAULT, 10.0)
    assert plan.legs == (bob.node_id,)
    assert plan.filtered == ((alice.node_id, "token"),)
    report = settle(OnFailure.COLLECT, 1, filtered=plan.filtered)
    assert report.all_delivered
    assert report.filtered == plan.filtered
    assert scene.counters.get("filter", "token") == 1


# ── what is remembered ──────────────────────────────────────────────────────────────────────


def test_a_plan_is_cached_until_something_changes() -> None:
    scene, planner = setting()
    alice, bob = scene.peer(1), scene.peer(2)
    join(scene, alice)
    plan = planner.plan(A, DEFAULT, 0.0)
    assert planner.plan(A, DEFAULT, 1.0) is plan
    assert planner.plan(A, PublishConfig(reliable=True), 1.0).reliable
    join(scene, bob)
    assert planner.plan(A, DEFAULT, 1.0).legs == (alice.node_id, bob.node_id)
    scene.admission.guard.revoke_channel(bob.node_id, A)
    assert planner.plan(A, DEFAULT, 1.0).legs == (alice.node_id,)
    scene.fail(bob, Output())
    registry = configs(channel_config(A, priority=3))
    scene.admission.channels_configured(registry, 1.0, Output())
    assert planner.plan(A, DEFAULT, 1.0).priority == 3
    registry.insert(channel_config(A, publish_caps=CapabilityFilter(require_tags=("p",))))
    with pytest.raises(AuthError):
        planner.plan(A, DEFAULT, 1.0)
    scene.admission.channels_configured(None, 1.0, Output())
    scene.authorizer.default_visibility = Visibility.EXPORTED
    assert planner.plan(A, DEFAULT, 1.0).legs == ()


def test_plans_that_depend_on_time_claims_or_turns_are_not_cached() -> None:
    scene, planner = setting(
        configs(
            channel_config(A, visibility=Visibility.PARENT_VISIBLE),
            channel_config(LOCAL),
            channel_config(SECRET, publish_caps=CapabilityFilter(require_tags=("p",))),
        ),
        tags=["p"],
    )
    join(scene, scene.peer(1), LOCAL, queue_group="g")
    for channel in (A, LOCAL, SECRET):
        assert planner.plan(channel, DEFAULT, 0.0) is not planner.plan(channel, DEFAULT, 0.0)
    scene.authorizer.own = PeerClaims(NODE.entity_id)
    with pytest.raises(AuthError):
        planner.plan(SECRET, DEFAULT, 0.0)


def test_the_number_of_cached_plans_is_limited() -> None:
    _, planner = setting()
    first = planner.plan(A, DEFAULT, 0.0)
    for number in range(MAX_PLANS):
        planner.plan(ChannelName(f"reply/{number}"), DEFAULT, 0.0)
    assert planner.plan(A, DEFAULT, 0.0) is not first


# ── rate ────────────────────────────────────────────────────────────────────────────────────


def test_the_rate_counts_packets_of_all_legs_and_refuses_before_sending() -> None:
    scene, planner = setting(configs(channel_config(A, max_rate_pps=10)))
    for number in (1, 2):
        join(scene, scene.peer(number))
    assert len(planner.plan(A, DEFAULT, 0.0, packets=4).legs) == 2
    planner.plan(A, DEFAULT, 0.0)
    with pytest.raises(
        ChannelError, match="2 packets exceed max_rate_pps = 10 at this moment; publish more slowly"
    ) as caught:
        planner.plan(A, DEFAULT, 0.0)
    assert caught.value.fault is ChannelFault.RATE_LIMITED
    planner.plan(A, DEFAULT, 0.2)
    with pytest.raises(ChannelError, match=r"12 packets .* publish fewer events at once or raise max_rate_pps"):
        planner.plan(A, DEFAULT, 100.0, packets=6)
    assert scene.counters.get("refuse", "publish_rate") == 2
    planner.plan(A, DEFAULT, 100.0, packets=5)


def test_a_changed_rate_applies_at_once_and_each_channel_has_its_own() -> None:
    registry = ChannelConfigRegistry()
    registry.insert_prefix("", channel_config("any", max_rate_pps=1))
    scene, planner = setting(registry)
    alice = scene.peer(1)
    for channel in (A, LOCAL):
        join(scene, alice, channel)
        planner.plan(channel, DEFAULT, 0.0)
    with pytest.raises(ChannelError):
        planner.plan(A, DEFAULT, 0.0)
    registry.insert(channel_config(A, max_rate_pps=2))
    planner.plan(A, DEFAULT, 0.0)


# ── outcomes ────────────────────────────────────────────────────────────────────────────────

STALLED = Backpressure(90, 1088)


def plan_for(*legs: int) -> PublishPlan:
    return PublishPlan(A, A.hash, legs)


def fan_out(config: PublishConfig, legs: tuple[int, ...], failing: set[int]) -> tuple[Fanout, list[int]]:
    """Run every leg to its end, in order."""
    fanout, tried = Fanout(plan_for(*legs), config), []
    while not fanout.done:
        for node_id in fanout.start():
            tried.append(node_id)
            if node_id in failing:
                fanout.failed(node_id, STALLED)
            else:
                fanout.delivered(node_id)
    return fanout, tried


def told(report: PublishReport) -> dict[str, Any]:
    return {"attempted": report.attempted, "delivered": report.delivered, "errors": len(report.errors)}


def seen(outcome: dict[str, Any]) -> dict[str, Any]:
    return {**outcome["report"], "errors": len(outcome["report"]["errors"])}


def test_failed_legs_mean_what_was_observed() -> None:
    outcomes = OUTCOMES["outcomes"]
    for name, policy in (("collect", OnFailure.COLLECT), ("fail_fast", OnFailure.FAIL_FAST)):
        fanout, _ = fan_out(PublishConfig(on_failure=policy), (1,), {1})
        assert told(fanout.report()) == seen(outcomes[name])
        assert fanout.report().errors == (LegError(1, "backpressure", str(STALLED)),)
    fanout, _ = fan_out(DEFAULT, (1,), {1})
    with pytest.raises(
        PartialDelivery, match=r"0 of 1 subscribers reached: every peer failed; the first was 0+1: "
    ) as all_:
        fanout.report()
    assert "all 1 peers failed" in outcomes["best_effort"]["text"]
    assert isinstance(all_.value.report, PublishReport)
    assert told(all_.value.report) == {"attempted": 1, "delivered": 0, "errors": 1}
    fanout, _ = fan_out(DEFAULT, (1, 2), {1})
    assert told(fanout.report()) == seen(outcomes["best_effort_with_one_healthy_peer"])
    assert not fanout.report().all_delivered


def test_a_window_without_grants_takes_as_many_packets_as_observed() -> None:
    stream = TxStream(A.stream_id)
    sent = 0
    while stream.admits(1004 + 84):
        stream.take(1, 1004)
        sent += 1
    assert sent == OUTCOMES["publishes_before_backpressure_1000B"]


def test_fail_fast_goes_one_by_one_and_skips_the_rest() -> None:
    fanout, tried = fan_out(PublishConfig(on_failure=OnFailure.FAIL_FAST), (1, 2, 3, 4), {3})
    assert tried == [1, 2, 3]
    assert told(fanout.report()) == {"attempted": 3, "delivered": 2, "errors": 1}


@pytest.mark.parametrize("policy", [OnFailure.COLLECT, OnFailure.BEST_EFFORT])
def test_the_other_modes_attempt_every_subscriber(policy: OnFailure) -> None:
    fanout, tried = fan_out(PublishConfig(on_failure=policy), (1, 2, 3, 4), {1, 3})
    assert tried == [1, 2, 3, 4]
    report = fanout.report()
    assert told(report) == {"attempted": 4, "delivered": 2, "errors": 2}
    assert [error.node_id for error in report.errors] == [1, 3]


def test_the_number_of_legs_in_flight_is_limited() -> None:
    fanout = Fanout(plan_for(*range(5)), PublishConfig(max_inflight=2))
    assert fanout.start() == [0, 1]
    assert fanout.start() == []
    fanout.delivered(1)
    assert fanout.start() == [2]
    fanout.failed(0, PeerError(PeerFault.UNREACHABLE, 0))
    fanout.delivered(2)
    assert fanout.start() == [3, 4]
    for leg, done in ((3, False), (4, True)):
        fanout.delivered(leg)
        assert fanout.done == done
    assert fanout.report().errors == (LegError(0, "peer", "peer 0000000000000000 is unreachable"),)


def test_an_empty_fan_out_is_done_at_once() -> None:
    fanout = Fanout(plan_for(), DEFAULT)
    assert fanout.done
    assert fanout.start() == []
    assert fanout.report() == PublishReport(0, 0)


def test_the_trusted_root_of_the_stage_is_not_a_publisher() -> None:
    scene, planner = setting(configs(channel_config(SECRET, require_token=True)))
    scene.tokens.insert(decode_token(token(ROOT, SECRET, Scope.PUBLISH)))
    with pytest.raises(AuthError):
        planner.plan(SECRET, DEFAULT, 0.0)
