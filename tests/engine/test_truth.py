"""What receivers learn is true: when events were published, and how many packets are missing."""

from __future__ import annotations

import pytest

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.channels.publish import OnFailure
from meshbus.engine.channels.roster import RosterView
from meshbus.engine.session.negotiate import Profile
from meshbus.names.channel import ChannelName
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from tests.engine.fleet import CHANNEL, Wiretap, meet, numbered, subscribed

UNIT_NS = 1024


def pair(seed: int, *, profile: Profile = Profile.AUTO, ahead_ns: int = 0) -> tuple[FakeNet, FakeNode, FakeNode]:
    net = FakeNet(seed, path=FakePath(latency_s=0.005))
    publisher, subscriber = net.create("publisher", clock_ahead_ns=ahead_ns), net.create("subscriber")
    meet(publisher, subscriber, profile=profile)
    subscribed(subscriber, publisher)
    net.run(for_s=1)
    return net, publisher, subscriber


def times(batches: list[EventBatch]) -> list[int | None]:
    return [event.ts_ns for batch in batches for event in batch]


@pytest.mark.parametrize("reliable", [False, True])
@pytest.mark.parametrize("ahead_ns", [0, 90 * 60 * 10**9, -7 * 86_400 * 10**9])
def test_events_carry_the_publishers_time_even_if_its_clock_is_wrong(reliable: bool, ahead_ns: int) -> None:
    net, publisher, subscriber = pair(1, ahead_ns=ahead_ns)
    wanted = []
    for count in (1, 3, 40):
        publisher.publish(CHANNEL, numbered(count, 700), reliable=reliable)
        wanted += [net.clock.wall(net.clock.now) + ahead_ns] * count
        net.run(for_s=0.5)
    got = times(subscriber.events)
    assert len(got) == len(wanted)
    assert all(ts is not None and 0 <= truth - ts < UNIT_NS for ts, truth in zip(got, wanted, strict=True))


def test_a_packet_that_is_sent_again_keeps_its_time() -> None:
    net, publisher, subscriber = pair(2)
    published = net.clock.wall(net.clock.now)
    net.path = FakePath(latency_s=0.005, loss=0.6)
    publisher.publish(CHANNEL, numbered(200, 700), reliable=True, wait_s=1e6)
    net.run_until(lambda: subscriber.received >= 200, timeout_s=600)
    assert publisher.engine.counters.total("retransmit") > 20
    assert all(ts is not None and 0 <= published - ts < UNIT_NS for ts in times(subscriber.events))


def test_events_that_waited_for_credit_keep_the_time_of_their_publish() -> None:
    net, publisher, subscriber = pair(3)
    published = net.clock.wall(net.clock.now)
    publisher.publish(CHANNEL, numbered(300, 8000), wait_s=60)
    net.run_until(lambda: subscriber.received >= 300)
    assert net.clock.wall(net.clock.now) - published > 10_000_000
    assert all(ts is not None and 0 <= published - ts < UNIT_NS for ts in times(subscriber.events))


def test_towards_a_plain_peer_no_byte_changes_and_the_time_is_unknown() -> None:
    net, publisher, subscriber = pair(4, profile=Profile.PLAIN)
    tap = Wiretap(net)
    publisher.publish(CHANNEL, numbered(5))
    net.run(for_s=1)
    assert {(header.fragment_id, header.fragment_offset) for header in tap.data()} == {(0, 0)}
    assert times(subscriber.events) == [None] * 5


def test_control_packets_carry_no_time() -> None:
    net, publisher, _ = pair(5)
    tap = Wiretap(net)
    publisher.publish(CHANNEL, numbered(500, 700), reliable=True)
    net.run(for_s=1)
    stamped = {header.subprotocol_id for header in tap.headers() if header.fragment_id or header.fragment_offset}
    assert stamped == {Subprotocol.EVENTS}


