"""Test delivery: which packets become event batches, which are dropped, and when something is due."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.base.runscan import scan
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import HEADER_BYTES, Flags, Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.header import HEADER_DTYPE, Header, pack_header
from meshbus.wire.messages.reliable import FIRST_SEQUENCE, Base, encode_reliable
from tests.engine.ends import CHANNEL, ORIGIN, SERVED, STREAM, End, Ends
from tests.engine.fleet import numbered

RELIABLE = int(Flags.RELIABLE)


class Way(Protocol):
    def __call__(self, end: End, *packets: tuple[Header, bytes], now: float = 1.0) -> Output: ...


def packet(sequence: int, *events: bytes, **fields: int) -> tuple[Header, bytes]:
    payload = pack_frames(events)
    count = fields.pop("event_count", len(events))
    header = Header(
        stream_id=STREAM, origin_hash=ORIGIN, sequence=sequence, event_count=count, payload_len=len(payload)
    )
    return msgspec.structs.replace(header, **fields), payload


def take(end: End, *packets: tuple[Header, bytes], now: float = 1.0, subprotocol_id: int = 0) -> Output:
    """Pass packets to an end as one opened batch."""
    rows = np.frombuffer(b"".join(pack_header(header) for header, _ in packets), HEADER_DTYPE)
    lengths = np.array([len(payload) for _, payload in packets], np.int64)
    data = np.frombuffer(b"".join(payload for _, payload in packets), np.uint8)
    out = Output()
    end.delivery.take(end.peer, subprotocol_id, rows, data, np.cumsum(lengths) - lengths, now, out)
    return out


def take_run(end: End, *packets: tuple[Header, bytes], now: float = 1.0) -> Output:
    """Pass packets of one stream to an end as a run."""
    datagrams = [pack_header(header) + payload + bytes(16) for header, payload in packets]
    lengths = np.array([len(datagram) for datagram in datagrams], np.int64)
    joined = np.frombuffer(b"".join(datagrams), np.uint8)
    run = scan(joined, np.cumsum(lengths) - lengths, lengths)
    assert run is not None
    assert len(run) == len(packets)
    plain = np.frombuffer(b"".join(datagram[HEADER_BYTES:-16] for datagram in datagrams), np.uint8)
    out = Output()
    end.delivery.take_run(end.peer, run, plain, now, out)
    return out


WAYS = pytest.mark.parametrize("way", [take, take_run])


def start(end: End, sequence: int, pub_seq: int = 10, stream_id: int = STREAM) -> None:
    base = Base(stream_id=stream_id, sequence=sequence, pub_seq=pub_seq, start=True)
    end.delivery.receive(end.peer, memoryview(encode_reliable(base)), 1.0, Output())


@WAYS
def test_packets_of_a_channel_become_one_batch(way: Way) -> None:
    end = Ends().right
    out = way(end, packet(3, b"a", b"b"), packet(4), packet(9, b"c"), now=2.5)
    (batch,) = out.events
    assert batch.payloads() == [b"a", b"b", b"c"]
    assert batch.packet_seqs.tolist() == [3, 4, 9]
    assert batch.packet_events.tolist() == [2, 0, 1]
    assert (batch.channel, batch.publisher, batch.origin_hash) == (CHANNEL, 1, ORIGIN)
    assert (batch.stream_id, batch.session_id) == (STREAM, end.peer.link.session_id)
    assert (batch.pub_seq, batch.received_ns, batch.subprotocol_id) == (None, 2_500_000_000, 0)


@WAYS
def test_a_publication_without_a_subscription_is_dropped_and_counted(way: Way) -> None:
    end = Ends().right
    end.joined.remove(1, CHANNEL)
    out = way(end, packet(0, b"a", b"b"), packet(1, b"c"))
    assert out.events == []
    assert end.counters.get("drop", "not_subscribed") == 3
    # Its sender is owed the credit all the same.
    assert end.peer.rx_stream(STREAM).grant_due is not None


def test_a_stream_that_is_no_publication_needs_no_subscription() -> None:
    end = Ends().right
    other = ChannelName("other").stream_id
    assert take(end, packet(0, b"raw", stream_id=7)).events[0].channel is None
    assert take(end, packet(0, b"raw", stream_id=other, origin_hash=0)).events[0].channel is None
    assert end.counters.snapshot() == {}


@WAYS
def test_a_name_that_is_still_to_come_is_waited_for(way: Way) -> None:
    end = Ends().right
    end.joined.remove(1, CHANNEL)
    end.probe.expects_names = True
    start(end, FIRST_SEQUENCE)
    reliable = packet(FIRST_SEQUENCE, b"a", flags=RELIABLE)
    assert way(end, packet(0, b"x")).events == []
    assert way(end, reliable).events == []
    assert end.counters.get("drop", "unnamed") == 2
    assert end.peer.rx_stream(STREAM).consumed == 84 + 5  # the plain one: its sender is owed the credit
    end.joined.add(1, CHANNEL)
    assert [batch.payloads() for batch in way(end, reliable).events] == [[b"a"]]


@WAYS
def test_events_come_in_order_on_a_reliable_stream(way: Way) -> None:
    end = Ends().right
    start(end, FIRST_SEQUENCE + 5, pub_seq=50)
    later = packet(FIRST_SEQUENCE + 6, b"b", flags=RELIABLE)
    first = packet(FIRST_SEQUENCE + 5, b"a", flags=RELIABLE)
    assert way(end, later).events == []
    out = way(end, first, later)
    assert [(batch.payloads(), batch.pub_seq) for batch in out.events] == [([b"a", b"b"], 50)]
    assert end.counters.get("drop", "duplicate") == 1


@WAYS
def test_reliable_and_plain_packets_of_one_batch_are_separated(way: Way) -> None:
    end = Ends().right
    start(end, FIRST_SEQUENCE)
    out = way(
        end,
        packet(0, b"flag only", flags=RELIABLE),
        packet(FIRST_SEQUENCE, b"reliable", flags=RELIABLE),
        packet(1, b"flag only", flags=RELIABLE),
    )
    assert [(batch.payloads(), batch.pub_seq) for batch in out.events] == [
        ([b"flag only", b"flag only"], None),
        ([b"reliable"], 10),
    ]


def test_plain_packets_with_high_sequences_are_plain() -> None:
    end = Ends().right
    assert take(end, packet(FIRST_SEQUENCE + 9, b"a")).events[0].payloads() == [b"a"]


def test_a_batch_of_many_streams_keeps_each_in_order() -> None:
    end = Ends().right
    packets = [packet(n, bytes([n]), stream_id=n % 3, origin_hash=0) for n in range(12)]
    out = take(end, *packets)
    assert {batch.stream_id: b"".join(batch.payloads()) for batch in out.events} == {
        stream: bytes(range(stream, 12, 3)) for stream in range(3)
    }


@WAYS
def test_reliable_packets_before_the_agreement_are_dropped_and_reported(way: Way) -> None:
    end = Ends(profile=False).right
    out = way(end, packet(FIRST_SEQUENCE, b"a", flags=RELIABLE), packet(FIRST_SEQUENCE + 1, b"b", flags=RELIABLE))
    assert out.events == []
    assert end.counters.get("drop", "not_negotiated") == 2
    assert end.probe.missed == 1


def test_messages_are_served_and_never_delivered() -> None:
    end = Ends().right
    out = take(end, packet(0, b"one", b"two", stream_id=SERVED), subprotocol_id=SERVED)
    assert out.events == []
    assert end.probe.served == [(SERVED, b"one"), (SERVED, b"two")]


def test_messages_from_a_peer_that_did_not_agree_are_opaque() -> None:
    end = Ends(profile=False).right
    out = take(end, packet(0, b"one", stream_id=SERVED), subprotocol_id=SERVED)
    assert end.probe.served == []
    assert [(batch.subprotocol_id, batch.channel) for batch in out.events] == [(SERVED, None)]


def test_opaque_messages_are_never_given_a_channel() -> None:
    end = Ends().right
    (batch,) = take(end, packet(0, b"x"), subprotocol_id=0x9999).events
    assert (batch.channel, batch.subprotocol_id) == (None, 0x9999)


@pytest.mark.parametrize("count", [0, 1, 5, 2027])
def test_a_count_that_lies_gives_what_is_there(count: int) -> None:
    end = Ends().right
    out = take(end, packet(0, b"a", b"b", event_count=count))
    assert [payload for batch in out.events for payload in batch.payloads()] == [b"a", b"b"][:count]


def test_packets_without_events_make_no_batch() -> None:
    end = Ends().right
    assert take(end, packet(0), packet(1)).events == []


def test_dropped_packets_of_a_plain_sender_are_owed_credit() -> None:
    ends = Ends(profile=False)
    rows = np.frombuffer(b"".join(pack_header(packet(n, b"xy", stream_id=n)[0]) for n in (4, 5, 4)), HEADER_DTYPE)
    ends.right.delivery.owe(ends.right.peer, rows, 1.0)
    assert ends.right.peer.rx_stream(4).consumed == 2 * (84 + 6)
    assert ends.right.peer.rx_stream(5).consumed == 84 + 6
    assert ends.right.streams.next_timer() == pytest.approx(1.005)


def test_a_large_batch_is_delivered_whole() -> None:
    end = Ends().right
    events = numbered(5000, size=100)
    packets = [packet(n, *events[50 * n : 50 * n + 50]) for n in range(100)]
    ways: list[Way] = [take, take_run]
    for way in ways:
        (batch,) = way(end, *packets).events
        assert batch.payloads() == events


def test_a_message_about_a_stream_without_data_delivers_nothing() -> None:
    end = Ends().right
    start(end, FIRST_SEQUENCE)
    assert end.streams.next_timer() is not None
    assert Subprotocol.RELIABLE not in end.peer.rx
