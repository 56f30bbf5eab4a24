"""Whole nodes over a bad network: nothing is lost, repeated or reordered, and missing subscribers are reported."""

from __future__ import annotations

from collections import Counter

import pytest

from meshbus.engine.base.notices import Replied, Requested, RequestFailed, RequestFault
from meshbus.engine.settings import LivenessConfig
from meshbus.names.channel import ChannelName
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from tests.engine.badnet import BAD, assert_exactly_once_and_in_order, bad_pair
from tests.engine.fleet import CHANNEL, meet, numbered, subscribed
from tests.seeds import for_each_seed


@pytest.mark.slow
@for_each_seed(range(5))
def test_a_reliable_stream_arrives_exactly_once_and_in_order(seed: int) -> None:
    assert_exactly_once_and_in_order(seed)


def test_the_same_seed_gives_the_same_bytes() -> None:
    digests = [assert_exactly_once_and_in_order(seed, packets=200).digest for seed in (7, 7, 8)]
    assert digests[0] == digests[1]
    assert digests[1] != digests[2]


def test_events_of_all_sizes_in_full_packets_survive() -> None:
    net, publisher, subscriber = bad_pair(11)
    events = [bytes([n % 251]) * (n * 37 % 8105) for n in range(600)]
    publisher.publish(CHANNEL, events, reliable=True, wait_s=1e6)
    net.run_until(lambda: subscriber.received >= 600, timeout_s=3600)
    assert subscriber.payloads(CHANNEL) == events


def test_several_streams_do_not_hold_each_other_up() -> None:
    net, publisher, subscriber = bad_pair(12, max_payload=100)
    channels = [f"sensors/{n}" for n in range(5)]
    net.path = FakePath()
    for channel in channels:
        subscribed(subscriber, publisher, channel)
    net.path = BAD
    for channel in channels:
        publisher.publish(channel, numbered(200, 80), reliable=True, wait_s=1e6)
    net.run_until(lambda: subscriber.received >= 1000, timeout_s=3600)
    assert {channel: subscriber.payloads(channel) for channel in channels} == dict.fromkeys(channels, numbered(200, 80))


@for_each_seed(range(3))
def test_new_sessions_in_the_middle_lose_and_repeat_nothing(seed: int) -> None:
    net, publisher, subscriber = bad_pair(20 + seed, max_payload=100)
    events = numbered(1500, 80)
    publisher.publish(CHANNEL, events, reliable=True, wait_s=1e6)
    sessions = set()
    for part in range(1, 6):
        net.run_until(lambda part=part: subscriber.received >= part * 200, timeout_s=3600)  # type: ignore[misc]
        one, other = (publisher, subscriber) if part % 2 else (subscriber, publisher)
        one.connect(other)
        net.run(for_s=3)
        sessions.add(publisher.engine.peers.require(subscriber.node_id).link.session_id)
    net.run_until(lambda: subscriber.received >= 1500, timeout_s=3600)
    net.run(for_s=10)
    assert subscriber.payloads(CHANNEL) == events
    assert len(sessions) >= 3
    assert publisher.engine.counters.get("fail", "reliable_stream") == 0


def test_a_partition_of_minutes_is_survived() -> None:
    patient = LivenessConfig(heartbeat_s=5.0, session_timeout_s=30.0)
    net = FakeNet(31)
    publisher = net.create("publisher", liveness=patient, max_payload=100)
    subscriber = net.create("subscriber", liveness=patient)
    meet(publisher, subscriber)
    subscribed(subscriber, publisher)
    publisher.publish(CHANNEL, numbered(300, 80), reliable=True, wait_s=1e6)
    net.partition(["publisher"], ["subscriber"])
    net.run(for_s=8)
    net.heal()
    net.run_until(lambda: subscriber.received >= 300, timeout_s=600)
    assert subscriber.payloads() == numbered(300, 80)


# ── queue groups ────────────────────────────────────────────────────────────────────────────


def workers(seed: int, count: int) -> tuple[FakeNet, FakeNode, list[FakeNode]]:
    net = FakeNet(seed)
    hub = net.create("hub")
    members = [net.create(f"worker{n}") for n in range(count)]
    for member in members:
        meet(hub, member)
    return net, hub, members


