"""Running publishes: fan-out and its limit, slow and lost subscribers, and callbacks at the end."""

from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.base.notices import Unsubscribed
from meshbus.engine.channels import publication
from meshbus.engine.channels.publication import HOP_TTL, Publication
from meshbus.engine.channels.publish import OnFailure, PublishConfig, PublishReport
from meshbus.engine.settings import LivenessConfig
from meshbus.errors import Backpressure, LocalProtocolError, PartialDelivery
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import PACKET_COST, STREAM_WINDOW, Flags
from meshbus.wire.frames import columns_of
from meshbus.wire.messages.reliable import CLOCK_NUMBERS
from tests.engine.fleet import CHANNEL, Wiretap, meet, numbered, subscribed

STREAM = ChannelName(CHANNEL).stream_id
BULK = numbered(100, size=1000)
"""More than the window of a plain stream."""


def fleet(count: int, *, profile: bool = False, **settings: Any) -> tuple[FakeNet, FakeNode, list[FakeNode]]:
    """Make a publisher and subscribers that are in its channel already."""
    net = FakeNet()
    hub = net.create("hub", profile=profile, **settings)
    subscribers = [net.create(f"s{n}", profile=profile, **settings) for n in range(count)]
    for subscriber in subscribers:
        meet(hub, subscriber)
        subscribed(subscriber, hub)
    return net, hub, subscribers


def hold(node: FakeNode, publisher: FakeNode, *, held: bool) -> None:
    """Make a subscriber be too slow, or catch up."""
    with node.turn() as (engine, now, _out):
        engine.streams.hold(publisher.node_id, STREAM, now, held=held)


def test_all_subscribers_get_all_events_at_once_if_there_is_credit() -> None:
    net, hub, subscribers = fleet(3)
    publication = hub.publish(CHANNEL, numbered(5))
    assert publication.done
    assert publication.report() == PublishReport(3, 3)
    assert publication.report().all_delivered
    net.run(for_s=0.1)
    assert [subscriber.payloads(CHANNEL) for subscriber in subscribers] == [numbered(5)] * 3


def test_an_empty_roster_is_a_success() -> None:
    net = FakeNet()
    report = net.create("hub").publish(CHANNEL, [b"x"]).report()
    assert report.is_empty
    assert report.all_delivered


@pytest.mark.parametrize("events", [[b"x"], [b""], [bytes(8104)]])
@pytest.mark.parametrize("reliable", [False, True])
def test_a_single_event_takes_the_short_way(events: list[bytes], reliable: bool) -> None:
    net, hub, subscribers = fleet(3, profile=True)
    config = PublishConfig(reliable=reliable)
    for _ in range(3):
        with hub.turn() as (engine, now, out):
            report = engine.publications.publish_one(ChannelName(CHANNEL), events[0], config, now, out)
        assert report == PublishReport(3, 3)
    net.run(for_s=1)
    assert [subscriber.payloads(CHANNEL) for subscriber in subscribers] == [events * 3] * 3
    numbers = [event.pub_seq for batch in subscribers[0].events for event in batch]
    if reliable:
        assert numbers[0] is not None
        assert numbers == list(range(numbers[0], numbers[0] + 3))
    else:
        assert numbers == [None] * 3


def test_a_single_event_waits_like_any_other() -> None:
    net, hub, (slow,) = fleet(1)
    hold(slow, hub, held=True)
    hub.publish(CHANNEL, BULK)
    with hub.turn() as (engine, now, out):
        publication = engine.publications.publish_one(ChannelName(CHANNEL), b"last", PublishConfig(), now, out)
    assert isinstance(publication, Publication)
    assert not publication.done
    net.run(for_s=0.1)
    hold(slow, hub, held=False)
    net.run(for_s=0.1)
    assert publication.report() == PublishReport(1, 1)
    assert slow.payloads(CHANNEL) == [*BULK, b"last"]
    with hub.turn() as (engine, now, out), pytest.raises(LocalProtocolError, match="too large"):
        engine.publications.publish_one(ChannelName(CHANNEL), bytes((16 << 20) + 1), PublishConfig(), now, out)


@pytest.mark.parametrize("profile", [False, True])
def test_a_slow_subscriber_delays_only_itself_and_continues_with_credit(profile: bool) -> None:
    net, hub, (slow, quick) = fleet(2, profile=profile)
    hold(slow, hub, held=True)
    publication = hub.publish(CHANNEL, BULK, reliable=profile, wait_s=30.0)
    done: list[float] = []
    publication.when_done(lambda: done.append(net.clock.now))
    net.run(for_s=3)
    assert quick.payloads(CHANNEL) == BULK
    assert 0 < len(slow.payloads(CHANNEL)) < 100
    assert done == []
    hold(slow, hub, held=False)
    net.run(for_s=3)
    assert publication.done
    assert len(done) == 1
    assert publication.report() == PublishReport(2, 2)
    assert slow.payloads(CHANNEL) == BULK
    publication.when_done(lambda: done.append(0.0))
    assert done[-1] == 0.0  # at once: it has ended


