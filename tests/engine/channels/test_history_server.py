"""Readers of a log: history joined to live events under loss and retention, limits, and policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshbus.engine.base.notices import (
    HistoryCaughtUp,
    HistoryEnded,
    HistoryFault,
    HistoryGap,
    HistoryOpened,
    HistoryWanted,
    StreamFailed,
)
from meshbus.engine.base.packets import Output
from meshbus.engine.channels import history_server
from meshbus.engine.channels.history_server import (
    MAX_PAGE_BYTES,
    MAX_READERS_PER_PEER,
    MIN_PAGE_BYTES,
    READ_US,
    SWEEP_INTERVAL_S,
)
from meshbus.engine.session.work import BURST_S, EXCESS_SHARE, PACKET_US
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.history import Cancel, ErrorCode, Read, encode_history, history_stream
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain
from tests.engine.archive import Archive, ListLog, numbers, passing, read, until
from tests.engine.badnet import BAD
from tests.engine.fleet import CHANNEL, Wiretap, meet, numbered, pair, subscribed
from tests.seeds import for_each_seed

Scene = tuple[FakeNet, FakeNode, FakeNode, Archive]


def scene(seed: int = 0, events: int = 0, **settings: object) -> Scene:
    net, publisher, reader = pair(seed, left=dict(settings))
    return net, publisher, reader, Archive(publisher, ListLog(numbered(events)))


def fault_of(node: FakeNode) -> HistoryFault | None:
    (ended,) = node.happened(HistoryEnded)
    return ended.fault


# ── the walk ────────────────────────────────────────────────────────────────────────────────


def test_a_log_is_read_to_its_end() -> None:
    net, publisher, reader, archive = scene(events=500)
    reading = read(reader, publisher, 100, follow=False)
    until(net, archive, lambda: bool(reader.happened(HistoryEnded)))
    assert reader.payloads(CHANNEL) == numbered(400, first=100)
    assert numbers(reader) == list(range(100, 500))
    assert {batch.reading for batch in reader.events} == {reading}
    assert [event.ts_ns for batch in reader.events for event in batch] == [10 * n for n in range(100, 500)]
    assert {batch.origin_hash for batch in reader.events} == {publisher.engine.identity.origin_hash}
    told = (reading, publisher.node_id, ChannelName(CHANNEL))
    assert reader.happened(HistoryOpened) == [HistoryOpened(*told)]
    assert reader.happened(HistoryCaughtUp) == [HistoryCaughtUp(*told, 500)]
    assert reader.happened(HistoryEnded) == [HistoryEnded(*told)]


def test_what_is_appended_later_follows_without_gap_or_duplicate() -> None:
    net, publisher, reader, archive = scene(events=50)
    read(reader, publisher)
    for batch in range(20):
        archive.append(numbered(7, first=50 + 7 * batch))
        passing(net, archive, 0.003)
    until(net, archive, lambda: reader.received >= 190)
    assert reader.payloads() == numbered(190)
    assert len(reader.happened(HistoryCaughtUp)) == 1
    assert reader.happened(HistoryEnded) == []


def test_a_reader_that_does_not_follow_stops_at_the_end_of_the_log_at_its_request() -> None:
    net, publisher, reader, archive = scene(events=3000, max_payload=400)
    read(reader, publisher, follow=False)
    until(net, archive, lambda: reader.received > 10)
    archive.append(numbered(500, first=3000))
    until(net, archive, lambda: bool(reader.happened(HistoryEnded)))
    assert numbers(reader) == list(range(3000))


def test_an_empty_log_and_a_start_in_the_future_are_waited_for() -> None:
    net, publisher, reader, archive = scene()
    read(reader, publisher, 10)
    until(net, archive, lambda: bool(reader.happened(HistoryCaughtUp)))
    archive.append(numbered(10))
    passing(net, archive, 0.5)
    assert reader.received == 0
    archive.append(numbered(5, first=10))
    until(net, archive, lambda: reader.received >= 5)
    assert numbers(reader) == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("size", [0, 8062, 8063, 8104, 100_000])
def test_events_of_any_size_can_be_read(size: int) -> None:
    net, publisher, reader, archive = scene()
    events = [b"before", bytes(range(256)) * (size // 256) + bytes(size % 256), b"", b"after"] * 3
    archive.append(events)
    read(reader, publisher)
    until(net, archive, lambda: reader.received >= len(events))
    assert reader.payloads() == events


def test_large_events_for_many_readers_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_server, "MAX_LARGE_PAGES_PER_PEER", 500_000)
    net, publisher, reader, archive = scene()
    event = bytes(300_000)
    archive.append([event])
    readings = [read(reader, publisher, follow=False) for _ in range(6)]
    history, most = publisher.engine.history, 0
    while len(reader.happened(HistoryEnded)) < len(readings):
        passing(net, archive, 0.01)
        most = max(most, history._large_pages.total())
    assert most == len(event), "one at a time fits, so the others had to ask again"
    assert publisher.engine.counters.get(*Reason.REFUSE_HISTORY_CLOSED.counter) > 0
    assert reader.payloads() == [event] * 6
    assert not history._large_pages


def test_a_live_subscription_is_independent_of_a_reading() -> None:
    net, publisher, reader, archive = scene(events=3)
    subscribed(reader, publisher)
    read(reader, publisher)
    until(net, archive, lambda: reader.received >= 3)
    publisher.publish(CHANNEL, [b"live"])
    passing(net, archive, 0.1)
    assert [(batch.reading, batch.payloads()) for batch in reader.events if batch.reading is None] == [
        (None, [b"live"])
    ]
    assert len(publisher.engine.admission.roster.members(CHANNEL)) == 1  # reading is no subscription


def test_a_finished_reading_leaves_nothing_behind() -> None:
    net, publisher, reader, archive = scene(events=100)
    for _ in range(5):
        read(reader, publisher, follow=False)
    until(net, archive, lambda: len(reader.happened(HistoryEnded)) == 5)
    passing(net, archive, 5.0)
    for node, other in ((publisher, reader), (reader, publisher)):
        peer = node.engine.peers.require(other.node_id)
        streams = [*peer.tx, *peer.rx]
        assert not [stream for stream in streams if stream >> 32 == Subprotocol.HISTORY], node.name
        assert len(node.engine.history) == len(node.engine.replays) == 0
        assert node.happened(StreamFailed) == []


# ── loss, retention, sessions ───────────────────────────────────────────────────────────────


@for_each_seed(range(20))
def test_every_event_comes_once_and_in_order_over_a_bad_network(seed: int) -> None:
    net, publisher, reader, archive = scene(seed, events=600, max_payload=300)
    net.path = BAD
    since = seed * 37 % 600
    read(reader, publisher, since)
    end = 600
    for turn in range(20):
        passing(net, archive, (seed + turn) % 5 * 0.05)
        archive.append(numbered(turn + 3, first=end))
        end += turn + 3
    until(net, archive, lambda: reader.received >= end - since)
    passing(net, archive, 3.0)
    assert numbers(reader) == list(range(since, end))
    assert reader.payloads() == numbered(end - since, first=since)
    assert reader.happened(HistoryGap) == []
    assert reader.happened(HistoryEnded) == []
    assert publisher.engine.counters.total("retransmit") > 0


@for_each_seed(range(10))
def test_retention_that_overtakes_a_reader_is_a_named_gap(seed: int) -> None:
    net, publisher, reader, archive = scene(seed, max_payload=1500)
    log = archive.log
    assert isinstance(log, ListLog)
    log.append(numbered(4000, 200))  # six pages
    net.path = BAD
    read(reader, publisher)
    for taken, expired in ((20, 2500), (700, 3300 + seed)):
        until(net, archive, lambda taken=taken: reader.received > taken)  # type: ignore[misc]
        log.expire(expired)
    archive.append(numbered(50, 200, first=4000))
    until(net, archive, lambda: bool(numbers(reader)) and numbers(reader)[-1] == 4049)
    gaps = reader.happened(HistoryGap)
    assert gaps
    missing = {n for gap in gaps for n in range(gap.expected, gap.first_available)}
    assert sorted(missing | set(numbers(reader))) == list(range(4050))
    assert len(missing) + reader.received == 4050  # nothing twice, nothing both lost and delivered
    assert publisher.engine.counters.get("gap", "history") == len(missing)


def test_an_expired_start_is_an_error_with_the_first_available() -> None:
    net, publisher, reader, archive = scene(events=100)
    assert isinstance(archive.log, ListLog)
    archive.log.expire(40)
    read(reader, publisher, 39)
    until(net, archive, lambda: bool(reader.happened(HistoryEnded)))
    (ended,) = reader.happened(HistoryEnded)
    assert (ended.fault, ended.first_available) == (HistoryFault.RANGE_GONE, 40)
    assert publisher.engine.counters.get(*Reason.REFUSE_HISTORY_RANGE_GONE.counter) == 1
    assert reader.received == 0
    read(reader, publisher, ended.first_available)
    until(net, archive, lambda: reader.received >= 60)
    assert numbers(reader) == list(range(40, 100))


@pytest.mark.parametrize("left", [60, 0])
def test_a_reading_can_start_at_the_first_available_event(left: int) -> None:
    net, publisher, reader, archive = scene(events=100)
    assert isinstance(archive.log, ListLog)
    archive.log.expire(100 - left)
    reading = read(reader, publisher, from_first=True, follow=False)
    until(net, archive, lambda: bool(reader.happened(HistoryEnded)))
    assert numbers(reader) == list(range(100 - left, 100))
    assert reader.happened(HistoryGap) == [HistoryGap(reading, publisher.node_id, ChannelName(CHANNEL), 0, 100 - left)]
    assert fault_of(reader) is None


@for_each_seed(range(3))
def test_new_sessions_in_the_middle_lose_and_repeat_nothing(seed: int) -> None:
    net, publisher, reader, archive = scene(seed, events=3000, max_payload=300)
    net.path = BAD
    read(reader, publisher)
    for part in range(1, 5):
        until(net, archive, lambda part=part: reader.received >= part * 300)  # type: ignore[misc]
        one, other = (publisher, reader) if part % 2 else (reader, publisher)
        one.connect(other)
        passing(net, archive, 1.0)
    until(net, archive, lambda: reader.received >= 3000)
    archive.append(numbered(10, first=3000))
    until(net, archive, lambda: reader.received >= 3010)
    passing(net, archive, 3.0)
    assert numbers(reader) == list(range(3010))


def test_reading_continues_at_its_position_after_the_publisher_restarts() -> None:
    net, publisher, reader, archive = scene(events=200)
    read(reader, publisher)
    until(net, archive, lambda: reader.received >= 200)
    again = net.create("left", identity=publisher.engine.identity)
    assert again.node_id == publisher.node_id
    new = Archive(again, archive.log)
    reader.connect(again)
    new.append(numbered(50, first=200))
    until(net, new, lambda: reader.received >= 250)
    assert numbers(reader) == list(range(250))


def test_reading_continues_after_a_partition_that_both_sides_gave_up() -> None:
    net, publisher, reader, archive = scene(events=20)
    read(reader, publisher)
    until(net, archive, lambda: reader.received >= 20)
    net.partition(["left"], ["right"])
    archive.append(numbered(5, first=20))
    passing(net, archive, 60.0)
    assert len(publisher.engine.history) == 0
    net.heal()
    reader.connect(publisher)
    until(net, archive, lambda: reader.received >= 25)
    assert numbers(reader) == list(range(25))


def test_a_reader_that_the_publisher_dropped_asks_again() -> None:
    net, publisher, reader, archive = scene(events=20)
    read(reader, publisher)
    until(net, archive, lambda: reader.received >= 20)
    net.set_path("right", "left", FakePath(loss=1.0), both=False)
    passing(net, archive, 25.0)
    assert len(publisher.engine.history) == 0
    net.set_path("right", "left", FakePath(), both=False)
    archive.append(numbered(5, first=20))
    until(net, archive, lambda: reader.received >= 25)
    assert numbers(reader) == list(range(25))


# ── bounds ──────────────────────────────────────────────────────────────────────────────────


def test_a_stalled_reader_costs_one_page_and_one_window() -> None:
    net, publisher, reader, archive = scene(window=65_536)
    archive.append([bytes(1000)] * 3000)
    reading = read(reader, publisher)
    until(net, archive, lambda: reader.received >= 100)
    reader.engine.replays.hold(reading, net.clock.now, held=True)
    passing(net, archive, 1.0)
    taken, pages = reader.received, len(archive.pages)
    passing(net, archive, 30.0)
    assert reader.received == taken
    assert len(archive.pages) == pages
    assert sum(page.max_bytes for page in archive.pages) <= taken * 1000 + 3 * MAX_PAGE_BYTES
    reader.engine.replays.hold(reading, net.clock.now, held=False)
    with reader.turn() as (engine, now, out):
        out.merge(engine.tick(now))
    until(net, archive, lambda: reader.received >= 3000)
    assert numbers(reader) == list(range(3000))


def test_a_page_holds_several_events_even_for_a_small_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.engine.channels.history_client.WANTED_BYTES", 1)
    net, publisher, reader, archive = scene(events=5000)
    read(reader, publisher)
    until(net, archive, lambda: reader.received == 5000)
    assert {page.max_bytes for page in archive.pages} == {MIN_PAGE_BYTES}
    assert len(archive.pages) <= 5


@pytest.mark.parametrize("channel", [CHANNEL, "never/logged"])
def test_a_peer_that_never_acknowledges_gets_few_streams_and_one_packet_per_further_request(
    channel: str,
) -> None:
    net, publisher, reader, archive = scene(events=1)
    engine, peer = publisher.engine, publisher.engine.peers.require(reader.node_id)
    questions = 4 * MAX_READERS_PER_PEER
    out, now = Output(), net.clock.now
    for req in range(questions):
        question = encode_history(Read(req=req, channel=ChannelName(channel), since=0, max_bytes=1))
        engine.history.receive(peer, question, now, out)
        for wanted in out.control:
            assert isinstance(wanted, HistoryWanted)
            if channel == CHANNEL:
                engine.history.page(reader.node_id, req, archive.log.page(0, 1), now, out)
            else:
                engine.history.refuse(reader.node_id, req, ErrorCode.UNKNOWN_CHANNEL, now, out)
        out.control.clear()
    traffic = engine.streams.traffic_of(peer)
    assert sum(traffic.uses(history_stream(req)) for req in range(questions)) <= MAX_READERS_PER_PEER
    assert len(out.trains) <= questions + 3 * MAX_READERS_PER_PEER
    with publisher.turn():
        pass  # its timers are known now
    passing(net, archive, 60.0)  # the reader acknowledges after all
    assert not any(traffic.uses(history_stream(req)) for req in range(questions))
    with publisher.turn() as (_, later, answer):
        engine.history.receive(
            peer, encode_history(Read(req=1, channel=ChannelName(CHANNEL), since=0, max_bytes=1)), later, answer
        )
        assert [type(event) for event in answer.control] == [HistoryWanted]


def test_reading_again_and_again_takes_no_more_than_the_share_of_a_peer() -> None:
    net, publisher, reader, _ = scene(events=1)
    engine, peer = publisher.engine, publisher.engine.peers.require(reader.node_id)
    channel, now, out = ChannelName(CHANNEL), net.clock.now, Output()
    for req in range(2000):
        engine.history.receive(peer, encode_history(Read(req=req, channel=channel, since=0, max_bytes=1)), now, out)
        engine.history.receive(peer, encode_history(Cancel(req=req)), now, out)
    pages = sum(isinstance(event, HistoryWanted) for event in out.control)
    assert 0 < pages <= BURST_S * EXCESS_SHARE * 1e6 / (READ_US - PACKET_US)
    assert engine.counters.get("refuse", "history_busy") == 2000 - pages


def test_too_many_readers_are_refused_as_busy() -> None:
    net, publisher, reader, archive = scene(events=1)
    for _ in range(MAX_READERS_PER_PEER + 3):
        read(reader, publisher)
    until(net, archive, lambda: len(reader.happened(HistoryEnded)) == 3)
    assert {ended.fault for ended in reader.happened(HistoryEnded)} == {HistoryFault.BUSY}
    assert len(publisher.engine.history) == MAX_READERS_PER_PEER
    assert publisher.engine.counters.get("refuse", "history_busy") == 3


def test_closing_a_reading_stops_the_publisher() -> None:
    net, publisher, reader, archive = scene(events=5000, max_payload=300)
    reading = read(reader, publisher)
    until(net, archive, lambda: reader.received >= 50)
    with reader.turn() as (engine, now, out):
        assert engine.replays.close(reading, now, out)
        assert not engine.replays.close(reading, now, out)
    taken = reader.received
    passing(net, archive, 2.0)
    assert len(publisher.engine.history) == 0
    assert reader.received == taken
    tap = Wiretap(net)
    archive.append(numbered(5, first=5000))
    passing(net, archive, 1.0)
    assert tap.messages(Subprotocol.HISTORY) == 0


# ── policy ──────────────────────────────────────────────────────────────────────────────────


def configure(node: FakeNode, **policy: object) -> None:
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName(CHANNEL), **policy))  # type: ignore[arg-type]
    with node.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)


GPU = CapabilityFilter(require_tags=("gpu",))


@pytest.mark.parametrize(
    ("policy", "channel", "fault"),
    [
        ({"subscribe_caps": GPU}, CHANNEL, HistoryFault.DENIED),
        ({"require_token": True}, CHANNEL, HistoryFault.DENIED),
        ({"visibility": Visibility.SUBNET_LOCAL}, CHANNEL, HistoryFault.DENIED),
        ({}, "not/configured", HistoryFault.UNKNOWN_CHANNEL),
        (None, "not/logged", HistoryFault.UNKNOWN_CHANNEL),
    ],
)
def test_a_peer_that_may_not_subscribe_may_not_read(
    policy: dict[str, object] | None, channel: str, fault: HistoryFault
) -> None:
    net, publisher, reader, archive = scene(events=5, subnet=SubnetId.new([3]))
    if policy is not None:
        configure(publisher, **policy)
    read(reader, publisher, channel=channel)
    until(net, archive, lambda: bool(reader.happened(HistoryEnded)))
    assert fault_of(reader) is fault
    reasons = {
        HistoryFault.DENIED: Reason.REFUSE_HISTORY_DENIED,
        HistoryFault.UNKNOWN_CHANNEL: Reason.REFUSE_HISTORY_UNKNOWN_CHANNEL,
    }
    assert publisher.engine.counters.get(*reasons[fault].counter) == 1
    assert reader.received == 0
    assert len(publisher.engine.history) == 0


def test_refusals_count_against_a_reader_until_it_is_throttled() -> None:
    net, publisher, reader, archive = scene(events=5)
    configure(publisher, subscribe_caps=GPU)
    for _ in range(40):
        read(reader, publisher)
        passing(net, archive, 0.02)
    faults = [ended.fault for ended in reader.happened(HistoryEnded)]
    assert faults[0] is HistoryFault.DENIED
    assert faults[-1] is HistoryFault.BUSY


def lose_capability(net: FakeNet, _publisher: FakeNode, reader: FakeNode) -> None:
    net.run(for_s=10)
    with reader.turn() as (engine, now, out):
        engine.announce(CapabilitySet(), now, out)


def change_policy(_net: FakeNet, publisher: FakeNode, _reader: FakeNode) -> None:
    configure(publisher, subscribe_caps=CapabilityFilter(require_tags=("tpu",)))


@pytest.mark.parametrize("lose", [lose_capability, change_policy])
def test_a_permission_that_ends_ends_the_reading(lose: Callable[[FakeNet, FakeNode, FakeNode], None]) -> None:
    net, publisher, reader, archive = scene(events=5)
    configure(publisher, subscribe_caps=GPU)
    with reader.turn() as (engine, now, out):
        engine.announce(CapabilitySet(("gpu",)), now, out)
    passing(net, archive, 12.0)
    read(reader, publisher)
    until(net, archive, lambda: reader.received >= 5)
    lose(net, publisher, reader)
    until(net, archive, lambda: bool(reader.happened(HistoryEnded)))
    archive.append([b"secret"])
    passing(net, archive, 1.0)
    assert fault_of(reader) is HistoryFault.DENIED
    assert reader.received == 5


def token_for(publisher: FakeNode, reader: FakeNode, ttl_s: int) -> bytes:
    net, issuer = publisher.net, publisher.engine.identity
    assert isinstance(issuer, Identity)
    token = PermissionToken.issue(
        issuer,
        reader.engine.identity.entity_id,
        Scope.SUBSCRIBE,
        CHANNEL,
        ttl_s=ttl_s,
        now=net.clock.wall(net.clock.now) // 10**9,
        entropy=net.entropy("token"),
    )
    return encode_chain((token,))


@pytest.mark.parametrize("appends", [False, True])
def test_a_token_that_runs_out_ends_the_reading(appends: bool) -> None:
    net, publisher, reader, archive = scene(events=5)
    configure(publisher, require_token=True)
    read(reader, publisher, token=token_for(publisher, reader, 100))
    until(net, archive, lambda: reader.received >= 5)
    passing(net, archive, 100.0 + publisher.engine.tokens.skew_s)
    if appends:
        archive.append([b"secret"])
    passing(net, archive, 0.5 if appends else SWEEP_INTERVAL_S + 1)
    assert fault_of(reader) is HistoryFault.DENIED
    assert reader.received == 5


def test_queued_events_are_not_sent_after_the_permission_ended() -> None:
    net, publisher, reader, archive = scene(window=65_536)
    configure(publisher, require_token=True)
    archive.append([bytes(1000)] * 500)
    reading = read(reader, publisher, token=token_for(publisher, reader, 1000))
    until(net, archive, lambda: reader.received > 0)
    reader.engine.replays.hold(reading, net.clock.now, held=True)
    passing(net, archive, 1.0)
    held_at = reader.received
    publisher.engine.tokens.revoke_below(publisher.engine.identity.entity_id, 1)
    with publisher.turn() as (engine, now, out):
        engine.recheck(now, out)
    reader.engine.replays.hold(reading, net.clock.now, held=False)
    with reader.turn() as (engine, now, out):
        out.merge(engine.tick(now))
    until(net, archive, lambda: bool(reader.happened(HistoryEnded)))
    assert fault_of(reader) is HistoryFault.DENIED
    assert reader.received <= held_at + 65  # what was on the way: a window
    assert reader.received < 500


def test_a_reader_that_no_longer_sees_the_channel_waits_and_loses_nothing() -> None:
    net, publisher, reader, archive = scene(events=5, subnet=SubnetId.new([3]))
    configure(publisher)
    read(reader, publisher)
    until(net, archive, lambda: reader.received >= 5)
    configure(publisher, visibility=Visibility.SUBNET_LOCAL)
    archive.append(numbered(5, first=5))
    passing(net, archive, SWEEP_INTERVAL_S + 1)
    assert (reader.received, len(publisher.engine.history)) == (5, 1)
    configure(publisher)
    until(net, archive, lambda: reader.received >= 10)
    assert numbers(reader) == list(range(10))


def test_a_revoked_token_ends_the_reading_at_once() -> None:
    net, publisher, reader, archive = scene(events=5)
    configure(publisher, require_token=True)
    read(reader, publisher, token=token_for(publisher, reader, 1000))
    until(net, archive, lambda: reader.received >= 5)
    publisher.engine.tokens.revoke_below(publisher.engine.identity.entity_id, 1)
    with publisher.turn() as (engine, now, out):
        engine.recheck(now, out)
    passing(net, archive, 0.5)
    assert fault_of(reader) is HistoryFault.DENIED


# ── hostile and late ────────────────────────────────────────────────────────────────────────


def test_malformed_messages_are_only_counted() -> None:
    _net, publisher, reader, _archive = scene(events=5)
    engine, peer = publisher.engine, publisher.engine.peers.require(reader.node_id)
    out = Output()
    for message in (b"", b"\xff", bytes(100), encode_history(Cancel(req=9))):
        engine.history.receive(peer, message, 0.0, out)
    assert engine.counters.get("drop", "history_malformed") == 3
    assert engine.counters.get("drop", "cancel_late") == 1
    assert not out.trains
    assert not out.control


def test_a_repeated_request_is_one_reader() -> None:
    net, publisher, reader, _ = scene(events=5)
    engine, peer = publisher.engine, publisher.engine.peers.require(reader.node_id)
    out = Output()
    question = encode_history(Read(req=9, channel=ChannelName(CHANNEL), since=0, max_bytes=100))
    for _ in range(2):
        engine.history.receive(peer, question, net.clock.now, out)
    assert [type(event) for event in out.control] == [HistoryWanted]
    assert engine.counters.get("drop", "history_duplicate") == 1


def test_a_page_without_a_reader_is_dropped() -> None:
    net, publisher, reader, archive = scene(events=5)
    with publisher.turn() as (engine, now, out):
        engine.history.page(reader.node_id, 7, archive.log.page(0, 100), now, out)
        engine.history.refuse(reader.node_id, 7, ErrorCode.UNKNOWN_CHANNEL, now, out)
        assert not out.trains
    assert publisher.engine.counters.get("drop", "page_late") == 1
    assert net.clock.now > 0


def test_reading_continues_after_the_publisher_closed_its_readers() -> None:
    net, publisher, reader, archive = scene(events=5)
    read(reader, publisher)
    until(net, archive, lambda: reader.received >= 5)
    with publisher.turn() as (engine, now, out):
        engine.history.closing(now, out)
    assert len(publisher.engine.history) == 0
    archive.append(numbered(5, first=5))
    until(net, archive, lambda: reader.received >= 10)
    assert numbers(reader) == list(range(10))
    assert reader.happened(HistoryEnded) == []


def test_history_of_plain_peers_cannot_be_read_and_they_get_no_message() -> None:
    net = FakeNet(3)
    plain, reader = net.create("plain", profile=False), net.create("reader")
    tap = Wiretap(net)
    meet(plain, reader)
    with pytest.raises(Exception, match="cannot serve history"):
        read(reader, plain)
    net.run(for_s=5)
    assert Subprotocol.HISTORY not in tap.ids(reader, plain)
