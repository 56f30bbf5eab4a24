"""Reliable streams to net-mesh peers: what is kept, what is repeated, and when it is given up."""

from __future__ import annotations

import pytest

from meshbus.engine.base.notices import StreamFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import Level
from meshbus.engine.streams.repeating import GIVE_UP_S, MAX_AHEAD, MAX_KEPT, RepeatedStream
from meshbus.wire.constants import Flags, Subprotocol
from meshbus.wire.header import Header
from meshbus.wire.messages.streamrepair import (
    StreamNack,
    StreamRanges,
    encode_nack,
    encode_ranges,
)
from meshbus.wire.messages.window import Grant, encode_grant
from tests.engine.ends import Ends
from tests.engine.fleet import numbered
from tests.engine.streams.levelb import LevelB
from tests.engine.streams.plainnet import USER_STREAM, PlainNet
from tests.seeds import for_each_seed

RELIABLE, START = int(Flags.RELIABLE), int(Flags.START)


def grant(ends: Ends, ack_seq: int | None, total: int = 0, now: float = 0.0) -> Output:
    out = Output()
    message = encode_grant(Grant(stream_id=USER_STREAM, total_consumed=total, ack_seq=ack_seq))
    ends.left.traffic.on_grant(message, now, out)
    return out


@for_each_seed(range(4))
def test_everything_arrives_once_and_in_order_through_loss(seed: int) -> None:
    net = PlainNet(loss=0.05, seed=seed)
    events = numbered(400, size=200)
    net.run(net.left.send(events, reliable=True, stream_id=USER_STREAM, deadline=1e9), net.left, until=300.0)
    assert net.delivered == events
    assert net.left.peer.dialect.level is Level.B, "a node that grants in 24 bytes"
    assert net.left.counters.get("retransmit", "nack") > 0
    assert not any(isinstance(notice, StreamFailed) for notice in net.control)


def test_without_loss_nothing_is_repeated_or_asked() -> None:
    net = PlainNet()
    events = numbered(300, size=200)
    net.run(net.left.send(events, reliable=True, stream_id=USER_STREAM, deadline=1e9), net.left, until=60.0)
    assert net.delivered == events
    assert {"retransmit", "loss"}.isdisjoint(net.left.counters.snapshot())
    assert {flags for name, _, flags in net.sent if name == "left"} == {RELIABLE}, "as a 0.23 node is used to it"


def test_the_first_packet_of_a_session_decides_what_a_stream_is() -> None:
    ends = Ends(profile=False)
    left = ends.left
    headers = [
        header
        for reliable in (False, True)
        for header in ends.carry(left.send([b"x"], reliable=reliable, stream_id=USER_STREAM), ends.right)[1]
    ]
    assert [header.flags for header in headers] == [0, 0], (
        "a plain stream stays plain, without a flag that binds nobody"
    )
    headers = [
        header
        for reliable in (True, False)
        for header in ends.carry(left.send([b"x"], reliable=reliable, stream_id=78), ends.right)[1]
    ]
    assert [(header.flags, header.sequence) for header in headers] == [(RELIABLE, 0), (RELIABLE, 1)]


def test_a_peer_of_level_a_sees_the_flag_and_nothing_else() -> None:
    ends = Ends(profile=False)
    left = ends.left
    left.send(numbered(3), reliable=True, stream_id=USER_STREAM)
    grant(ends, None, 300)
    assert left.peer.dialect.level is Level.A
    assert left.tick(100.0).trains == [], "neither a question nor a repeat"
    [train] = left.send([b"x"], 100.0, reliable=True, stream_id=USER_STREAM).trains
    *_, (header, _) = [ends.right.peer.link.opener.open(datagram) for datagram in train.datagrams()]
    assert (header.flags, header.sequence) == (RELIABLE, 3)


def test_no_more_is_on_the_way_than_a_receiver_accepts_ahead_of_a_gap() -> None:
    ends = Ends(profile=False)
    left = ends.left
    out = left.send(numbered(200), reliable=True, stream_id=USER_STREAM, deadline=1e9)
    assert sum(len(list(train.datagrams())) for train in out.trains) == MAX_AHEAD
    for now in range(1, 29):
        left.tick(float(now))
    stream = left.traffic.repeating.stream(Header(stream_id=USER_STREAM), 0.0)
    assert stream is not None
    assert stream.outstanding == MAX_KEPT
    out = grant(ends, 10, 1000, 29.0)
    assert out.trains == [], "still more than MAX_AHEAD"
    assert stream.outstanding == MAX_KEPT - 10


@for_each_seed(range(12))
def test_level_b_sees_every_event_once_however_old_its_nacks_are(seed: int) -> None:
    """Its application sees every copy that arrives."""
    world = LevelB(loss=0.02 + 0.02 * (seed % 3), stall=0.02, seed=seed)
    events = numbered(600, size=200)
    world.run(world.left.send(events, reliable=True, stream_id=USER_STREAM, deadline=1e9), until=600.0)
    assert sorted(world.delivered) == sorted(events)
    assert world.left.counters.get("retransmit", "nack") > 0
    assert world.left.counters.get("fail", "reliable_stream") == 0