def test_a_subscriber_without_credit_until_the_deadline_is_backpressured() -> None:
    net, hub, (slow, quick) = fleet(2)
    hold(slow, hub, held=True)
    publication = hub.publish(CHANNEL, BULK, wait_s=2.0)
    began = net.clock.now
    net.run_until(lambda: publication.done)
    assert net.clock.now == pytest.approx(began + 2.0, abs=0.1)
    report = publication.report()
    assert (report.attempted, report.delivered, report.all_delivered) == (2, 1, False)
    (error,) = report.errors
    assert (error.node_id, error.code) == (slow.node_id, "backpressure")
    assert "credit" in error.message
    assert hub.engine.counters.get("fail", "backpressure") == 1
    assert hub.engine.counters.get("stall", "credit") >= 1
    assert quick.payloads(CHANNEL) == BULK
    # What it got is a first part, in order.
    assert slow.payloads(CHANNEL) == BULK[: len(slow.payloads(CHANNEL))]


def test_a_stream_without_acknowledgements_is_not_reported_as_one_without_credit() -> None:
    net, hub, (lost,) = fleet(1, profile=True)
    net.partition([hub.name], [lost.name])
    publications = [
        hub.publish(CHANNEL, [b"x"], reliable=True, wait_s=1.0, on_failure=OnFailure.COLLECT) for _ in range(100)
    ]
    net.run(for_s=2)
    assert all(publication.done for publication in publications)
    (error,) = publications[-1].report().errors
    assert error.code == "backpressure"
    assert "acknowledge" in error.message
    assert "credit" not in error.message


def test_with_wait_0_the_report_is_complete_at_once() -> None:
    _, hub, (slow, _) = fleet(2)
    hold(slow, hub, held=True)
    publication = hub.publish(CHANNEL, BULK, wait_s=0, on_failure=OnFailure.COLLECT)
    assert publication.done
    assert {error.code for error in publication.report().errors} == {"backpressure"}


def test_best_effort_is_an_error_only_if_every_leg_failed() -> None:
    _, hub, subscribers = fleet(2)
    for subscriber in subscribers:
        hold(subscriber, hub, held=True)
    publication = hub.publish(CHANNEL, BULK, wait_s=0)
    with pytest.raises(PartialDelivery, match="0 of 2") as caught:
        publication.report()
    assert isinstance(caught.value.report, PublishReport)
    assert [error.node_id for error in caught.value.report.errors] == [s.node_id for s in subscribers]


def test_collect_always_reports() -> None:
    _, hub, _ = fleet(2)
    report = hub.publish(CHANNEL, BULK * 2, wait_s=0, on_failure=OnFailure.COLLECT).report()
    assert (report.attempted, report.delivered, len(report.errors)) == (2, 0, 2)


def test_fail_fast_goes_one_by_one_and_stops_at_the_first_failure() -> None:
    net, hub, (first, second, third) = fleet(3)
    hold(second, hub, held=True)
    hub.publish(CHANNEL, BULK[:50])
    net.run(for_s=1)
    publication = hub.publish(CHANNEL, BULK[:50], wait_s=1.0, on_failure=OnFailure.FAIL_FAST)
    net.run_until(lambda: publication.done)
    report = publication.report()
    assert (report.attempted, report.delivered) == (2, 1)
    assert [error.node_id for error in report.errors] == [second.node_id]
    net.run(for_s=1)
    assert len(first.payloads(CHANNEL)) == 100
    assert len(third.payloads(CHANNEL)) == 50  # not attempted the second time


def test_the_number_of_concurrent_legs_is_limited() -> None:
    net, hub, subscribers = fleet(5)
    tap = Wiretap(net)
    for subscriber in subscribers[:2]:
        hold(subscriber, hub, held=True)
    publication = hub.publish(CHANNEL, BULK, max_inflight=2, wait_s=60.0)
    net.run(for_s=1)
    assert {dest for _, dest, header in tap.packets if header.stream_id == STREAM} == {"s0", "s1"}
    hold(subscribers[1], hub, held=False)
    net.run(for_s=1)
    assert {dest for _, dest, header in tap.packets if header.stream_id == STREAM} == {"s0", "s1", "s2", "s3", "s4"}
    assert not publication.done
    hold(subscribers[0], hub, held=False)
    net.run(for_s=1)
    assert publication.report() == PublishReport(5, 5)
    assert [subscriber.payloads(CHANNEL) for subscriber in subscribers] == [BULK] * 5


