"""Reliable streams of net-mesh peers: order, repeats, gaps, and what is granted for them."""

from __future__ import annotations

import numpy as np
import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import RANGES_TAG, Level
from meshbus.engine.session.peer import MAX_STREAMS
from meshbus.engine.streams.ordering import GAP_S, MAX_ASKED, NACK_S, PROBE_STREAM, REOPEN_S, Ordering
from meshbus.engine.streams.reliable import Ready
from meshbus.engine.streams.reorder import DEFAULT_CAPACITY, Payloads
from meshbus.policy.capability import CapabilitySet
from meshbus.wire.constants import STREAM_WINDOW, Subprotocol
from meshbus.wire.frames import pack_frames, unpack_frames
from meshbus.wire.header import Header
from meshbus.wire.messages.streamrepair import StreamReset, decode_nack, decode_ranges, encode_reset
from meshbus.wire.messages.window import Grant, decode_grant, encode_grant
from tests.engine.ends import Ends
from tests.engine.streams.plainnet import USER_STREAM


class Side:
    """The receiving side of one ordered stream."""

    def __init__(self, level: Level | None = Level.B) -> None:
        self.ends = Ends(profile=False)
        self.end = self.ends.right
        self.peer = self.end.peer
        if level is not None:
            self.peer.dialect.learn(level)
        self.traffic = self.end.traffic

    @property
    def ordering(self) -> Ordering:
        return self.traffic.ordering

    def take(self, *sequences: int, now: float = 0.0, start: bool = False, tag: str = "") -> list[int]:
        """Receive packets whose content is their sequence, and return what is delivered."""
        released = self.traffic.order(ready(sequences, tag), now, start=start)
        return contents(released.ready)

    def tick(self, now: float) -> dict[int, list[bytes]]:
        """Let time pass; return the messages that were sent, by subprotocol."""
        out = self.end.tick(now)
        sent: dict[int, list[bytes]] = {}
        for train in out.trains:
            for datagram in train.datagrams():
                header, plain = self.ends.left.peer.link.opener.open(datagram)
                events = [bytes(event) for event in unpack_frames(plain, header.event_count)]
                sent.setdefault(header.subprotocol_id, []).extend(events)
                if header.stream_id == PROBE_STREAM:
                    sent.setdefault(-1, []).append(plain)
        return sent


def ready(sequences: tuple[int, ...], tag: str = "", stream_id: int = USER_STREAM) -> Ready:
    payloads = [pack_frames([f"{tag}{sequence}".encode()]) for sequence in sequences]
    lengths = np.array([len(payload) for payload in payloads], np.int64)
    data = np.frombuffer(b"".join(payloads), np.uint8)
    counts = np.ones(len(payloads), np.int64)
    columns = Payloads(np.array(sequences, np.uint64), data, np.cumsum(lengths) - lengths, lengths, counts)
    return Ready(Subprotocol.EVENTS, stream_id, 0, [columns])


def contents(came: Ready) -> list[int]:
    return [int(sequence) for payloads in came.payloads for sequence in payloads.sequences]


def test_packets_come_out_in_order_and_once() -> None:
    side = Side()
    assert side.take(0, 1) == [0, 1]
    assert side.take(3, 4) == []
    assert side.take(3, 1) == []
    assert side.take(2) == [2, 3, 4]
    assert side.ordering.ack_of(USER_STREAM) == 5
    assert side.end.counters.get("drop", "duplicate") == 2


def test_only_what_was_delivered_is_granted() -> None:
    """A reader that stops then gets no more than a window, however the packets came."""
    side = Side()
    side.take(0)
    total = side.peer.rx_stream(USER_STREAM).consumed
    side.take(2, 3, 4)
    assert side.peer.rx_stream(USER_STREAM).consumed == total, "what waits behind a gap is not granted"
    side.take(1)
    assert side.peer.rx_stream(USER_STREAM).consumed == 5 * total


@pytest.mark.parametrize("level", [None, Level.B, Level.C])
def test_a_blocked_reader_is_never_overrun_by_the_credit_of_a_gap(level: Level | None) -> None:
    side = Side(level)
    side.take(0)
    side.traffic.hold(USER_STREAM, 0.0, held=True)
    stream = side.peer.rx_stream(USER_STREAM)
    granted, now, sent, high = stream.granted, 0.0, 1, 0
    cost = stream.consumed
    # The sender uses its whole window, every tenth packet is lost, and time passes.
    while (sent + 1) * cost <= granted + STREAM_WINDOW:
        if sent % 10:
            side.take(sent, now=now)
        sent += 1
        now += 0.01
        sending = side.tick(now)
        high = max(
            [high, *(decode_grant(event).total_consumed for event in sending.get(Subprotocol.STREAM_WINDOW, ()))]
        )
    assert high <= granted


def test_a_repeat_is_acknowledged_again() -> None:
    side = Side()
    side.take(0)
    side.tick(0.1)
    side.take(0, now=1.0)
    [event] = side.tick(1.1)[Subprotocol.STREAM_WINDOW]
    assert decode_grant(event).ack_seq == 1


def test_a_gap_is_reported_at_once_and_again_while_it_stays() -> None:
    side = Side()
    side.take(0, 1, 3, 4, 7)
    sent = side.tick(0.0)
    nack = decode_nack(sent[Subprotocol.STREAM_NACK][0])
    assert (nack.next_expected, nack.bitmap) == (2, 0b1100), "as a real node reports it"
    assert Subprotocol.STREAM_RANGES not in sent, "only to peers that announce that they read it"
    assert Subprotocol.STREAM_NACK not in side.tick(NACK_S / 2)
    assert Subprotocol.STREAM_NACK in side.tick(NACK_S)
    side.take(2, 5, 6, now=1.0)
    assert Subprotocol.STREAM_NACK not in side.tick(2.0)


