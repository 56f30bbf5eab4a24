"""One node as a whole: sessions, channels, requests, prefixes, opaque ids, and peers that come and leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshbus.engine.base.notices import (
    Acked,
    DownReason,
    EndReason,
    HandshakeFailed,
    Matched,
    Negotiated,
    PeerFailed,
    PeerGone,
    PeerRecovered,
    Replied,
    Requested,
    RequestEnded,
    RequestFailed,
    RequestFault,
    SessionUp,
    Subscribed,
    Unsubscribed,
)
from meshbus.engine.channels.publish import PublishConfig
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.settings import PROFILE_WINDOW, LivenessConfig, OpaqueMode
from meshbus.errors import AuthError, ChannelError, HandshakeFault, LocalProtocolError, PeerError
from meshbus.names.channel import ChannelName
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import STREAM_WINDOW, Subprotocol
from meshbus.wire.frames import columns_of
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.request import Request, encode_request
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain
from tests.engine.fleet import CHANNEL, Wiretap, numbered, pair, subscribed

QUICK = LivenessConfig(heartbeat_s=0.1, session_timeout_s=0.3)


def configs(*entries: ChannelConfig) -> ChannelConfigRegistry:
    registry = ChannelConfigRegistry()
    for entry in entries:
        registry.insert(entry)
    return registry


def configure(node: FakeNode, *entries: ChannelConfig) -> None:
    with node.turn() as (engine, now, out):
        engine.set_channel_configs(configs(*entries), now, out)


# ── sessions ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("routed", [True, False])
def test_two_nodes_meet_and_agree(routed: bool) -> None:
    net = FakeNet()
    left, right = net.create("left"), net.create("right")
    right.engine.handshakes.accept(left.node_id)
    left.connect(right, routed=routed)
    net.run_until(lambda: left.speaks_profile_with(right))
    assert [up.initiated for up in left.happened(SessionUp)] == [True]
    assert [up.initiated for up in right.happened(SessionUp)] == [False]
    assert left.happened(SessionUp)[0].session_id == right.happened(SessionUp)[0].session_id
    for node, other in ((left, right), (right, left)):
        (agreed,) = node.happened(Negotiated)
        assert agreed.node_id == other.node_id
        assert {Subprotocol.RELIABLE, Subprotocol.INTEREST, Subprotocol.REQUEST} <= agreed.compatible


def test_both_may_begin_at_once_and_end_with_one_session() -> None:
    net = FakeNet()
    left, right = net.create("left"), net.create("right")
    left.connect(right)
    right.connect(left)
    net.run_until(lambda: left.speaks_profile_with(right))
    net.run(for_s=40)
    assert left.speaks_profile_with(right)
    subscribed(left, right)
    right.publish(CHANNEL, [b"x"])
    net.run(for_s=1)
    assert left.payloads() == [b"x"]


def test_an_unreachable_node_is_a_failure_with_a_reason() -> None:
    net = FakeNet()
    left, right = net.create("left"), net.create("right")
    net.remove("right")
    left.connect(right)
    net.run(for_s=20)
    (failed,) = left.happened(HandshakeFailed)
    assert (failed.node_id, failed.fault) == (right.node_id, HandshakeFault.TIMEOUT)
    assert "right" in failed.problem


def test_a_node_that_falls_silent_is_failed_then_recovers_with_its_subscriptions() -> None:
    net, left, right = pair(left={"liveness": QUICK}, right={"liveness": QUICK})
    subscribed(left, right)
    net.partition(["left"], ["right"])
    net.run(for_s=2)
    assert [failed.reason for failed in right.happened(PeerFailed)] == [DownReason.SILENT]
    assert [gone.reason for gone in right.happened(Unsubscribed)] == ["silent"]
    assert right.publish(CHANNEL, [b"lost"]).report().is_empty
    net.heal()
    net.run(for_s=1)
    assert right.happened(PeerRecovered)
    assert right.publish(CHANNEL, [b"found"]).report().delivered == 1
    net.run(for_s=1)
    assert left.payloads() == [b"found"]


def test_a_peer_that_stays_away_is_removed_and_a_new_session_brings_everything_back() -> None:
    net, left, right = pair(left={"liveness": QUICK}, right={"liveness": QUICK})
    subscribed(left, right)
    net.partition(["left"], ["right"])
    net.run(for_s=15)
    assert [gone.reason for gone in right.happened(PeerGone)] == [DownReason.EVICTED]
    assert [gone.reason for gone in left.happened(PeerGone)] == [DownReason.EVICTED]
    net.heal()
    left.connect(right)
    net.run(for_s=3)
    right.publish(CHANNEL, [b"back"])
    net.run(for_s=1)
    assert left.payloads() == [b"back"]


def test_disconnect_forgets_a_peer_at_once() -> None:
    net, left, right = pair()
    subscribed(right, left)
    with left.turn() as (engine, now, out):
        engine.disconnect(right.node_id, now, out)
        engine.disconnect(right.node_id, now, out)  # twice is fine
    assert [gone.reason for gone in left.happened(PeerGone)] == [DownReason.CLOSED]
    assert [gone.reason for gone in left.happened(Unsubscribed)] == ["closed"]
    assert left.engine.peers.get(right.node_id) is None
    assert left.publish(CHANNEL, [b"x"]).report().is_empty
    with pytest.raises(PeerError):
        left.subscribe(right, CHANNEL)
    net.run(for_s=6)
    assert [gone.reason for gone in right.happened(PeerGone)] == [DownReason.LEFT]
    left.connect(right)
    net.run_until(lambda: left.speaks_profile_with(right))


def test_a_restarted_node_takes_its_place_again() -> None:
    net, left, right = pair()
    subscribed(left, right)
    identity = right.engine.identity
    net.remove("right")
    net.run(for_s=1)
    reborn = net.create("right", identity=identity)
    reborn.connect(left)
    net.run_until(lambda: left.speaks_profile_with(reborn))
    net.run(for_s=1)
    assert reborn.happened(Subscribed) == [Subscribed(left.node_id, ChannelName(CHANNEL))]
    reborn.publish(CHANNEL, [b"again"], reliable=True)
    net.run(for_s=1)
    assert left.payloads() == [b"again"]


# ── channels ────────────────────────────────────────────────────────────────────────────────


def test_subscribe_publish_unsubscribe() -> None:
    net, left, right = pair()
    request = left.subscribe(right, CHANNEL)
    net.run(for_s=0.1)
    assert left.happened(Acked) == [Acked(request, right.node_id, ChannelName(CHANNEL), accepted=True)]
    assert right.happened(Subscribed) == [Subscribed(left.node_id, ChannelName(CHANNEL))]

    report = right.publish(CHANNEL, [b"one", b"", b"three"]).report()
    assert (report.attempted, report.delivered, report.errors) == (1, 1, ())
    net.run(for_s=0.1)
    (batch,) = left.events
    assert [event.payload for event in batch] == [b"one", b"", b"three"]
    assert (batch.channel, batch.publisher) == (CHANNEL, right.node_id)
    assert batch.origin_hash == right.engine.identity.origin_hash
    assert batch.pub_seq is None  # nobody can know which were lost
    assert batch.received_ns == net.clock.wall(net.clock.now - 0.1 + 0.001)

    with left.turn() as (engine, now, out):
        engine.unsubscribe(right.node_id, ChannelName(CHANNEL), now, out)
    net.run(for_s=0.1)
    assert left.happened(Acked)[-1].accepted
    assert right.happened(Unsubscribed) == [Unsubscribed(left.node_id, ChannelName(CHANNEL), "asked")]
    assert right.publish(CHANNEL, [b"four"]).report().is_empty


def test_events_that_overtake_the_ack_are_not_lost() -> None:
    net, left, right = pair()
    left.subscribe(right, CHANNEL)
    net.run_until(lambda: bool(right.happened(Subscribed)))
    right.publish(CHANNEL, [b"first"])
    net.run(for_s=0.1)
    assert left.payloads(CHANNEL) == [b"first"]


def test_events_of_a_channel_without_a_subscription_are_dropped_and_counted() -> None:
    net, left, right = pair()
    subscribed(left, right)
    with left.turn() as (engine, now, out):
        engine.unsubscribe(right.node_id, ChannelName(CHANNEL), now, out)
        out.trains.clear()  # the word is lost
    right.publish(CHANNEL, [b"a", b"b"])
    right.publish(CHANNEL, [b"c"], reliable=True)
    net.run(for_s=1)
    assert left.events == []
    assert left.engine.counters.get("drop", "not_subscribed") == 3
    # They were confirmed all the same: the publisher is not held up by someone who left.
    assert right.engine.peers.require(left.node_id).tx_stream(ChannelName(CHANNEL).stream_id).credit == PROFILE_WINDOW


def test_a_refusal_has_its_reason() -> None:
    net, left, right = pair()
    configure(right, ChannelConfig(name=ChannelName("known")))
    request = left.subscribe(right, "unknown")
    net.run(for_s=0.1)
    (acked,) = left.happened(Acked)
    assert acked == Acked(request, right.node_id, ChannelName("unknown"), False, AckReason.UNKNOWN_CHANNEL)
    assert right.engine.counters.get("refuse", "unknown_channel") == 1


def test_no_answer_is_an_outcome_too() -> None:
    net, left, right = pair()
    net.partition(["left"], ["right"])
    request = left.subscribe(right, CHANNEL)
    net.run(for_s=4.9)
    assert left.happened(Acked) == []
    net.run(for_s=0.2)
    (acked,) = left.happened(Acked)
    assert (acked.request, acked.accepted, acked.timed_out) == (request, False, True)


def test_channel_configurations_hold_at_once_for_those_who_are_in() -> None:
    net, left, right = pair()
    subscribed(left, right)
    configure(right, ChannelConfig(name=ChannelName(CHANNEL), subscribe_caps=CapabilityFilter(require_tags=("gpu",))))
    assert [gone.reason for gone in right.happened(Unsubscribed)] == ["capability"]
    assert right.publish(CHANNEL, [b"x"]).report().is_empty
    with left.turn() as (engine, now, out):
        engine.announce(CapabilitySet(["gpu"]), now, out)
    net.run(for_s=11)  # two announcements are at least ten seconds apart
    subscribed(left, right)


def test_publishing_is_refused_before_anything_is_sent() -> None:
    net, left, right = pair()
    subscribed(right, left)
    tap = Wiretap(net)
    configure(left, ChannelConfig(name=ChannelName(CHANNEL), publish_caps=CapabilityFilter(require_tags=("gpu",))))
    with pytest.raises(AuthError, match="may not publish"):
        left.publish(CHANNEL, [b"x"])
    with pytest.raises(LocalProtocolError, match="too large"):
        left.publish(CHANNEL, [bytes((16 << 20) + 1)])
    configure(left, ChannelConfig(name=ChannelName(CHANNEL), max_rate_pps=1))
    left.publish(CHANNEL, [b"x"])
    with pytest.raises(ChannelError, match="max_rate_pps"):
        left.publish(CHANNEL, [b"x"])
    assert len(tap.data()) == 1


def test_every_size_arrives_intact() -> None:
    net, left, right = pair()
    subscribed(left, right)
    rng = np.random.default_rng(3)
    events = [rng.bytes(size) for size in (0, 1, 3, 4, 100, 1400, 4052, 8103, 8104)] * 5
    for reliable in (False, True):
        left.forget()
        right.publish(CHANNEL, events, reliable=reliable)
        net.run(for_s=2)
        assert left.payloads() == events


# ── reliable and plain ──────────────────────────────────────────────────────────────────────


def test_reliable_events_carry_the_publishers_numbers() -> None:
    net, left, right = pair()
    subscribed(left, right)
    right.publish(CHANNEL, numbered(10), reliable=True)
    right.publish(CHANNEL, numbered(5))
    right.publish(CHANNEL, numbered(10), reliable=True)
    net.run(for_s=1)
    first = next(batch.pub_seq for batch in left.events if batch.pub_seq is not None)
    numbers = [event.pub_seq for batch in left.events for event in batch if event.pub_seq is not None]
    assert numbers == [*range(first, first + 10), *range(first + 15, first + 25)]
    assert sum(event.pub_seq is None for batch in left.events for event in batch) == 5


def test_numbers_continue_after_a_restart() -> None:
    net, left, right = pair()
    subscribed(left, right)
    right.publish(CHANNEL, numbered(3), reliable=True)
    net.run(for_s=1)
    (before,) = [batch.pub_seq for batch in left.events]
    identity = right.engine.identity
    net.remove("right")
    reborn = net.create("right", identity=identity)
    reborn.connect(left)
    net.run_until(lambda: left.speaks_profile_with(reborn))
    net.run(for_s=1)
    left.forget()
    reborn.publish(CHANNEL, numbered(1), reliable=True)
    net.run(for_s=1)
    (after,) = [batch.pub_seq for batch in left.events]
    assert before is not None
    assert after is not None
    assert after >= before + 3


def test_the_window_widens_with_the_agreement_and_narrows_without() -> None:
    net, left, right = pair(left={"window": 100_000})
    for node, other, window in ((left, right, 100_000), (right, left, PROFILE_WINDOW)):
        peer = node.engine.peers.require(other.node_id)
        assert peer.window == window
        assert peer.tx_stream(77).window == window
    net.remove("right")
    plain = net.create("right", identity=right.engine.identity, profile=False)
    plain.connect(left)
    net.run_until(lambda: left.has_session_with(plain))
    net.run(for_s=5)
    peer = left.engine.peers.require(plain.node_id)
    assert not peer.negotiated.compatible
    assert peer.window == STREAM_WINDOW
    assert peer.tx_stream(77).window == STREAM_WINDOW
    assert left.happened(Negotiated)[-1].compatible == frozenset()


# ── opaque ids ──────────────────────────────────────────────────────────────────────────────

VENDOR, UNKNOWN = 0x9999, 0x0900


def say(node: FakeNode, other: FakeNode, subprotocol_id: int, message: bytes, **options: Any) -> None:
    with node.turn() as (engine, _now, out):
        engine.peers.require(other.node_id).send_message(subprotocol_id, message, out, **options)


@pytest.mark.parametrize(
    ("mode", "delivered"), [(OpaqueMode.STRICT, [VENDOR]), (OpaqueMode.COMPATIBLE, [UNKNOWN, VENDOR])]
)
def test_unknown_ids_are_tagged_or_dropped_and_never_mixed_with_events(mode: OpaqueMode, delivered: list[int]) -> None:
    net, left, right = pair(left={"opaque": mode})
    subscribed(left, right)
    stream_id = ChannelName(CHANNEL).stream_id
    say(right, left, UNKNOWN, b"u")
    say(right, left, VENDOR, b"v", stream_id=stream_id)  # even on the stream of a channel we joined
    right.publish(CHANNEL, [b"event"])
    net.run(for_s=0.1)
    assert left.payloads(CHANNEL) == [b"event"]
    assert sorted(batch.subprotocol_id for batch in left.events if batch.channel is None) == delivered
    assert left.engine.counters.get("opaque", "unknown_subprotocol") == len(delivered)
    assert left.engine.counters.get("drop", "unknown_subprotocol") == 2 - len(delivered)


def test_profile_messages_without_an_agreement_are_dropped() -> None:
    net, left, right = pair(right={"profile": False})
    left.engine.requests.responder.serve(ChannelName("planner/plan"))
    question = encode_request(Request(req=1, deadline_ms=1000, channel=ChannelName("planner/plan"), payload=b"?"))
    say(right, left, Subprotocol.REQUEST, question)
    net.run(for_s=0.1)
    assert left.engine.counters.get("drop", "not_negotiated") == 1
    assert left.happened(Requested) == []
    assert left.events == []


def test_a_plain_sender_is_owed_credit_for_what_is_dropped() -> None:
    net, left, right = pair(right={"profile": False})
    tap = Wiretap(net)
    say(right, left, UNKNOWN, b"u", stream_id=5)
    net.run(for_s=0.1)
    assert tap.messages(Subprotocol.STREAM_WINDOW, left, right) == 1


def test_plain_events_without_a_channel_are_delivered_as_such() -> None:
    net, left, right = pair()
    say(right, left, Subprotocol.EVENTS, b"raw", stream_id=0)
    net.run(for_s=0.1)
    (batch,) = left.events
    assert (batch.channel, batch.stream_id, batch.payloads()) == (None, 0, [b"raw"])


def test_packets_of_strangers_for_others_are_dropped_and_counted() -> None:
    net, left, right = pair()
    third = net.create("third")
    with third.turn() as (engine, now, out):
        engine.connect(right.node_id, "left", right.engine.public_key, now, out)
    net.run(for_s=0.1)
    assert left.engine.counters.get("drop", "transit_stranger") == 1


# ── request and reply ───────────────────────────────────────────────────────────────────────


def ask(node: FakeNode, other: FakeNode, channel: str, payload: bytes, timeout_s: float = 2.0) -> int:
    with node.turn() as (engine, now, out):
        peer = engine.peers.require(other.node_id)
        return engine.requests.requester.ask(peer, ChannelName(channel), payload, now, out, timeout_s=timeout_s)


def test_request_and_reply_through_the_engines() -> None:
    net, left, right = pair()
    right.engine.requests.responder.serve(ChannelName("planner/plan"))
    request = ask(left, right, "planner/plan", b"where to?")
    net.run(for_s=0.1)
    (asked,) = right.happened(Requested)
    assert (asked.node_id, asked.channel, asked.payload) == (left.node_id, "planner/plan", b"where to?")
    with right.turn() as (engine, now, out):
        assert engine.requests.responder.reply(left.node_id, asked.request, b"left", now, out, last=False)
        assert engine.requests.responder.reply(left.node_id, asked.request, b"then right", now, out)
    net.run(for_s=0.1)
    assert left.happened(Replied) == [
        Replied(request, right.node_id, b"left", last=False),
        Replied(request, right.node_id, b"then right", last=True),
    ]
    assert left.events == []
    assert right.events == []


def test_a_missing_responder_is_named_at_once() -> None:
    net, left, right = pair()
    request = ask(left, right, "planner/plan", b"?")
    net.run(for_s=0.05)
    (failed,) = left.happened(RequestFailed)
    assert (failed.request, failed.fault, failed.channel) == (request, RequestFault.NO_RESPONDER, "planner/plan")


def test_a_request_follows_the_policy_of_the_channel() -> None:
    net, left, right = pair()
    configure(
        right,
        ChannelConfig(name=ChannelName("planner/plan"), subscribe_caps=CapabilityFilter(require_tags=("gpu",))),
    )
    right.engine.requests.responder.serve(ChannelName("planner/plan"))
    ask(left, right, "planner/plan", b"?")
    net.run(for_s=0.05)
    assert [failed.fault for failed in left.happened(RequestFailed)] == [RequestFault.DENIED]
    assert right.happened(Requested) == []


def test_requests_end_with_the_peer() -> None:
    net, left, right = pair()
    right.engine.requests.responder.serve(ChannelName("slow"))
    ask(left, right, "slow", b"?", timeout_s=100)
    net.run(for_s=0.1)
    for node, other in ((left, right), (right, left)):
        with node.turn() as (engine, now, out):
            engine.disconnect(other.node_id, now, out)
    assert [failed.fault for failed in left.happened(RequestFailed)] == [RequestFault.PEER_GONE]
    assert [ended.reason for ended in right.happened(RequestEnded)] == [EndReason.PEER_GONE]


def test_a_plain_peer_takes_no_requests() -> None:
    _, left, right = pair(right={"profile": False})
    with pytest.raises(PeerError, match="does not accept requests"):
        ask(left, right, "planner/plan", b"?")


# ── prefixes ────────────────────────────────────────────────────────────────────────────────


def follow(node: FakeNode, other: FakeNode, prefix: str, **options: Any) -> int:
    with node.turn() as (engine, now, out):
        return engine.interest(other.node_id, prefix, now, out, **options)


def open_channel(node: FakeNode, channel: str) -> None:
    with node.turn() as (engine, now, out):
        engine.open_channel(ChannelName(channel), now, out)


def test_a_prefix_brings_the_channels_under_it_now_and_later() -> None:
    net, left, right = pair()
    open_channel(right, "sensors/lidar")
    open_channel(right, "motors/left")
    request = follow(left, right, "sensors/")
    net.run(for_s=0.1)
    assert left.happened(Matched) == [Matched(request, right.node_id, added=(ChannelName("sensors/lidar"),))]
    open_channel(right, "sensors/radar")
    net.run(for_s=0.1)
    assert left.happened(Matched)[-1].added == (ChannelName("sensors/radar"),)
    for channel in ("sensors/lidar", "sensors/radar", "motors/left"):
        right.publish(channel, [channel.encode()])
    net.run(for_s=0.1)
    assert left.payloads() == [b"sensors/lidar", b"sensors/radar"]

    with right.turn() as (engine, now, out):
        engine.close_channel(ChannelName("sensors/radar"), out)
    net.run(for_s=0.1)
    assert left.happened(Matched)[-1].removed == (ChannelName("sensors/radar"),)
    with left.turn() as (engine, now, out):
        assert engine.following.unfollow(right.node_id, request, now, out)
        assert not engine.following.unfollow(right.node_id, request, now, out)
    net.run(for_s=0.1)
    assert right.publish("sensors/lidar", [b"x"]).report().is_empty


def test_configured_channels_appear_and_vanish_with_the_configuration() -> None:
    net, left, right = pair()
    follow(left, right, "")
    net.run(for_s=0.1)
    configure(right, ChannelConfig(name=ChannelName("a/b")))
    net.run(for_s=0.1)
    assert left.happened(Matched)[-1].added == (ChannelName("a/b"),)
    configure(right)
    net.run(for_s=0.1)
    assert left.happened(Matched)[-1].removed == (ChannelName("a/b"),)


def test_followers_are_judged_anew_with_the_configuration_and_with_their_claims() -> None:
    net, left, right = pair()
    open_channel(right, CHANNEL)
    follow(left, right, "sensors/")
    net.run(for_s=0.1)
    needs_gpu = CapabilityFilter(require_tags=("gpu",))
    configure(right, ChannelConfig(name=ChannelName(CHANNEL), subscribe_caps=needs_gpu))
    net.run(for_s=0.1)
    assert left.happened(Matched)[-1].removed == (ChannelName(CHANNEL),)
    assert right.publish(CHANNEL, [b"x"]).report().is_empty
    with left.turn() as (engine, now, out):
        engine.announce(CapabilitySet(["gpu"]), now, out)
    net.run(for_s=11)
    assert left.happened(Matched)[-1].added == (ChannelName(CHANNEL),)
    assert right.publish(CHANNEL, [b"x"]).report().delivered == 1


def test_the_interests_of_a_peer_that_left_are_forgotten() -> None:
    net, left, right = pair()
    follow(left, right, "sensors/")
    net.run(for_s=0.1)
    assert len(right.engine.interests) == 1
    with right.turn() as (engine, now, out):
        engine.disconnect(left.node_id, now, out)
    assert len(right.engine.interests) == 0


def test_revoked_tokens_shut_followers_out() -> None:
    net, left, right = pair()
    configure(right, ChannelConfig(name=ChannelName(CHANNEL), require_token=True))
    unix = net.clock.wall(net.clock.now) / 1e9
    issuer = right.engine.identity
    token = PermissionToken.issue(
        issuer, left.engine.identity.entity_id, Scope.SUBSCRIBE, CHANNEL, ttl_s=1000, now=unix, entropy=bytes
    )
    follow(left, right, "sensors/", token=encode_chain([token]))
    net.run(for_s=0.1)
    assert left.happened(Matched)[-1].added == (ChannelName(CHANNEL),)
    with right.turn() as (engine, now, out):
        engine.tokens.revoke_below(issuer.entity_id, 1)
        engine.recheck(now, out)
    net.run(for_s=0.1)
    assert left.happened(Matched)[-1].removed == (ChannelName(CHANNEL),)
    assert [gone.reason for gone in right.happened(Unsubscribed)] == ["token"]


def test_a_prefix_is_followed_again_after_a_new_session() -> None:
    net, left, right = pair()
    follow(left, right, "sensors/")
    net.run(for_s=0.1)
    net.remove("right")
    reborn = net.create("right", identity=right.engine.identity)
    open_channel(reborn, "sensors/lidar")
    reborn.connect(left)
    net.run_until(lambda: left.speaks_profile_with(reborn))
    net.run(for_s=1)
    reborn.publish("sensors/lidar", [b"again"])
    net.run(for_s=0.1)
    assert left.payloads("sensors/lidar") == [b"again"]


def test_a_lost_name_loses_no_reliable_event() -> None:
    net, left, right = pair()
    follow(left, right, "sensors/")
    net.run(for_s=0.1)
    with right.turn() as (engine, now, out):
        engine.open_channel(ChannelName("sensors/lidar"), now, out)
        out.trains.clear()  # the news is lost
    right.publish("sensors/lidar", [b"plain"])
    right.publish("sensors/lidar", numbered(3), reliable=True)
    net.run(for_s=5)
    assert left.payloads("sensors/lidar") == numbered(3)
    assert left.engine.counters.get("drop", "unnamed") >= 4
    assert left.engine.counters.get("drop", "not_subscribed") == 0


def test_a_plain_peer_cannot_be_followed() -> None:
    _, left, right = pair(right={"profile": False})
    with pytest.raises(LocalProtocolError, match="one by one"):
        follow(left, right, "sensors/")


# ── time ────────────────────────────────────────────────────────────────────────────────────


def test_timers_always_lie_ahead_after_a_tick() -> None:
    net, left, right = pair()
    subscribed(left, right)
    right.publish(CHANNEL, numbered(100), reliable=True)
    for _ in range(500):
        net.run(for_s=0.01)
        for node in (left, right):
            timer = node.engine.next_timer()
            assert timer is not None
            assert timer > net.clock.now


def test_a_quiet_network_stays_quiet() -> None:
    net, left, right = pair()
    subscribed(left, right)
    right.publish(CHANNEL, numbered(100), reliable=True)
    net.run(for_s=20)
    tap = Wiretap(net)
    net.run(for_s=10)
    # Heartbeats and pingwaves only: two of each from both sides.
    assert len(tap.datagrams) == 8
    assert tap.headers() == []


def test_a_peer_that_is_configured_as_plain_is_treated_so() -> None:
    net = FakeNet()
    left, right = net.create("left"), net.create("right")
    tap = Wiretap(net)
    left.connect(right, profile=Profile.PLAIN)
    net.run_until(lambda: left.has_session_with(right))
    subscribed(right, left)
    left.publish(CHANNEL, [b"x"], reliable=True)
    net.run(for_s=10)
    assert right.payloads() == [b"x"]
    plain = {Subprotocol.EVENTS, Subprotocol.MEMBERSHIP, Subprotocol.CAPABILITY, Subprotocol.REFLEX, 0x0B00}
    assert tap.ids(left, right) <= plain


def test_a_publication_without_events_is_delivered_at_once() -> None:
    net, left, right = pair()
    subscribed(left, right)
    tap = Wiretap(net)
    with right.turn() as (engine, now, out):
        publication = engine.publish(ChannelName(CHANNEL), *columns_of([]), PublishConfig(), now, out)
    assert publication.done
    assert publication.report().delivered == 1
    assert tap.data() == []


def test_a_single_datagram_is_handled_like_a_batch_of_one() -> None:
    _, left, right = pair()
    subscribed(left, right)
    with right.turn() as (engine, now, out):
        engine.publications.publish_one(ChannelName(CHANNEL), b"x", PublishConfig(), now, out)
        (train,) = out.trains
        out.trains = []
    with left.turn() as (engine, now, _):
        datagram = memoryview(bytes(train.data))
        (batch,) = engine.receive_one(right.name, datagram, now).events
        assert (batch.payloads(), batch.channel, batch.publisher) == ([b"x"], CHANNEL, right.node_id)
        assert not engine.receive_one(right.name, datagram, now).events
        assert engine.counters.get(*Reason.REPLAYED.counter) == 1
