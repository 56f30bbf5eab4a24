"""Interests of peers: which channels a prefix adds, hides and removes; and both sides together over a lossy link."""

import random
from typing import Any

import pytest

from meshbus.engine.base.notices import Matched, Subscribed, Unsubscribed
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.interest_server import CHECKS_AT_ONCE, LEASE_S, MAX_INTERESTS
from meshbus.engine.session.peer import Peer
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import ChannelConfigRegistry, Visibility
from meshbus.policy.limits import FailureThrottle
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.interest import (
    Cancel,
    Interest,
    InterestMessage,
    Match,
    Matches,
    Verdict,
    decode_interest,
    encode_interest,
)
from meshbus.wire.messages.membership import Subscribe, Unsubscribe
from meshbus.wire.messages.token import Scope
from tests.engine.stage import ROOT, Stage, channel_config, configs, entity, token
from tests.seeds import for_each_seed

A, B, OTHER = ChannelName("s/a"), ChannelName("s/b"), ChannelName("t/x")
SECRET, LOCAL, SKILLED = ChannelName("s/secret"), ChannelName("s/local"), ChannelName("s/skilled")
HERE, AWAY = SubnetId.new([3]), SubnetId.new([4])
PROFILE = [Subprotocol.INTEREST]


def setting(registry: ChannelConfigRegistry | None = None, **options: object) -> tuple[Stage, Peer]:
    scene = Stage(registry, **options)  # type: ignore[arg-type]
    scene.channels.configure(registry)
    return scene, scene.peer(1, profile=PROFILE)


def publishing(*channels: ChannelName) -> tuple[Stage, Peer]:
    scene, peer = setting()
    for channel in channels:
        scene.channels.open(channel)
    return scene, peer


def policies() -> ChannelConfigRegistry:
    return configs(
        channel_config(A),
        channel_config(SECRET, require_token=True),
        channel_config(LOCAL, visibility=Visibility.SUBNET_LOCAL),
        channel_config(SKILLED, subscribe_caps=CapabilityFilter(require_tags=("s",))),
    )


def hear(scene: Stage, peer: Peer, message: InterestMessage, now: float = 0.0) -> Output:
    out = Output()
    scene.interests.receive(peer, encode_interest(message), now, out)
    return out


def told(scene: Stage, out: Output) -> list[tuple[int, InterestMessage]]:
    return [(number, decode_interest(message)) for number, message in scene.messages(out, Subprotocol.INTEREST)]


def verdicts(scene: Stage, out: Output) -> dict[ChannelName, Verdict]:
    found: dict[ChannelName, Verdict] = {}
    for _, message in told(scene, out):
        assert isinstance(message, Matches)
        found |= {match.channel: match.verdict for match in message.matches}
    return found


def test_frequently_changing_claims_are_rate_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.engine.channels.interest_server.CHECKS_AT_ONCE", 2000)
    monkeypatch.setattr("meshbus.engine.channels.interest_server.CHECKS_PER_S", 100.0)
    denied = [ChannelName(f"s/{number}") for number in range(20)]
    scene, alice = setting(configs(*(channel_config(name, require_token=True) for name in denied)))
    for req in range(10):
        hear(scene, alice, Interest(req=req, prefix="s/"))
    judged: list[ChannelName] = []
    admit = scene.admission.admit

    def counting(peer: Peer, channel: ChannelName, *given: Any, **options: Any) -> Reason | None:
        judged.append(channel)
        return admit(peer, channel, *given, **options)

    monkeypatch.setattr(scene.admission, "admit", counting)
    now = 0.0
    for _ in range(500):
        now += 0.005
        scene.interests.claims_changed(alice, now, Output())
        scene.interests.tick(now, Output())
    assert 200 <= len(judged) <= 2000 + 100 * now
    assert scene.counters.get("defer", "interest_check") > 0
    # The last change is not forgotten: it is looked at as soon as the rate allows.
    judged.clear()
    while (due := scene.interests.next_timer()) is not None and due < 60.0:
        scene.interests.tick(due, Output())
    assert len(judged) == 200


# ── what a prefix brings ────────────────────────────────────────────────────────────────────