@pytest.mark.parametrize("policy", OnFailure)
def test_a_wide_fan_out_needs_no_deep_stack(policy: OnFailure) -> None:
    _, hub, (one,) = fleet(1)
    roster = hub.engine.admission.roster
    for stranger in range(1, 5001):  # subscribers whose sessions are gone
        roster.add(ChannelName(CHANNEL), stranger)
        hub.engine.admission.guard.allow_channel(stranger, ChannelName(CHANNEL))
    report = hub.publish(CHANNEL, [b"x"], on_failure=policy, max_inflight=1).report()
    if policy is OnFailure.FAIL_FAST:
        assert (report.attempted, report.delivered) == (2, 1)
    else:
        assert (report.attempted, report.delivered, len(report.errors)) == (5001, 1, 5000)
    assert {error.code for error in report.errors} == {"peer"}
    assert one.node_id not in {error.node_id for error in report.errors}


@pytest.mark.parametrize("how", ["disconnect", "silence"])
def test_a_peer_that_leaves_in_the_middle_of_a_publish_is_named(how: str) -> None:
    quick = LivenessConfig(heartbeat_s=0.1, session_timeout_s=0.2)
    net, hub, (slow, other) = fleet(2, liveness=quick)
    hold(slow, hub, held=True)
    publication = hub.publish(CHANNEL, BULK, max_inflight=1, wait_s=1000.0)
    net.run(for_s=0.1)
    assert not publication.done
    if how == "disconnect":
        with hub.turn() as (engine, now, out):
            engine.disconnect(slow.node_id, now, out)
    else:
        net.partition(["hub"], ["s0"])
    net.run(for_s=10)
    report = publication.report()
    assert (report.attempted, report.delivered) == (2, 1)
    (error,) = report.errors
    assert (error.node_id, error.code) == (slow.node_id, "peer")
    assert other.payloads(CHANNEL) == BULK
    assert [gone.node_id for gone in hub.happened(Unsubscribed)] == [slow.node_id]


def test_a_higher_priority_is_sent_first_and_is_in_the_header() -> None:
    net, hub, (slow,) = fleet(1)
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName(CHANNEL)))
    registry.insert(ChannelConfig(name=ChannelName("alarm"), priority=200))
    with hub.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)
    subscribed(slow, hub, "alarm")
    hold(slow, hub, held=True)
    hub.publish(CHANNEL, BULK, wait_s=60.0)
    tap = Wiretap(net)
    assert hub.publish("alarm", [b"fire"]).done
    net.run(for_s=0.1)
    assert slow.payloads("alarm") == [b"fire"]
    # The stream that has no credit may send empty packets meanwhile.
    (header,) = [header for header in tap.data(hub, slow) if header.event_count]
    assert (header.priority, header.flags) == (200, Flags.PRIORITY)


def test_the_fields_of_a_publication_header() -> None:
    net, hub, (one,) = fleet(1, subnet=SubnetId.new([3, 7]))
    tap = Wiretap(net)
    hub.publish(CHANNEL, [b"a", b"b"], reliable=True)
    (header,) = tap.data(hub, one)
    assert header.flags == Flags.RELIABLE
    assert header.stream_id == STREAM
    assert header.channel_hash == STREAM & 0xFFFF
    assert header.origin_hash == hub.engine.identity.origin_hash
    assert header.subnet_id == SubnetId.new([3, 7])
    assert header.hop_ttl == HOP_TTL
    assert (header.hop_count, header.frag_flags, header.fragment_id, header.fragment_offset) == (0, 0, 0, 0)
    assert (header.event_count, header.payload_len, header.sequence) == (2, 10, 0)


def test_credit_is_spent_by_wire_bytes() -> None:
    _, hub, (one,) = fleet(1)
    hub.publish(CHANNEL, numbered(60, size=1000)[:1])
    stream = hub.engine.peers.require(one.node_id).tx_stream(STREAM)
    assert stream.credit == STREAM_WINDOW - PACKET_COST - 1004


def test_events_of_one_call_share_packets_up_to_the_target() -> None:
    net, hub, (one,) = fleet(1, max_payload=1000)
    tap = Wiretap(net)
    events = numbered(30, size=96)
    hub.publish(CHANNEL, [*events, bytes(5000), b"end"])
    assert [header.event_count for header in tap.data()] == [10, 10, 10, 1, 1]
    net.run(for_s=0.1)
    assert one.payloads(CHANNEL) == [*events, bytes(5000), b"end"]