@for_each_seed(range(3))
def test_a_queue_group_gives_each_event_to_one_member(seed: int) -> None:
    net, hub, members = workers(seed, 4)
    watcher = members.pop()
    for member in members:
        subscribed(member, hub, "jobs", queue_group="workers")
    subscribed(watcher, hub, "jobs")
    net.path = BAD
    jobs = numbered(300)
    for job in jobs:
        report = hub.publish("jobs", [job], reliable=True, wait_s=1e6)
        assert report.plan.legs == (watcher.node_id, report.plan.legs[1])
        net.run(for_s=0.01)
    net.run_until(lambda: sum(node.received for node in (*members, watcher)) >= 600, timeout_s=3600)
    net.run(for_s=5)
    done = Counter(job for member in members for job in member.payloads("jobs"))
    assert done == dict.fromkeys(jobs, 1)
    assert [len(member.payloads("jobs")) for member in members] == [100, 100, 100]
    assert watcher.payloads("jobs") == jobs


def test_a_member_that_fails_leaves_its_share_to_the_others() -> None:
    net, hub, members = workers(5, 3)
    for member in members:
        subscribed(member, hub, "jobs", queue_group="workers")
    with hub.turn() as (engine, now, out):
        engine.disconnect(members[0].node_id, now, out)
    for job in numbered(10):
        assert hub.publish("jobs", [job]).report().delivered == 1
    net.run(for_s=1)
    assert [len(member.payloads("jobs")) for member in members] == [0, 5, 5]


def test_a_queue_group_by_prefix_shares_as_well() -> None:
    net, hub, members = workers(6, 2)
    with hub.turn() as (engine, now, out):
        engine.open_channel(ChannelName("jobs/paint"), now, out)
    for member in members:
        with member.turn() as (engine, now, out):
            engine.interest(hub.node_id, "jobs/", now, out, queue_group="workers")
    net.run(for_s=1)
    for job in numbered(10):
        hub.publish("jobs/paint", [job])
    net.run(for_s=1)
    assert [len(member.payloads("jobs/paint")) for member in members] == [5, 5]


# ── request and reply ───────────────────────────────────────────────────────────────────────


def ask(node: FakeNode, other: FakeNode, channel: str, payload: bytes, timeout_s: float) -> int:
    with node.turn() as (engine, now, out):
        peer = engine.peers.require(other.node_id)
        return engine.requests.requester.ask(peer, ChannelName(channel), payload, now, out, timeout_s=timeout_s)


@for_each_seed(range(3))
def test_requests_are_answered_over_a_bad_network(seed: int) -> None:
    net, left, right = bad_pair(40 + seed)
    right.engine.requests.responder.serve(ChannelName("double"))
    asked = {ask(left, right, "double", bytes([n]), timeout_s=600): n for n in range(100)}
    answered: set[int] = set()

    def answer_all() -> bool:
        for question in right.happened(Requested):
            if question.request not in answered:
                answered.add(question.request)
                with right.turn() as (engine, now, out):
                    engine.requests.responder.reply(left.node_id, question.request, question.payload * 2, now, out)
        return len(left.happened(Replied)) == 100

    net.run_until(answer_all, timeout_s=600)
    net.run(for_s=5)
    assert {reply.request: reply.payload for reply in left.happened(Replied)} == {
        request: bytes([n]) * 2 for request, n in asked.items()
    }
    assert len(right.happened(Requested)) == 100  # nobody was asked twice
    assert left.happened(RequestFailed) == []


def test_a_missing_responder_is_named_over_a_bad_network() -> None:
    net, left, right = bad_pair(50)
    request = ask(left, right, "nobody/home", b"?", timeout_s=600)
    net.run_until(lambda: bool(left.happened(RequestFailed)), timeout_s=60)
    (failed,) = left.happened(RequestFailed)
    assert (failed.request, failed.node_id, failed.fault) == (request, right.node_id, RequestFault.NO_RESPONDER)
    assert failed.channel == "nobody/home"


def test_a_responder_that_is_cut_off_is_a_timeout_and_no_more() -> None:
    net, left, right = bad_pair(51)
    right.engine.requests.responder.serve(ChannelName("slow"))
    net.partition(["publisher"], ["subscriber"])
    ask(left, right, "slow", b"?", timeout_s=2.0)
    net.run(for_s=3)
    assert [failed.fault for failed in left.happened(RequestFailed)] == [RequestFault.TIMEOUT]
    net.heal()
    net.run(for_s=20)
    assert [failed.fault for failed in left.happened(RequestFailed)] == [RequestFault.TIMEOUT]