def test_a_prefix_matches_present_and_future_channels() -> None:
    scene, alice = publishing(A, OTHER)
    out = hear(scene, alice, Interest(req=7, prefix="s/"))
    assert out.control == [Subscribed(alice.node_id, A)]
    assert told(scene, out) == [(1, Matches(req=7, matches=(Match(Verdict.ADDED, A),)))]
    out = Output()
    for channel in (B, ChannelName("t/y")):
        scene.interests.open_channel(channel, 1.0, out)
    assert out.control == [Subscribed(alice.node_id, B)]
    assert told(scene, out) == [(1, Matches(req=7, matches=(Match(Verdict.ADDED, B),)))]
    assert scene.roster.channels_of(alice.node_id) == [A, B]


def test_a_prefix_without_channels_is_answered() -> None:
    scene, alice = publishing(OTHER)
    assert told(scene, hear(scene, alice, Interest(req=7, prefix="s/"))) == [(1, Matches(req=7))]
    assert len(scene.interests) == 1


def test_the_empty_prefix_matches_all_channels_and_long_answers_take_several_messages() -> None:
    names = [ChannelName(f"{'x' * 200}/{number}") for number in range(100)]
    scene, alice = publishing(*names)
    out = hear(scene, alice, Interest(req=7, prefix=""))
    pages = [message for _, message in told(scene, out)]
    assert len(pages) > 2
    assert [match.channel for page in pages if isinstance(page, Matches) for match in page.matches] == sorted(names)


def test_members_of_a_group_share_the_events() -> None:
    scene, alice = publishing(A)
    bob = scene.peer(2, profile=PROFILE)
    for peer in (alice, bob):
        hear(scene, peer, Interest(req=7, prefix="s/", queue_group="g"))
    turns = [scene.roster.dispatch(A) for _ in range(4)]
    assert turns == [[alice.node_id], [bob.node_id]] * 2


def test_every_channel_is_checked_as_a_subscribe_and_invisible_ones_are_not_named() -> None:
    scene, alice = setting(policies(), subnet=HERE)
    out = hear(scene, alice, Interest(req=7, prefix="s/"))
    assert verdicts(scene, out) == {A: Verdict.ADDED, SECRET: Verdict.UNAUTHORIZED, SKILLED: Verdict.UNAUTHORIZED}
    assert scene.counters.snapshot()["refuse"] == {"capability": 1, "not_visible": 1, "token": 1}
    scene.announce(alice, 1, tags=["s"], subnet=HERE)
    wildcard = token(entity(1), None, Scope.SUBSCRIBE | Scope.WILDCARD)
    out = hear(scene, alice, Interest(req=8, prefix="s/", token=wildcard))
    assert set(verdicts(scene, out).values()) == {Verdict.ADDED}
    assert scene.roster.channels_of(alice.node_id) == [A, LOCAL, SECRET, SKILLED]


def test_one_channel_too_many_is_refused_by_name() -> None:
    scene, alice = setting(max_channels_per_peer=1)
    for channel in (A, B):
        scene.channels.open(channel)
    out = hear(scene, alice, Interest(req=7, prefix="s/"))
    assert verdicts(scene, out) == {A: Verdict.ADDED, B: Verdict.TOO_MANY_CHANNELS}


# ── what it loses ───────────────────────────────────────────────────────────────────────────


def test_canceling_ends_its_subscriptions_and_is_confirmed() -> None:
    scene, alice = publishing(A, B)
    hear(scene, alice, Interest(req=7, prefix="s/"))
    out = hear(scene, alice, Cancel(req=7))
    assert out.control == [Unsubscribed(alice.node_id, channel, "canceled") for channel in (A, B)]
    assert told(scene, out) == [(1, Matches(req=7))]
    assert (len(scene.roster), len(scene.interests)) == (0, 0)
    assert scene.interests.next_timer() is None
    assert told(scene, hear(scene, alice, Cancel(req=7))) == [(1, Matches(req=7))], "again, when the answer was lost"


