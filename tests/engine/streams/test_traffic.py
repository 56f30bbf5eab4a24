"""Test the streams with one peer: credit, grants, holding, messages, and both kinds of stream under one id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import MAX_STREAMS
from meshbus.engine.session.stream import GRANT_DELAY_S, PROBE_S
from meshbus.engine.streams import traffic as traffic_module
from meshbus.engine.streams.outbox import TURN_PACKETS, Leg
from meshbus.engine.streams.traffic import MAX_GRANTS, MAX_MESSAGES
from meshbus.errors import Backpressure
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.constants import PACKET_COST, STREAM_WINDOW, Flags, Subprotocol
from meshbus.wire.header import Header
from meshbus.wire.messages.reliable import FIRST_SEQUENCE
from meshbus.wire.messages.window import Grant, encode_grant
from tests.engine.ends import SERVED, STREAM, Ends
from tests.engine.fleet import numbered

COST = PACKET_COST + 4 + 1000
"""Cost in credit of a packet with one event of 1000 bytes."""


def test_a_plain_stream_sends_what_its_credit_allows_and_continues_with_each_grant() -> None:
    ends = Ends(profile=False)
    left, right = ends.left, ends.right
    events = numbered(150, size=1000)
    out = left.send(events)
    answer, first = ends.carry(out, right)
    assert len(first) == STREAM_WINDOW // COST
    assert left.ended == []
    assert left.counters.get("stall", "credit") == 1
    # A window's fourth part was taken in, so the grant went out with the batch.
    more, (grant,) = ends.carry(answer, left)
    assert grant.subprotocol_id == Subprotocol.STREAM_WINDOW
    again, second = ends.carry(more, right)
    assert [header.sequence for header in (*first, *second)] == list(range(2 * len(first)))
    delivered = [payload for batch in (*answer.events, *again.events) for payload in batch.payloads()]
    assert delivered + ends.settle(again, left) == events
    assert left.ended == [("leg", True)]


def test_everything_arrives_once_however_small_the_window() -> None:
    ends = Ends(profile=False, window=3 * COST)
    events = numbered(100, size=1000)
    assert ends.settle(ends.left.send(events), ends.right) == events
    assert ends.left.ended == [("leg", True)]


def test_grants_wait_a_little_for_more_and_share_a_packet() -> None:
    ends = Ends(profile=False)
    left, right = ends.left, ends.right
    out = left.send([b"x"], stream_id=5)
    out.merge(left.send([b"y"], stream_id=6))
    answer, _ = ends.carry(out, right, now=1.0)
    assert answer.trains == []
    assert right.streams.next_timer() == 1.0 + GRANT_DELAY_S
    assert right.tick(1.0).trains == []
    granting = right.tick(1.0 + GRANT_DELAY_S)
    _, (header,) = ends.carry(granting, left, now=1.1)
    # Two streams, each in both forms, as the level of the peer is unknown.
    assert (header.subprotocol_id, header.event_count) == (Subprotocol.STREAM_WINDOW, 4)
    assert {left.peer.tx_stream(stream).credit for stream in (5, 6)} == {STREAM_WINDOW}
    assert right.streams.next_timer() is None


def test_who_gets_no_credit_in_time_is_backpressured() -> None:
    ends = Ends(profile=False, window=2 * COST)
    left = ends.left
    left.send(numbered(3, size=1000), name="slow", deadline=5.0)
    left.send(numbered(1, size=1000), name="behind", deadline=6.0)
    assert left.streams.next_timer() == PROBE_S
    left.tick(4.9)
    assert left.ended == []
    left.tick(5.0)
    assert left.ended == [("slow", False)]
    left.tick(6.0)
    assert left.ended == [("slow", False), ("behind", False)]
    left.tick(100.0)
    assert left.streams.next_timer() is None, "nothing waits, so nobody is asked"


def test_high_priority_passes_what_waits() -> None:
    ends = Ends(profile=False, window=TURN_PACKETS * COST)
    left, right = ends.left, ends.right
    left.send(numbered(TURN_PACKETS + 1, size=1000), stream_id=1, name="bulk")
    assert left.ended == []
    out = left.send([b"alarm"], stream_id=2, priority=200, name="alarm")
    assert left.ended == [("alarm", True)]
    for train in out.trains:
        header, _ = right.peer.link.opener.open(next(train.datagrams()))
        assert (header.stream_id, header.priority) == (2, 200)


def test_grants_that_mean_nothing_are_counted() -> None:
    ends = Ends(profile=False)
    left = ends.left
    left.send(numbered(5, size=1000))
    stream = left.peer.tx_stream(STREAM)
    before = stream.credit
    for message, reason in (
        (b"", "grant_malformed"),
        (bytes(15), "grant_malformed"),
        (bytes(17), "grant_malformed"),
        (encode_grant(Grant(stream_id=99, total_consumed=5)), "grant_unknown_stream"),
    ):
        count = left.counters.get("drop", reason)
        left.traffic.on_grant(message, 0.0, Output())
        assert left.counters.get("drop", reason) == count + 1
    assert stream.credit == before
    # More than was sent is worth what was sent, once.
    for _ in range(2):
        left.traffic.on_grant(encode_grant(Grant(stream_id=STREAM, total_consumed=(1 << 64) - 1)), 0.0, Output())
        assert stream.credit == STREAM_WINDOW
    assert left.counters.get("drop", "grant_excess") == 2
    left.traffic.on_grant(encode_grant(Grant(stream_id=STREAM, total_consumed=1)), 0.0, Output())
    assert stream.credit == STREAM_WINDOW
    assert 99 not in left.peer.tx


@pytest.mark.parametrize("reliable", [False, True])
def test_holding_stops_the_sender_and_releasing_resumes_it(reliable: bool) -> None:
    ends = Ends(profile=reliable)
    left, right = ends.left, ends.right
    right.traffic.hold(STREAM, 0.0, held=True)
    events = numbered(400, size=1000)
    delivered = ends.settle(left.send(events, reliable=reliable, deadline=1e9), right)
    assert 0 < len(delivered) <= STREAM_WINDOW // COST
    now = 0.0
    for _ in range(200):  # probes and repetitions of what came already, but nothing new
        now += 0.1
        delivered += ends.settle(left.tick(now), right, now)
        delivered += ends.settle(right.tick(now), left, now)
    assert 0 < len(delivered) <= STREAM_WINDOW // COST
    assert left.ended == []
    right.traffic.hold(STREAM, now, held=False)
    for _ in range(200):
        delivered += ends.settle(right.tick(now), left, now)
        delivered += ends.settle(left.tick(now), right, now)
        now += 0.01
    assert delivered == events
    assert left.ended == [("leg", True)]


def test_a_held_stream_owes_its_grant_until_it_is_released() -> None:
    ends = Ends(profile=False)
    right = ends.right
    ends.carry(ends.left.send([b"before"]), right, 1.0)
    right.traffic.hold(STREAM, 1.0, held=True)
    assert right.tick(2.0).trains == []
    right.traffic.hold(9, 2.0, held=True)
    for stream_id in (STREAM, 9):
        ends.carry(ends.left.send([b"while"], stream_id=stream_id), right, 2.0)
    assert right.streams.next_timer() is None
    right.traffic.hold(STREAM, 3.0, held=False)
    ends.carry(right.tick(3.0), ends.left, 3.0)
    assert ends.left.peer.tx_stream(STREAM).credit == STREAM_WINDOW


def test_releasing_what_was_not_held_sends_nothing() -> None:
    ends = Ends()
    ends.settle(ends.left.send([b"x"], reliable=True), ends.right)
    ends.settle(ends.right.tick(1.0), ends.left, 1.0)
    ends.right.traffic.hold(STREAM, 1.0, held=False)
    assert ends.right.tick(1.0).trains == []


def test_reliable_and_plain_packets_share_a_stream() -> None:
    ends = Ends(window=20 * COST)
    left, right = ends.left, ends.right
    delivered: list[bytes] = []
    events = numbered(300, size=1000)
    now = 0.0
    for start in range(0, 300, 30):
        out = left.send(events[start : start + 30], now, reliable=start % 60 == 0, pub_seq=100 + start, deadline=1e9)
        delivered += ends.settle(out, right, now)
    for _ in range(100):
        now += 0.01
        delivered += ends.settle(right.tick(now), left, now)
        delivered += ends.settle(left.tick(now), right, now)
    assert delivered == events
    assert len(left.ended) == 10
    assert left.peer.tx_stream(STREAM).credit == 20 * COST


def test_the_sequence_distinguishes_the_two_kinds() -> None:
    ends = Ends()
    out = ends.left.send([b"a"], reliable=True)
    out.merge(ends.left.send([b"b"]))
    _, (base, reliable, plain) = ends.carry(out, ends.right)
    assert base.subprotocol_id == Subprotocol.RELIABLE
    assert reliable.flags & Flags.RELIABLE
    assert reliable.sequence >= FIRST_SEQUENCE
    assert not plain.flags & Flags.RELIABLE
    assert plain.sequence < FIRST_SEQUENCE


def test_without_an_agreement_reliable_is_only_a_flag() -> None:
    ends = Ends(profile=False)
    answer, (header,) = ends.carry(ends.left.send([b"a"], reliable=True), ends.right)
    assert header.flags == Flags.RELIABLE
    assert header.sequence == 0
    assert [batch.payloads() for batch in answer.events] == [[b"a"]]
    assert ends.left.streams.next_timer() is not None, "it may be acknowledged"
    ends.left.traffic.on_grant(encode_grant(Grant(stream_id=STREAM, total_consumed=89)), 0.0, Output())
    assert ends.left.peer.dialect.level is Level.A
    assert ends.left.streams.next_timer() is None, "level A acknowledges nothing"


def test_messages_travel_in_order_on_a_stream_of_their_own() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    out = Output()
    for n in range(200):
        left.traffic.send_reliable(SERVED, bytes([n]), 0.0, out)
    now = 0.0
    ends.settle(out, right)
    for _ in range(50):
        now += 0.01
        ends.settle(right.tick(now), left, now)
        ends.settle(left.tick(now), right, now)
    assert right.probe.served == [(SERVED, bytes([n])) for n in range(200)]


def test_too_many_waiting_messages_are_refused() -> None:
    ends = Ends()
    traffic, out = ends.left.traffic, Output()
    while traffic.outbox.waiting(SERVED) < MAX_MESSAGES:
        traffic.send_reliable(SERVED, b"x" * 100, 0.0, out)
    with pytest.raises(Backpressure):
        traffic.send_reliable(SERVED, b"x" * 100, 0.0, out)
    assert traffic.outbox.waiting(SERVED) == MAX_MESSAGES


def test_too_many_waiting_large_messages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "MAX_LARGE_BYTES", 300_000)
    ends = Ends()
    peer = ends.left.peer
    peer.negotiated = NegotiatedSet(peer.negotiated.compatible | {Subprotocol.LARGE})
    traffic, out = ends.left.traffic, Output()
    for _ in range(4):  # as many bytes as may wait, and one more message
        traffic.send_large(SERVED, bytes(100_000), 1000, 0.0, out)
    with pytest.raises(Backpressure):
        traffic.send_large(SERVED, bytes(100_000), 1000, 0.0, out)
    traffic.close()
    traffic.send_large(SERVED, bytes(100_000), 1000, 0.0, out)


def test_messages_of_the_profile_wait_for_an_agreement() -> None:
    ends = Ends(profile=False)
    out = Output()
    ends.left.traffic.send_reliable(SERVED, b"hello", 0.0, out)
    assert out.trains == []
    agreed, _ = ends.agree(1.0)
    ends.settle(agreed, ends.right, 1.0)
    assert ends.right.probe.served == [(SERVED, b"hello")]


def test_a_first_burst_respects_the_congestion_window() -> None:
    ends = Ends(window=1 << 20)
    _, headers = ends.carry(ends.left.send(numbered(500), reliable=True), ends.right)
    assert len(headers) <= 66  # the window of a stream on one machine, and its BASE


def test_closing_ends_what_waits() -> None:
    ends = Ends(profile=False, window=COST)
    ends.left.send(numbered(2, size=1000))
    ends.left.drop()
    assert ends.left.ended == [("leg", False)]
    assert ends.left.streams.next_timer() is None


def test_grants_are_owed_for_a_bounded_number_of_streams() -> None:
    ends = Ends(profile=False)
    traffic = ends.right.traffic
    for stream_id in range(3 * MAX_STREAMS):
        traffic.consumed(traffic.peer.rx_stream(stream_id), 1, 100, 0.0)
    out = Output()
    traffic.confirm(1.0, out)
    answered = sum(len(list(train.datagrams())) for train in out.trains)
    assert answered == -(-MAX_STREAMS // MAX_GRANTS)
    assert len(ends.right.peer.rx) <= MAX_STREAMS
    assert traffic.next_timer() is None


STREAM_OF_ONE = 0x4D02_0000_0001


def told(outcomes: list[bool]) -> Callable[[Leg, bool], None]:
    return lambda _leg, sent: outcomes.append(sent)


def test_messages_on_a_stream_of_their_own_end_with_it() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    out, outcomes = Output(), list[bool]()
    left.traffic.send_messages(SERVED, STREAM_OF_ONE, [b"a", b"b"], told(outcomes), 0.0, out)
    left.traffic.finish(STREAM_OF_ONE, 0.0, out)
    assert outcomes == [True]
    now = 0.0
    ends.settle(out, right)
    for _ in range(20):
        now += 0.01
        ends.settle(right.tick(now), left, now)
        ends.settle(left.tick(now), right, now)
    assert right.probe.served == [(SERVED, b"a"), (SERVED, b"b")]
    assert STREAM_OF_ONE not in left.peer.tx  # neither side keeps anything
    assert STREAM_OF_ONE not in right.peer.rx
    assert left.streams.next_timer() is None
    again = Output()
    left.traffic.send_messages(SERVED, STREAM_OF_ONE, [b"c"], told(outcomes), now, again)
    ends.settle(again, right, now)
    assert right.probe.served[-1] == (SERVED, b"c")


def test_a_stream_ends_only_behind_what_waits_for_it() -> None:
    ends = Ends(profile=False)
    left, right = ends.left, ends.right
    out, outcomes = Output(), list[bool]()
    left.traffic.send_messages(SERVED, STREAM_OF_ONE, [b"a"], told(outcomes), 0.0, out)
    left.traffic.finish(STREAM_OF_ONE, 0.0, out)
    assert (out.trains, outcomes) == ([], [])
    agreed, _ = ends.agree(1.0)
    ends.settle(agreed, right, 1.0)
    assert right.probe.served == [(SERVED, b"a")]
    assert outcomes == [True]


def test_an_abandoned_stream_sends_nothing_more_and_is_no_failure() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    out, outcomes = Output(), list[bool]()
    left.traffic.send_messages(SERVED, STREAM_OF_ONE, [bytes(1000)] * 200, told(outcomes), 0.0, out)
    assert left.traffic.outbox.waiting(STREAM_OF_ONE) == 1
    left.traffic.abandon(STREAM_OF_ONE, out)
    assert outcomes == [False]
    ends.settle(out, right)
    assert len(right.probe.served) < 200
    assert left.tick(60.0).trains == []
    assert left.counters.get("fail", "reliable_stream") == 0
    left.traffic.abandon(STREAM_OF_ONE, out)  # twice is fine


def test_a_single_best_effort_event_takes_the_short_way_only_if_nothing_is_in_its_way() -> None:
    payload, header = bytes(1004), Header(stream_id=STREAM)

    def short(ends: Ends, header: Header = header) -> list[int]:
        out = Output()
        traffic = ends.left.streams.traffic_of(ends.left.peer)
        sent = traffic.send_plain(header, payload, 1, 0.0, out)
        assert sent == bool(out.trains)
        opened = [ends.right.peer.link.opener.open(next(train.datagrams()))[0] for train in out.trains]
        return [one.sequence for one in opened]

    others = reliable, plain, waiting = Ends(), Ends(profile=False), Ends(window=2 * COST)
    ends = Ends(window=2 * COST)
    assert short(ends) == [], "the stream does not exist yet"
    for one in (ends, *others):
        one.left.peer.tx_stream(STREAM)
    assert [short(ends), short(ends)] == [[0], [1]]
    assert ends.left.peer.tx_stream(STREAM).credit == 0
    assert short(ends) == [], "no credit is left"
    assert short(reliable, Header(stream_id=STREAM, flags=Flags.RELIABLE)) == []
    assert short(plain) == [], "a plain peer may need more than this"
    waiting.left.send(numbered(3, size=1000))
    waiting.left.peer.tx_stream(STREAM).credit = 10 * COST
    assert short(waiting) == [], "it would overtake what waits"