def test_a_nack_repeats_a_packet_once_in_a_round_trip() -> None:
    ends = Ends(profile=False)
    left, repeating = ends.left, ends.left.traffic.repeating
    left.peer.dialect.learn(Level.B)
    left.send(numbered(5), reliable=True, stream_id=USER_STREAM)
    nack = StreamNack(stream_id=USER_STREAM, next_expected=1, bitmap=0b10)

    def repeated(now: float) -> list[int]:
        out = Output()
        repeating.on_nack(nack, now, out)
        return [
            ends.right.peer.link.opener.open(datagram)[0].sequence
            for train in out.trains
            for datagram in train.datagrams()
        ]

    assert repeated(0.1) == [1, 3], "packet 0 is acknowledged, so that the round trip is known"
    assert repeated(0.101) == [], "the copies are on the way"
    assert repeated(2.0) == [], "nor does an old NACK show that the copies are lost"
    left.tick(3.0)
    assert repeated(3.1) == [], "nothing shows that a packet arrived which was sent after the copies"
    nack = StreamNack(stream_id=USER_STREAM, next_expected=1, bitmap=0b1010)
    assert repeated(3.2) == [1, 3, 5], "the receiver has the question, 6, so that it misses the hole, 5"
    nack = StreamNack(stream_id=USER_STREAM, next_expected=1, bitmap=(1 << 64) - 1)
    assert repeated(9.0) == [2, 4, 6], "what was sent after those copies cannot have arrived, because there is none"


def test_a_question_is_repeated_until_its_hole_is_asked_for() -> None:
    ends = Ends(profile=False)
    left, repeating = ends.left, ends.left.traffic.repeating
    left.peer.dialect.learn(Level.B)
    left.send(numbered(3), reliable=True, stream_id=USER_STREAM)

    def sequences(out: Output) -> list[tuple[int, int, int]]:
        datagrams = [datagram for train in out.trains for datagram in train.datagrams()]
        headers = [ends.right.peer.link.opener.open(datagram)[0] for datagram in datagrams]
        return [(header.sequence, header.event_count, header.channel_hash) for header in headers]

    def nack(next_expected: int, bitmap: int, now: float) -> list[tuple[int, int, int]]:
        out = Output()
        repeating.on_nack(StreamNack(stream_id=USER_STREAM, next_expected=next_expected, bitmap=bitmap), now, out)
        return sequences(out)

    assert sequences(left.tick(1.0)) == [(3, 0, 0)], "nothing is in doubt, so that there is no hole"
    assert nack(1, 0, 1.1) == [(1, 1, USER_STREAM)]
    assert sequences(left.tick(4.0)) == [(5, 0, 0)], "4 is the hole"
    assert sequences(left.tick(7.0)) == [(5, 0, 0)]
    grant(ends, 5, 500, 7.05)
    assert left.counters.get("drop", "bad_ack") == 1, "nobody has the hole"
    assert nack(4, 0, 7.1) == [(4, 0, USER_STREAM)], "the copy of 1 had arrived"
    assert sequences(left.tick(10.0)) == [(7, 0, 0)], "the copy of 4 is in doubt now"
    grant(ends, 4, 100, 10.1)
    assert nack(4, 0b10, 10.2) == [(4, 0, USER_STREAM), (6, 0, USER_STREAM)]
    grant(ends, 8, 1000, 10.3)
    assert left.streams.next_timer() is None


@pytest.mark.parametrize(("level", "asked"), [(None, [3, 4, 5]), (Level.B, [3, 5, 5])])
def test_a_second_question_leaves_a_hole_if_the_receiver_is_known_to_ask_for_it(
    level: Level | None, asked: list[int]
) -> None:
    ends = Ends(profile=False)
    if level is not None:
        ends.left.peer.dialect.learn(level)
    ends.left.send(numbered(3), reliable=True, stream_id=USER_STREAM)
    trains = [train for now in (1.0, 4.0, 7.0) for train in ends.left.tick(now).trains]
    datagrams = [datagram for train in trains for datagram in train.datagrams()]
    assert [ends.right.peer.link.opener.open(datagram)[0].sequence for datagram in datagrams] == asked


def test_what_arrived_by_range_is_not_repeated() -> None:
    ends = Ends(profile=False)
    repeating = ends.left.traffic.repeating
    ends.left.send(numbered(5), reliable=True, stream_id=USER_STREAM)
    repeating.on_ranges(StreamRanges(stream_id=USER_STREAM, ack_seq=1, ranges=((3, 5),)), 0.1)
    out = Output()
    repeating.on_nack(StreamNack(stream_id=USER_STREAM, next_expected=1, bitmap=(1 << 64) - 1), 1.0, out)
    sequences = [ends.right.peer.link.opener.open(d)[0].sequence for train in out.trains for d in train.datagrams()]
    assert sequences == [1, 2]


