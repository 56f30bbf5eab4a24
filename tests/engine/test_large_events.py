"""Large events between nodes: with loss, beside small ones, through relays and gateways, and never to plain peers."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from meshbus.engine.base.notices import Replied, Requested, RequestFailed
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.settings import GatewayConfig
from meshbus.engine.streams.partslice import SLICE_PARTS
from meshbus.engine.streams.reorder import DEFAULT_BUDGET
from meshbus.engine.streams.traffic import LARGE_FLIGHT
from meshbus.errors import LocalProtocolError, PartialDelivery
from meshbus.names.channel import ChannelName
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, LargeEvents, Visibility
from meshbus.policy.reason import Reason
from meshbus.policy.registry import NegotiatedSet
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import DEFAULT_LARGE_EVENT, MAX_LARGE_EVENT, Subprotocol
from tests.engine.fleet import CHANNEL, Wiretap, meet, pair, subscribed
from tests.seeds import for_each_seed

POSES = "poses"
BAD = FakePath(loss=0.05, reordering=0.05, jitter_s=0.002)


def configure(node: FakeNode, **settings: Any) -> None:
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName(CHANNEL), **settings))
    with node.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)


def mixed(rng: random.Random, count: int) -> list[bytes]:
    sizes = rng.choices([0, 10, 1000, 8104, 8105, 20_000, 200_000], k=count)
    return [rng.randbytes(size) for size in sizes]


# ── every event, byte for byte ──────────────────────────────────────────────────────────────


def assert_large_and_small_arrive_in_order_through_loss(seed: int) -> None:
    rng = random.Random(seed)
    net, left, right = pair(seed, path=BAD, left={"max_payload": rng.choice([1300, 8090])})
    subscribed(right, left)
    subscribed(right, left, POSES)
    events, poses = mixed(rng, 30), [b"%d" % number for number in range(40)]
    rest, sent = list(events), list(poses)
    while rest or sent:
        if rest:
            batch, rest = rest[: (cut := rng.randint(1, 8))], rest[cut:]
            left.publish(CHANNEL, batch, reliable=True, wait_s=600.0)
        if sent:
            left.publish(POSES, [sent.pop(0)], reliable=True)
        net.run(for_s=rng.choice([0.001, 0.02]))
    net.run_until(lambda: sum(map(len, right.events)) == len(events) + len(poses), timeout_s=600)
    assert right.payloads(CHANNEL) == events
    assert right.payloads(POSES) == poses
    numbers = [batch.pub_seq + n for batch in right.events if batch.channel == CHANNEL for n in range(len(batch))]  # type: ignore[operator]
    assert [b - a for a, b in pairwise(numbers)] == [1] * (len(events) - 1)
    assert (len(right.engine.large), right.engine.large.nbytes) == (0, 0)


@for_each_seed(range(12))
def test_large_and_small_events_arrive_in_order_through_loss(seed: int) -> None:
    assert_large_and_small_arrive_in_order_through_loss(seed)


def through_loss(size: int, seed: int = 5) -> None:
    net, left, right = pair(seed, path=BAD)
    for node in (left, right):
        configure(node, max_event_bytes=MAX_LARGE_EVENT)
    subscribed(right, left)
    event = np.random.default_rng(seed).bytes(size)
    left.publish(CHANNEL, [event], reliable=True, wait_s=3600.0)
    traffic = left.engine.streams.traffic_of(left.engine.peers.require(right.node_id))
    stream = ChannelName(CHANNEL).stream_id
    most_flying = most_claimed = 0
    while not right.events:
        net.run(for_s=0.05)
        most_flying = max(most_flying, traffic.reliable.outstanding(stream))
        most_claimed = max(most_claimed, right.engine.large.nbytes)
    assert right.events[0].data.tobytes() == event
    assert 0 < most_flying <= LARGE_FLIGHT + 2, "the sender keeps no more of it than is on the way"
    assert most_claimed == size, "the receiver keeps it once"
    budget = right.engine.streams.traffic_of(right.engine.peers.require(left.node_id)).reliable._budget
    assert budget.left == budget.limit == DEFAULT_BUDGET


def test_a_large_event_takes_bounded_memory() -> None:
    through_loss(3 << 20)


@pytest.mark.soak
def test_the_largest_event_takes_bounded_memory() -> None:
    through_loss(MAX_LARGE_EVENT)


# ── beside small events ─────────────────────────────────────────────────────────────────────


def pose_delays(*, frames: bool) -> list[float]:
    """Return how long poses take on a link of 1 Gbit/s, beside 5 frames of 200 KB a second from each of two robots."""
    net = FakeNet(3, path=FakePath(latency_s=0.002, bandwidth=125e6))
    hub, *robots = (net.create(name) for name in ("hub", "one", "two"))
    meet(hub, robots[0])
    meet(hub, robots[1])
    for robot in robots:
        subscribed(hub, robot, POSES)
        subscribed(hub, robot, f"frames/{robot.name}")
    net.run(for_s=1.0)
    frame, sent, delays, began, seen = bytes(200_000), {}, [], net.clock.now, len(hub.events)
    for tick in range(300):
        for robot in robots:
            if frames and tick % 20 == 0:
                robot.publish(f"frames/{robot.name}", [frame])
            pose = f"{robot.name} {tick}".encode()
            sent[pose] = net.clock.now
            robot.publish(POSES, [pose])
        for _ in range(10):
            net.run(for_s=0.001)
            arrived = [pose for batch in hub.events[seen:] if batch.channel == POSES for pose in batch.payloads()]
            delays += [net.clock.now - sent.pop(pose) for pose in arrived]
            seen = len(hub.events)
    net.run(for_s=1.0)
    assert net.clock.now - began > 3.0
    assert len(hub.payloads(POSES)) == 600
    if frames:
        assert sum(payload == frame for payload in hub.payloads()) == 30
    return sorted(delays)


def test_frames_do_not_hold_up_poses() -> None:
    alone, beside = pose_delays(frames=False), pose_delays(frames=True)
    for share in (0.5, 0.99):
        place = int(share * 600) - 1
        assert beside[place] <= 2 * alone[place]


def test_a_frame_for_many_subscribers_leaves_in_slices() -> None:
    net = FakeNet(8)
    hub, *viewers = (net.create(name) for name in ("hub", *(f"viewer{number}" for number in range(12))))
    for viewer in viewers:
        meet(hub, viewer)
        subscribed(viewer, hub)
    tap, frame = Wiretap(net), random.Random(8).randbytes(200_000)

    def parts() -> int:
        return sum(header.event_count == 0 for viewer in viewers for header in tap.data(hub, viewer))

    hub.publish(CHANNEL, [frame])
    assert parts() == SLICE_PARTS, "the first call does not send what the windows of all allow"
    net.run(for_s=0.02)
    assert parts() == 12 * 25
    net.run(for_s=1)
    assert [viewer.payloads(CHANNEL) for viewer in viewers] == 12 * [[frame]]


def test_small_events_of_a_best_effort_channel_overtake_a_large_one() -> None:
    net, left, right = pair(path=FakePath(bandwidth=2e6, queue_s=10))
    subscribed(right, left)
    large = bytes(3_000_000)
    publication = left.publish(CHANNEL, [large], wait_s=60.0)
    net.run(for_s=0.05)
    left.publish(CHANNEL, [b"small"])
    net.run(for_s=0.4)
    assert right.payloads(CHANNEL) == [b"small"]
    assert not publication.done
    net.run(for_s=5)
    assert right.payloads(CHANNEL) == [b"small", large]
    assert publication.report().delivered == 1


def test_higher_priority_is_sent_first() -> None:
    net, left, right = pair(path=FakePath(bandwidth=2e6, queue_s=10))
    registry = ChannelConfigRegistry()
    for name, priority in ((CHANNEL, 0), ("urgent", 9)):
        registry.insert(ChannelConfig(name=ChannelName(name), priority=priority, reliable=True))
    with left.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)
    for name in (CHANNEL, "urgent"):
        subscribed(right, left, name)
    ordinary, urgent = bytes(3_000_000), bytes(1_000_000)
    left.publish(CHANNEL, [ordinary], wait_s=60.0)
    net.run(for_s=0.01)
    left.publish("urgent", [urgent], wait_s=60.0)
    net.run(for_s=10)
    assert [batch.channel for batch in right.events] == ["urgent", CHANNEL]


# ── who gets it ─────────────────────────────────────────────────────────────────────────────


def test_plain_peers_never_see_a_part() -> None:
    net = FakeNet(4)
    hub, ours, plain = net.create("hub"), net.create("ours"), net.create("plain", profile=False)
    meet(hub, ours)
    meet(hub, plain)
    for node in (ours, plain):
        subscribed(node, hub)
    net.run(for_s=10)  # so that it is decided that the peer is plain
    tap = Wiretap(net)
    events = [b"before", bytes(100_000), b"after"]
    for reliable in (False, True):
        tap.clear()
        publication = hub.publish(CHANNEL, events, reliable=reliable)
        net.run(for_s=2)
        report = publication.report()
        assert (report.attempted, report.delivered) == (2, 1)
        (error,) = report.errors
        assert error.node_id == plain.node_id
        assert "takes events of at most 8104 bytes" in error.message
        assert all(header.event_count for header in tap.data(hub, plain)), "a part counts no event"
        assert sum(header.event_count == 0 for header in tap.data(hub, ours)) == 13
    assert ours.payloads(CHANNEL) == 2 * events
    assert set(plain.payloads(CHANNEL)) <= {b"before"}
    with hub.turn() as (engine, now, out):
        engine.disconnect(ours.node_id, now, out)
    only = hub.publish(CHANNEL, [bytes(9000)])
    net.run(for_s=2)
    with pytest.raises(PartialDelivery, match="0x4d0a"):
        only.report()


def test_an_event_waits_until_it_is_decided_what_the_peer_is() -> None:
    net = FakeNet(4)
    left, right = net.create("left"), net.create("right")
    right.connect(left)
    net.run_until(lambda: left.has_session_with(right))
    subscribed(right, left)
    peer = left.engine.peers.require(right.node_id)
    if not left.speaks_profile_with(right):
        publication = left.publish(CHANNEL, [bytes(50_000)])
        net.run(for_s=30)
        assert publication.report().delivered == 1
    assert peer.link is not None
    meet(left, right, profile=Profile.AUTO)
    left.publish(CHANNEL, [bytes(50_000)])
    net.run(for_s=1)
    assert right.payloads(CHANNEL)[-1] == bytes(50_000)


def test_a_channel_limits_its_events_at_both_ends() -> None:
    net, left, right = pair()
    subscribed(right, left)
    with pytest.raises(LocalProtocolError, match=f"max_event_bytes is {DEFAULT_LARGE_EVENT}; raise it"):
        left.publish(CHANNEL, [bytes(DEFAULT_LARGE_EVENT + 1)])
    configure(left, max_event_bytes=MAX_LARGE_EVENT)
    with pytest.raises(LocalProtocolError, match="split the event"):
        left.publish(CHANNEL, [bytes(MAX_LARGE_EVENT + 1)])
    configure(right, max_event_bytes=9000)
    publication = left.publish(CHANNEL, [bytes(2_000_000)])
    tap = Wiretap(net)
    net.run(for_s=5)
    (error,) = publication.fanout._errors
    assert "takes events of at most 9000 bytes on this channel" in error.message
    assert len(tap.data(left, right)) < 200, "most of the event was not even sent"
    assert right.engine.counters.get(*Reason.REFUSE_LARGE.counter) == 1
    left.publish(CHANNEL, [bytes(9000)])
    net.run(for_s=1)
    assert right.payloads(CHANNEL) == [bytes(9000)]


def test_a_best_effort_channel_may_refuse_large_events() -> None:
    net, left, right = pair()
    subscribed(right, left)
    configure(left, large=LargeEvents.REFUSE)
    with pytest.raises(LocalProtocolError, match="is not reliable"):
        left.publish(CHANNEL, [bytes(9000)])
    left.publish(CHANNEL, [bytes(9000)], reliable=True)
    net.run(for_s=1)
    assert right.payloads(CHANNEL) == [bytes(9000)]


def test_a_sender_that_gives_up_leaves_no_event_behind() -> None:
    net, left, right = pair()
    subscribed(right, left)
    with right.turn() as (engine, now, _out):
        engine.streams.hold(left.node_id, ChannelName(CHANNEL).stream_id, now, held=True)
    publication = left.publish(CHANNEL, [bytes(3_000_000)], reliable=True, wait_s=1.0)
    net.run(for_s=5)
    (error,) = publication.fanout._errors
    assert error.code == "backpressure"
    with right.turn() as (engine, now, _out):
        engine.streams.hold(left.node_id, ChannelName(CHANNEL).stream_id, now, held=False)
    after = [b"x" * 20_000, b"small"]
    left.publish(CHANNEL, after, reliable=True)
    net.run(for_s=10)
    assert right.payloads(CHANNEL) == after
    assert right.engine.counters.get(*Reason.LARGE_UNFINISHED.counter) == 1


# ── relays, gateways, requests ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [FakePath(), BAD], ids=["good", "bad"])
def test_large_events_pass_a_relay_and_a_gateway_under_its_rules(path: FakePath) -> None:
    net = FakeNet(6, path=path)
    gateway = net.create("gateway", gateway=GatewayConfig())
    registry = ChannelConfigRegistry()
    for name, visibility in (("open", Visibility.GLOBAL), ("closed", Visibility.SUBNET_LOCAL)):
        registry.insert(ChannelConfig(name=ChannelName(name), visibility=visibility))
    with gateway.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)
    left, right = net.create("left"), net.create("right")
    net.set_path("left", "right", FakePath(loss=1.0))
    for node in (left, right):
        node.connect(gateway)
    net.run(for_s=12)
    with left.turn() as (engine, now, out):
        engine.connect(right.node_id, None, right.engine.public_key, now, out)
    net.run_until(lambda: left.speaks_profile_with(right))
    event = random.Random(6).randbytes(300_000)
    for name in ("open", "closed"):
        subscribed(right, left, name)
        left.publish(name, [event])
    net.run(for_s=5)
    assert [(batch.channel, batch.data.tobytes() == event) for batch in right.events] == [("open", True)]
    dropped = gateway.engine.counters.get(*Reason.SUBNET_LOCAL.counter)
    assert dropped > 0, "parts are judged as the other packets of their channel"


def test_requests_and_replies_may_be_large() -> None:
    net, left, right = pair(path=BAD)
    channel = ChannelName("planner/plan")
    right.engine.requests.responder.serve(channel)
    question, answer = random.Random(1).randbytes(300_000), random.Random(2).randbytes(500_000)
    with left.turn() as (engine, now, out):
        peer = engine.peers.require(right.node_id)
        large = engine.requests.requester.ask(peer, channel, question, now, out, timeout_s=60)
        small = engine.requests.requester.ask(peer, channel, b"?", now, out, timeout_s=60)
    net.run_until(lambda: len(right.happened(Requested)) == 2, timeout_s=60)
    first, second = right.happened(Requested)
    assert (first.request, second.request) == (small, large), "a small request does not wait behind a large one"
    assert second.payload == question
    with right.turn() as (engine, now, out):
        for request in (large, small):
            assert engine.requests.responder.reply(left.node_id, request, answer, now, out)
    net.run_until(lambda: len(left.happened(Replied)) == 2, timeout_s=60)
    assert {reply.payload for reply in left.happened(Replied)} == {answer}
    assert left.happened(RequestFailed) == []
    net.run(for_s=5)
    traffic = left.engine.streams.traffic_of(left.engine.peers.require(right.node_id))
    assert not any(stream >> 32 for stream in traffic.reliable._sending), "the stream of a large request ends with it"


def test_a_plain_peer_refuses_a_large_request_with_a_sentence() -> None:
    _net, left, right = pair()
    peer = left.engine.peers.require(right.node_id)
    peer.negotiated = NegotiatedSet(peer.negotiated.compatible - {Subprotocol.LARGE})
    with left.turn() as (engine, now, out), pytest.raises(LocalProtocolError, match="did not agree on large events"):
        engine.requests.requester.ask(peer, ChannelName("planner/plan"), bytes(9000), now, out, timeout_s=60)