def test_ranges_go_to_peers_that_read_them() -> None:
    side = Side()
    side.peer.claims = type(side.peer.claims)(capabilities=CapabilitySet().with_tags([RANGES_TAG]))
    side.take(0, 2, 3, 6)
    [event] = side.tick(0.0)[Subprotocol.STREAM_RANGES]
    ranges = decode_ranges(event)
    assert (ranges.ack_seq, ranges.ranges) == (1, ((6, 7), (2, 4))), "as a real node writes it"


def test_an_unknown_level_is_asked_for_with_an_empty_packet() -> None:
    side = Side(level=None)
    side.take(0, 2)
    sent = side.tick(0.0)
    assert sent[-1] == [b""]
    assert Subprotocol.STREAM_NACK not in sent, "a peer of level A would take it for an event"
    out = Output()
    side.traffic.on_grant(encode_grant(Grant(stream_id=PROBE_STREAM, total_consumed=84, ack_seq=0)), 0.1, out)
    assert side.peer.dialect.level is Level.B
    assert Subprotocol.STREAM_NACK in side.tick(1.0)


def test_a_peer_of_level_a_gets_its_packets_delivered_at_once() -> None:
    side = Side(level=None)
    side.take(0, 2)
    side.tick(0.0)
    out = Output()
    side.traffic.on_grant(encode_grant(Grant(stream_id=PROBE_STREAM, total_consumed=84)), 0.1, out)
    side.end.delivery.received(0.1, out)
    assert [payload for batch in out.events for payload in batch.payloads()] == [b"2"]
    assert [batch.lost for batch in out.events] == [1]
    assert side.end.counters.get("loss", "missing_packets") == 1


def test_the_start_flag_gives_up_what_is_missing() -> None:
    side = Side(level=None)
    side.take(0, 1, 2, 4, 5)
    assert side.take(6, start=True) == [4, 5, 6], "as a 0.45.1 node does"
    assert side.ordering.ack_of(USER_STREAM) == 7
    assert side.peer.dialect.level is Level.C
    assert Side().take(5000, start=True) == [5000], "a stream may start anywhere"


def test_a_reset_gives_up_what_is_missing() -> None:
    side = Side()
    side.take(0, 2, 5)
    out = Output()
    message = memoryview(encode_reset(StreamReset(stream_id=USER_STREAM)))
    side.end.engine.reception.handlers[Subprotocol.STREAM_RESET](side.peer, message, 0.1, out)
    side.end.delivery.received(0.1, out)
    assert [payload for batch in out.events for payload in batch.payloads()] == [b"2", b"5"]
    assert side.take(6) == [6], "the sender keeps its sequences"
    assert side.ordering.reset(999, 0.0) is None
    assert side.end.counters.get("drop", "repair_unknown_stream") == 1


def test_a_gap_that_stays_too_long_is_given_up() -> None:
    side = Side()
    side.take(0, 2)
    out = side.end.tick(GAP_S)
    side.end.delivery.tick(GAP_S, out)
    assert [payload for batch in out.events for payload in batch.payloads()] == [b"2"]
    assert side.take(3) == [3]


def test_a_stream_that_is_opened_again_is_a_new_one() -> None:
    side = Side()
    side.take(0, 1, 2)
    assert side.take(0, now=REOPEN_S + 1) == [], "the same content: a repeat"
    assert side.take(0, now=1.0, tag="new") == [], "too early for a new stream"
    assert side.take(0, now=REOPEN_S + 2, tag="new") == [0]
    assert side.take(0, now=REOPEN_S + 3, tag="newer", start=True) == [0], "the flag says it at once"
    assert side.take(0, now=REOPEN_S + 3 + GAP_S, tag="newer") == [0], "nobody repeats for so long"


def test_a_stream_far_from_its_beginning_starts_where_it_is() -> None:
    assert Side().take(DEFAULT_CAPACITY + 5) == [DEFAULT_CAPACITY + 5]


def test_too_many_streams_push_out_the_one_that_was_idle_longest() -> None:
    side = Side()
    for stream_id in range(MAX_STREAMS + 1):
        side.ordering.receive(ready((0,), stream_id=stream_id), 0.0, start=False)
    assert side.end.counters.get("drop", "too_many_streams") == 1
    assert (side.ordering.ack_of(0), side.ordering.ack_of(1)) == (0, 1)


def test_gaps_in_thousands_of_streams_cause_few_answers() -> None:
    side = Side()
    for stream_id in range(1000):
        side.ordering.receive(ready((1,), stream_id=stream_id), 0.0, start=False)
    for now in (0.0, NACK_S, 2 * NACK_S):
        out = Output()
        side.ordering.tick(now, out)
        side.ordering.tick(now, out)
        headers = [self_open(side, datagram) for train in out.trains for datagram in train.datagrams()]
        assert sum(header.event_count for header in headers) == MAX_ASKED


def self_open(side: Side, datagram: bytes | memoryview) -> Header:
    header, _ = side.ends.left.peer.link.opener.open(datagram)
    return header


def test_closing_returns_what_waits() -> None:
    side = Side()
    side.take(0, 2)
    [released] = side.ordering.close(0.0)
    assert contents(released.ready) == [2]
    assert side.ordering.next_timer() is None