def test_acknowledgements_of_what_was_never_sent_are_counted() -> None:
    ends = Ends(profile=False)
    left = ends.left
    left.send(numbered(2), reliable=True, stream_id=USER_STREAM)
    grant(ends, 3, 10)
    left.traffic.repeating.on_ranges(StreamRanges(stream_id=USER_STREAM, ack_seq=0, ranges=((1, 9),)), 0.0)
    assert left.counters.get("drop", "bad_ack") == 2
    left.traffic.repeating.on_nack(StreamNack(stream_id=5, next_expected=0), 0.0, Output())
    left.traffic.repeating.on_ranges(StreamRanges(stream_id=5, ack_seq=0, ranges=((1, 9),)), 0.0)
    assert left.counters.get("drop", "repair_unknown_stream") == 2


@pytest.mark.parametrize(("level", "first"), [(Level.B, 0), (Level.C, 4)])
def test_a_stream_that_is_given_up_goes_on_as_its_level_wants_it(level: Level, first: int) -> None:
    ends = Ends(profile=False)
    left = ends.left
    left.peer.dialect.learn(level)
    left.send(numbered(3), reliable=True, stream_id=USER_STREAM)
    left.tick(1.0)  # a question: sequence 3
    out = left.tick(GIVE_UP_S + 1.0)
    [failed] = [notice for notice in out.control if isinstance(notice, StreamFailed)]
    assert "did not acknowledge" in failed.problem
    assert left.counters.get("loss", "unacknowledged_packets") == 4
    _, headers = ends.carry(out, ends.right, 40.0)
    resets = [header for header in headers if header.subprotocol_id == Subprotocol.STREAM_RESET]
    assert len(resets) == (level is Level.B)
    out = left.send([b"a", b"b"], 40.0, reliable=True, stream_id=USER_STREAM)
    out.merge(left.tick(41.0))
    _, headers = ends.carry(out, ends.right, 41.0)
    assert [(header.sequence, header.flags) for header in headers[:2]] == [
        (first, RELIABLE | START),
        (first + 1, RELIABLE),
    ]


def test_the_start_flag_stays_with_its_packet() -> None:
    stream = RepeatedStream(USER_STREAM, 0.0)
    stream.restart(0.0, at_zero=True)
    assert stream.room == 1, "no other packet may carry it"
    assert stream.header(Header(stream_id=USER_STREAM)).flags == RELIABLE | START
    stream.sent_one(0, b"first", 0.0)
    stream.header(Header(stream_id=USER_STREAM))
    stream.sent_one(1, b"second", 0.0)
    again = stream.missing(StreamNack(stream_id=USER_STREAM, next_expected=0, bitmap=1), 5.0)
    assert [stream.reply_to(packet).flags for packet in again] == [RELIABLE | START, RELIABLE]


def test_a_new_session_reports_what_was_not_acknowledged() -> None:
    ends = Ends(profile=False)
    ends.left.send(numbered(3), reliable=True, stream_id=USER_STREAM)
    out = Output()
    ends.left.traffic.renew(1.0, out)
    assert [type(notice) for notice in out.control] == [StreamFailed]
    assert ends.left.streams.next_timer() is None


def test_a_hostile_receiver_gets_few_copies() -> None:
    """It names everything in each NACK, claims that it has the newest packet, and acknowledges nothing."""
    ends = Ends(profile=False)
    left = ends.left
    left.peer.dialect.learn(Level.B)
    left.send(numbered(200), reliable=True, stream_id=USER_STREAM, deadline=1e9)
    stream = left.traffic.repeating.stream(Header(stream_id=USER_STREAM), 0.0)
    assert stream is not None
    copies, now, until = 0, 0.0, 10.0
    while now < until:
        now += 0.001
        out = left.tick(now)
        nack = StreamNack(stream_id=USER_STREAM, next_expected=0, bitmap=(1 << stream.outstanding - 2) - 1)
        left.traffic.repeating.on_nack(nack, now, out)
        copies += sum(len(list(train.datagrams())) for train in out.trains)
    # Each copy of a packet needs a question before it, and the time between questions doubles.
    assert copies <= 12 * MAX_KEPT, "10 000 NACKs"
    assert stream.outstanding <= MAX_KEPT


def test_messages_of_hostile_peers_change_nothing() -> None:
    ends = Ends(profile=False)
    left = ends.left
    left.send(numbered(3), reliable=True, stream_id=USER_STREAM)
    nack = StreamNack(stream_id=USER_STREAM, next_expected=(1 << 64) - 1, bitmap=(1 << 64) - 1)
    out = Output()
    left.engine.reception.handlers[Subprotocol.STREAM_NACK](left.peer, memoryview(encode_nack(nack)), 1.0, out)
    assert out.trains == []
    far = encode_ranges(StreamRanges(stream_id=USER_STREAM, ack_seq=0, ranges=((5, (1 << 64) - 1),)))
    left.engine.reception.handlers[Subprotocol.STREAM_RANGES](left.peer, memoryview(far), 1.0, out)
    assert left.counters.get("drop", "bad_ack") == 2
    stream = left.traffic.repeating.stream(Header(stream_id=USER_STREAM), 0.0)
    assert stream is not None
    assert stream.outstanding == 3