def test_a_subscription_that_another_request_holds_is_kept() -> None:
    scene, alice = publishing(A, B)
    hear(scene, alice, Interest(req=7, prefix="s/"))
    hear(scene, alice, Interest(req=8, prefix="s/b"))
    scene.tell(alice, Subscribe(nonce=1, channel=A))
    scene.tell(alice, Unsubscribe(nonce=2, channel=B))
    assert scene.roster.channels_of(alice.node_id) == [A, B], "the interests did not end"
    hear(scene, alice, Cancel(req=7))
    assert scene.roster.channels_of(alice.node_id) == [A, B]
    hear(scene, alice, Cancel(req=8))
    assert scene.roster.channels_of(alice.node_id) == [A]


def test_a_channel_that_is_no_longer_published_is_removed() -> None:
    scene, alice = publishing(A, B)
    hear(scene, alice, Interest(req=7, prefix="s/"))
    out = Output()
    scene.interests.close_channel(A, out)
    assert out.control == [Unsubscribed(alice.node_id, A, "closed")]
    assert verdicts(scene, out) == {A: Verdict.REMOVED}


def test_an_interest_that_is_not_repeated_ends() -> None:
    scene, alice = publishing(A)
    hear(scene, alice, Interest(req=7, prefix="s/"), now=0.0)
    hear(scene, alice, Interest(req=7, prefix="s/"), now=30.0)
    out = Output()
    assert scene.interests.next_timer() == 30.0 + LEASE_S
    scene.interests.tick(30.0 + LEASE_S, out)
    assert out.control == [Unsubscribed(alice.node_id, A, "canceled")]
    assert scene.counters.get("expire", "interest") == 1


def test_a_lapsed_token_is_reported_and_a_new_one_restores_the_channel() -> None:
    scene, alice = setting(policies())
    short = token(entity(1), SECRET, ttl_s=40)
    hear(scene, alice, Interest(req=7, prefix="s/sec", token=short))
    out = Output()
    scene.admission.tick(60.0, out)
    assert [lapse.why for lapse in scene.lapses()] == [Reason.LAPSE_TOKEN]
    assert verdicts(scene, out) == {SECRET: Verdict.REMOVED}
    out = hear(scene, alice, Interest(req=7, prefix="s/sec", token=short), now=61.0)
    assert verdicts(scene, out) == {SECRET: Verdict.UNAUTHORIZED}
    out = hear(scene, alice, Interest(req=7, prefix="s/sec", token=token(entity(1), SECRET)), now=62.0)
    assert verdicts(scene, out) == {SECRET: Verdict.ADDED}
    assert len(scene.interests) == 1


def test_a_revoked_token_does_not_admit_to_new_channels() -> None:
    scene, alice = setting(policies())
    wildcard = token(entity(1), None, Scope.SUBSCRIBE | Scope.WILDCARD)
    hear(scene, alice, Interest(req=7, prefix="s/sec", token=wildcard))
    scene.tokens.revoke_below(ROOT.entity_id, 1)
    late, out = ChannelName("s/secret2"), Output()
    registry = scene.authorizer.registry
    assert registry is not None
    registry.insert(channel_config(late, require_token=True))
    scene.interests.open_channel(late, 1.0, out)
    assert verdicts(scene, out) == {late: Verdict.UNAUTHORIZED}


def test_new_claims_add_channels_that_were_refused() -> None:
    scene, alice = setting(policies(), subnet=HERE)
    hear(scene, alice, Interest(req=7, prefix="s/"))
    scene.announce(alice, 1, tags=["s"], subnet=HERE)
    out = Output()
    scene.interests.claims_changed(alice, 1.0, out)
    assert verdicts(scene, out) == {LOCAL: Verdict.ADDED, SKILLED: Verdict.ADDED}
    scene.announce(alice, 1)
    scene.services.claims_changed(alice, 2.0, out)
    assert verdicts(scene, out) == {SKILLED: Verdict.REMOVED}
    assert scene.roster.channels_of(alice.node_id) == [A, LOCAL], "what is only out of sight stays"


def test_a_token_presented_before_the_announcement_counts_after_it() -> None:
    scene, _ = setting(policies())
    bob = scene.peer(2, announced=False, profile=PROFILE)
    hear(scene, bob, Interest(req=7, prefix="s/sec", token=token(entity(2), SECRET)))
    assert scene.roster.channels_of(bob.node_id) == []
    scene.announce(bob, 2)
    out = Output()
    scene.interests.claims_changed(bob, 1.0, out)
    assert [match for _, match in told(scene, out)] == [Matches(req=7, matches=(Match(Verdict.ADDED, SECRET),))]