@pytest.mark.parametrize("profile", [Profile.AUTO, Profile.PLAIN])
def test_best_effort_loss_is_counted_exactly(profile: Profile) -> None:
    net, publisher, subscriber = pair(6, profile=profile)
    publisher.publish(CHANNEL, numbered(1))
    net.run(for_s=1)
    net.path = FakePath(latency_s=0.005, jitter_s=0.02, loss=0.1, reordering=0.2)
    for event in numbered(1000, first=1):
        publisher.publish(CHANNEL, [event])
        net.run(for_s=0.01)
    net.path = FakePath(latency_s=0.005)
    publisher.publish(CHANNEL, numbered(1, first=5000))
    net.run(for_s=1)
    lost = 1002 - subscriber.received
    assert lost > 50
    assert sum(batch.lost for batch in subscriber.events) == lost
    counters = subscriber.engine.counters
    assert counters.get("loss", "missing_packets") - counters.get("loss", "late_packets") == lost
    assert counters.get("loss", "late_packets") > 0


def test_nothing_is_missing_across_sessions_and_subscriptions() -> None:
    net, publisher, subscriber = pair(7)
    for _ in range(3):
        publisher.publish(CHANNEL, numbered(50))
        net.run(for_s=1)
        publisher.connect(subscriber)
        net.run(for_s=3)
        with subscriber.turn() as (engine, now, out):
            engine.unsubscribe(publisher.node_id, ChannelName(CHANNEL), now, out)
        net.run(for_s=1)
        subscribed(subscriber, publisher)
    assert subscriber.received == 150
    assert subscriber.engine.counters.total("loss") == 0


def test_a_lossy_best_effort_stream_never_stops_for_lack_of_credit() -> None:
    """What is lost is never granted: without a remedy, the window is lost piece by piece."""
    net, publisher, subscriber = pair(9, profile=Profile.PLAIN)
    net.path = FakePath(latency_s=0.005, loss=0.2)
    sent = 0
    while sent < 600:  # ten windows of 64 KiB
        publication = publisher.publish(CHANNEL, numbered(1, 1000), wait_s=0.0, on_failure=OnFailure.COLLECT)
        sent += publication.report().delivered
        net.run(for_s=0.1)
        assert net.clock.now < 600, f"stuck after {sent} events"
    assert 400 < subscriber.received < 600


def test_events_without_a_channel_are_granted_without_an_alarm() -> None:
    net, publisher, subscriber = pair(10)
    for _ in range(5):
        with publisher.turn() as (engine, now, out):
            engine.send(subscriber.node_id, [b"hello", bytes(8000), b"again"], now, out)
        net.run(for_s=0.1)
    assert [event.payload for batch in subscriber.events for event in batch] == [b"hello", bytes(8000), b"again"] * 5
    assert publisher.engine.counters.get("drop", "grant_excess") == 0
    assert all(ts is not None for ts in times(subscriber.events))


@pytest.mark.parametrize("count", [1, 3])
def test_reliable_events_wait_for_the_negotiation_and_are_numbered(count: int) -> None:
    net = FakeNet(11, path=FakePath(latency_s=0.005))
    publisher, subscriber = net.create("publisher"), net.create("subscriber")
    publisher.connect(subscriber)
    net.run_until(lambda: publisher.engine.peers.get(subscriber.node_id) is not None)
    peer = publisher.engine.peers.require(subscriber.node_id)
    net.run_until(lambda: subscriber.engine.peers.get(publisher.node_id) is not None)
    subscriber.subscribe(publisher, CHANNEL)
    net.run_until(lambda: bool(RosterView(publisher.engine.admission.roster).members(CHANNEL)))
    assert not peer.uses(Subprotocol.RELIABLE), "the negotiation is still under way"
    publication = publisher.publish(CHANNEL, numbered(count), reliable=True, wait_s=0.0)
    net.run_until(lambda: publication.done)
    net.run(for_s=0.1)
    assert publication.report().delivered == 1
    assert [event.payload for batch in subscriber.events for event in batch] == numbered(count)
    assert all(event.pub_seq is not None for batch in subscriber.events for event in batch)


def test_reliable_events_for_a_peer_that_never_announces_itself_wait_only_briefly() -> None:
    net = FakeNet(12, path=FakePath(latency_s=0.005))
    publisher, subscriber = net.create("publisher"), net.create("subscriber", profile=False)
    publisher.connect(subscriber)
    net.run_until(lambda: subscriber.has_session_with(publisher))
    subscribed(subscriber, publisher)
    begun = net.clock.now
    publication = publisher.publish(CHANNEL, numbered(1), reliable=True)
    net.run_until(lambda: subscriber.received == 1)
    assert publication.report().delivered == 1
    assert net.clock.now - begun <= 2.5