def test_a_prepared_publish_is_sent_later_with_numbers_of_the_caller() -> None:
    net, hub, (one, other) = fleet(2, profile=True)
    config = PublishConfig(reliable=True)
    with hub.turn() as (engine, now, out):
        prepared = engine.publications.prepare(ChannelName(CHANNEL), *columns_of(numbered(3)), config, now)
        assert out.trains == []
    with one.turn() as (engine, now, out):
        engine.unsubscribe(hub.node_id, ChannelName(CHANNEL), now, out)
    net.run(for_s=0.5)
    with hub.turn() as (engine, now, out):
        publication = engine.publications.send(prepared, 700, now, out)
    net.run(for_s=0.5)
    assert publication.report().attempted == 1  # who left in between gets nothing
    assert [node_id for node_id, _ in publication.report().filtered] == [one.node_id]
    assert hub.engine.counters.get("filter", "not_authorized") == 1
    assert one.received == 0
    assert [event.pub_seq for batch in other.events for event in batch] == [700, 701, 702]


def test_pushes_wait_for_credit_up_to_a_bound_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.engine.channels.publication.MAX_PUSHES", 3)
    net, hub, (slow,) = fleet(1)
    with slow.turn() as (engine, now, _out):
        engine.peers.require(hub.node_id).rx_stream(0).held = True
    sent = 0
    with hub.turn() as (engine, now, out):
        while not engine.streams.traffic_of(engine.peers.require(slow.node_id)).outbox.waiting(0):
            engine.send(slow.node_id, [bytes(1000)], now, out)
            sent += 1
        for _ in range(2):
            engine.send(slow.node_id, [b"waits", b"too"], now, out)
        with pytest.raises(Backpressure):
            engine.send(slow.node_id, [b"too much"], now, out)
    net.run(for_s=4)
    assert hub.engine.counters.get("drop", "push_expired") == 0
    net.run(for_s=2)
    assert hub.engine.counters.get("drop", "push_expired") == 5
    assert (sent - 1) * (1004 + PACKET_COST) <= STREAM_WINDOW
    assert hub.engine.publications.sent_events == sent - 1
    assert hub.engine.publications.sent_bytes == 1000 * (sent - 1)


def test_acknowledgements_are_waited_for_and_missing_ones_are_named() -> None:
    net, hub, (well, ill) = fleet(2, profile=True)
    publications = hub.engine.publications
    assert publications.confirm(ChannelName(CHANNEL)).report(5.0) == PublishReport(0, 0)
    hub.publish(CHANNEL, numbered(3))
    net.run(for_s=0.1)
    assert publications.confirm(ChannelName(CHANNEL)).report(5.0).acknowledged is None, "best effort is not confirmed"
    hub.publish(CHANNEL, numbered(3), reliable=True)
    ends: list[bool] = []
    confirmation = publications.confirm(ChannelName(CHANNEL))
    confirmation.when_done(lambda: ends.append(True))
    report = confirmation.report(5.0)
    assert (report.attempted, report.sent, report.acknowledged) == (2, 0, 0)
    assert [error.code for error in report.errors] == ["timeout", "timeout"]
    net.run(for_s=1)
    assert ends == [True]
    assert confirmation.report(5.0) == PublishReport(2, 2, acknowledged=2)
    confirmation.when_done(lambda: ends.append(True))
    assert ends == [True, True]
    hub.publish(CHANNEL, numbered(3), reliable=True)
    confirmation = publications.confirm(ChannelName(CHANNEL))
    with hub.turn() as (engine, now, out):
        engine.disconnect(ill.node_id, now, out)
    net.run(for_s=1)
    report = confirmation.report(5.0)
    assert (report.attempted, report.acknowledged) == (2, 1)
    assert [(error.node_id, error.code) for error in report.errors] == [(ill.node_id, "peer")]
    assert well.received == 9


@pytest.mark.parametrize("unix_s", [0, 5, 1_800_000_000])
def test_numbers_from_a_clock_never_look_like_those_of_a_log(unix_s: int) -> None:
    """Numbers of a log start at 0; a robot without a battery for its clock starts in 1970."""
    net = FakeNet(1)
    net.clock.unix_s = unix_s
    publisher, reader = net.create("publisher"), net.create("reader")
    meet(publisher, reader)
    subscribed(reader, publisher)
    publisher.publish(CHANNEL, [b"a", b"b"], reliable=True)
    net.run(for_s=1)
    numbers = [event.pub_seq for batch in reader.events for event in batch]
    assert numbers[0] is not None
    assert numbers[0] >= CLOCK_NUMBERS
    assert numbers == [numbers[0], numbers[0] + 1]


def test_publish_numbers_are_kept_for_so_many_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "MAX_NUMBERED", 3)
    _, hub, _ = fleet(1)
    for number in range(8):
        hub.publish(f"reply/{number}", numbered(1), reliable=True)
    assert len(hub.engine.publications._outlets) == 3
    assert hub.engine.counters.get("forget", "publish_numbers") == 5