def test_new_configurations_add_and_remove() -> None:
    scene, alice = setting(configs(channel_config(A), channel_config(SECRET, require_token=True)))
    hear(scene, alice, Interest(req=7, prefix="s/"))
    registry = configs(channel_config(B), channel_config(SECRET))
    out = Output()
    scene.services.channels_configured(registry, 1.0, out)
    assert verdicts(scene, out) == {A: Verdict.REMOVED, B: Verdict.ADDED, SECRET: Verdict.ADDED}
    assert scene.roster.channels_of(alice.node_id) == [B, SECRET]
    scene.interests.channels_configured(None, 2.0, out)
    assert verdicts(scene, out) == {B: Verdict.REMOVED, SECRET: Verdict.REMOVED}


def test_a_failed_peer_has_no_interests() -> None:
    scene, alice = publishing(A)
    hear(scene, alice, Interest(req=7, prefix="s/"))
    out = Output()
    scene.fail(alice, out)
    scene.fail(alice, out)
    scene.interests.open_channel(B, 1.0, out)
    assert out.control == [Unsubscribed(alice.node_id, A, "silent")]
    assert (out.trains, scene.interests.next_timer()) == ([], None)


# ── again, differently, too much ────────────────────────────────────────────────────────────


def test_a_repeated_interest_is_answered_and_changes_nothing() -> None:
    scene, alice = publishing(A)
    first = hear(scene, alice, Interest(req=7, prefix="s/", queue_group="g"))
    hear(scene, alice, Interest(req=8, prefix="s/", queue_group="h"))
    again = hear(scene, alice, Interest(req=7, prefix="s/", queue_group="g"))
    assert again.control == []
    assert told(scene, first) == told(scene, again)
    assert scene.roster.groups(A) == {"h": [alice.node_id]}, "the latest decides, and a repetition is not new"


def test_a_reused_number_replaces_the_earlier_interest() -> None:
    scene, alice = publishing(A, OTHER)
    hear(scene, alice, Interest(req=7, prefix="s/"))
    out = hear(scene, alice, Interest(req=7, prefix="t/"))
    assert verdicts(scene, out) == {OTHER: Verdict.ADDED}
    assert scene.roster.channels_of(alice.node_id) == [OTHER]


def test_an_interest_counts_once_in_the_throttle() -> None:
    registry = configs(*(channel_config(f"s/{n}", require_token=True) for n in range(40)), channel_config(OTHER))
    scene, alice = setting(registry, throttle=FailureThrottle[int](2))
    hear(scene, alice, Interest(req=1, prefix="s/"))
    for _ in range(5):
        hear(scene, alice, Interest(req=1, prefix="s/"))
    hear(scene, alice, Interest(req=2, prefix="t/"))
    hear(scene, alice, Interest(req=3, prefix="s/"))
    assert not scene.admission.throttled(alice, 0.0), "one success lay between, and repetitions do not count"
    hear(scene, alice, Interest(req=4, prefix="s/"))
    out = hear(scene, alice, Interest(req=5, prefix="t/"))
    assert verdicts(scene, out) == {OTHER: Verdict.RATE_LIMITED}
    assert scene.counters.get("refuse", "throttled") == 1
    out = hear(scene, alice, Interest(req=2, prefix="t/"))
    assert verdicts(scene, out) == {OTHER: Verdict.ADDED}, "what it has, it keeps"


def test_the_number_of_interests_is_limited() -> None:
    scene, alice = publishing(A)
    for req in range(MAX_INTERESTS):
        hear(scene, alice, Interest(req=req, prefix="t/"))
    out = hear(scene, alice, Interest(req=MAX_INTERESTS, prefix="s/"))
    assert verdicts(scene, out) == {A: Verdict.TOO_MANY_CHANNELS}
    assert scene.counters.get("refuse", "too_many_interests") == 1
    out = hear(scene, alice, Interest(req=0, prefix="s/"))
    assert verdicts(scene, out) == {A: Verdict.ADDED}, "in place of one that was there"


def test_refusing_everything_does_not_reveal_an_invisible_channel() -> None:
    scene, alice = setting(policies(), subnet=HERE, throttle=FailureThrottle[int](1))
    scene.admission.note_failure(alice, 0.0)
    out = hear(scene, alice, Interest(req=1, prefix="s/"))
    assert verdicts(scene, out) == dict.fromkeys((A, SECRET, SKILLED), Verdict.RATE_LIMITED)


def test_the_work_a_peer_can_cause_is_limited() -> None:
    scene, alice = publishing(*(ChannelName(f"s/{n}") for n in range(1000)))
    bob = scene.peer(2, profile=PROFILE)
    answered = sum(bool(hear(scene, alice, Interest(req=7, prefix="s/")).trains) for _ in range(100))
    assert answered == CHECKS_AT_ONCE // 1001
    assert scene.counters.get("drop", "interest_rate") == 100 - answered
    assert hear(scene, bob, Interest(req=7, prefix="s/")).trains != []
    assert hear(scene, alice, Interest(req=7, prefix="s/"), now=1.0).trains != []


def test_signatures_count_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, alice = setting(policies())
    forged = bytearray(token(entity(1), None, Scope.SUBSCRIBE | Scope.WILDCARD))
    forged[-1] ^= 1
    for req in range(5000):
        hear(scene, alice, Interest(req=req % 9, prefix=f"x{req}", token=bytes(forged)))
    assert scene.counters.get("token", "bad_signature") == CHECKS_AT_ONCE // 21


def test_what_cannot_be_read_is_counted() -> None:
    scene, alice = publishing(A)
    out = Output()
    for bad in (b"", b"\x09", b"\x01short"):
        scene.interests.receive(alice, bad, 0.0, out)
    assert scene.counters.get("drop", "interest_malformed") == 3
    assert (out.trains, out.control) == ([], [])


def test_a_peer_without_the_profile_gets_no_answer() -> None:
    scene, alice = publishing(A)
    hear(scene, alice, Interest(req=7, prefix="s/"))
    scene.peer(1)  # a new session, in which nothing is negotiated yet
    out = Output()
    scene.interests.open_channel(B, 1.0, out)
    scene.interests.close_channel(A, out)
    assert out.trains == []
    assert scene.roster.channels_of(alice.node_id) == []


# ── both sides over a lossy line ────────────────────────────────────────────────────────────


@for_each_seed(range(10))
def test_both_sides_agree_after_packet_loss(seed: int) -> None:
    rng = random.Random(seed)
    publisher, follower = Stage(), Stage()
    subscriber, source = publisher.peer(1, profile=PROFILE), follower.peer(2, profile=PROFILE)
    publishes: set[ChannelName] = set()
    names = [ChannelName(f"s/{number}") for number in range(8)]
    out = Output()
    request: int | None = None
    events: list[Matched] = []
    for step in range(2000):
        now = step / 10
        to_follower, to_publisher = Output(), Output()
        if request is None:
            request = follower.following.follow(source, "s/", now, to_publisher)
        if now < 100:
            name = rng.choice(names)
            if name not in publishes:
                publishes.add(name)
                publisher.interests.open_channel(name, now, to_follower)
            elif rng.random() < 0.5:
                publishes.discard(name)
                publisher.interests.close_channel(name, to_follower)
        publisher.interests.tick(now, to_follower)
        follower.following.tick(now, to_publisher)
        for _, message in publisher.messages(to_follower, Subprotocol.INTEREST):
            if rng.random() > 0.3:
                follower.interests.receive(source, message, now, out)
        for _, message in follower.messages(to_publisher, Subprotocol.INTEREST):
            if rng.random() > 0.3:
                answers = Output()
                publisher.interests.receive(subscriber, message, now, answers)
                for _, answer in publisher.messages(answers, Subprotocol.INTEREST):
                    if rng.random() > 0.3:
                        follower.interests.receive(source, answer, now, out)
        matched = [event for event in out.control if isinstance(event, Matched)]
        out.control.clear()
        events += matched
        if any(event.timed_out for event in matched):
            request = None
    assert request is not None
    assert set(publisher.roster.channels_of(subscriber.node_id)) == publishes
    assert set(follower.joined.channels_of(source.node_id)) >= publishes
    assert events
