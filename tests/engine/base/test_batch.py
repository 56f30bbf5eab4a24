"""Test event batches: columns, event objects on demand, and slices that keep their packet sequences."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from meshbus.engine.base.batch import Event, EventBatch, EventColumns, SingleEvent, Stamp
from meshbus.names.channel import ChannelName
from meshbus.wire.frames import columns_of
from meshbus.wire.header import Header, pack_header
from meshbus.wire.messages.reliable import FIRST_SEQUENCE

CHANNEL = ChannelName("sensors/lidar")


def batch_of(packets: list[list[bytes]], pub_seq: int | None = None) -> EventBatch:
    offsets, data = columns_of([event for packet in packets for event in packet])
    return EventColumns(
        offsets=offsets,
        data=data,
        publisher=9,
        session_id=1,
        stream_id=CHANNEL.stream_id,
        channel=CHANNEL,
        packet_seqs=np.arange(100, 100 + len(packets), dtype=np.uint64),
        packet_events=np.array([len(packet) for packet in packets], np.int64),
        pub_seq=pub_seq,
    )


def test_events_on_demand() -> None:
    batch = batch_of([[b"a", b""], [b"bcd"]], pub_seq=40)
    assert len(batch) == 3
    assert batch.nbytes == 4
    assert bytes(batch.payload(2)) == b"bcd"
    assert list(batch) == [Event(p, CHANNEL, 9, 40 + n) for n, p in enumerate([b"a", b"", b"bcd"])]
    assert [event.pub_seq for event in batch_of([[b"a"]])] == [None]


def test_arrow_shares_the_memory() -> None:
    batch = batch_of([[b"a", b"", b"bcd"]])
    array = batch.to_arrow()
    assert array.to_pylist() == [b"a", b"", b"bcd"]
    assert array.type == pa.large_binary()
    assert array.buffers()[2].address == batch.data.ctypes.data


packets = st.lists(st.lists(st.binary(max_size=4), max_size=4), min_size=1, max_size=6)


@given(packets, st.data())
def test_a_slice_keeps_payloads_and_packet_places(content: list[list[bytes]], data: st.DataObject) -> None:
    batch = batch_of(content, pub_seq=7)
    start = data.draw(st.integers(0, len(batch)))
    stop = data.draw(st.integers(start, len(batch)))
    part = batch.slice(start, stop)
    events = [event for packet in content for event in packet]
    assert part.payloads() == events[start:stop]
    assert part.to_arrow().to_pylist() == events[start:stop]
    places = [(100 + number, index) for number, packet in enumerate(content) for index in range(len(packet))]
    told = [int(seq) for seq, count in zip(part.packet_seqs, part.packet_events, strict=True) for _ in range(count)]
    assert told == [packet for packet, _ in places[start:stop]]
    assert part.pub_seq == 7 + start


def test_events_from_a_log_have_times_and_no_packets() -> None:
    offsets, data = columns_of([b"a", b"b", b"c"])
    batch = EventColumns(
        offsets=offsets,
        data=data,
        publisher=9,
        session_id=1,
        stream_id=2,
        channel=CHANNEL,
        packet_seqs=np.empty(0, np.uint64),
        packet_events=np.empty(0, np.int64),
        pub_seq=40,
        reading=1,
        times=np.array([7, 8, 9]),
    )
    assert [event.ts_ns for event in batch] == [7, 8, 9]
    part = batch.slice(1, 3)
    assert [(event.payload, event.pub_seq, event.ts_ns) for event in part] == [(b"b", 41, 8), (b"c", 42, 9)]
    assert len(part.packet_seqs) == 0


@given(
    st.binary(max_size=40),
    st.sampled_from((0, 5, FIRST_SEQUENCE)),
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 2**62),
)
def test_a_single_event_reads_like_columns_of_one(
    payload: bytes, sequence: int, stamp: int | None, clock_ns: int | None
) -> None:
    shared: dict[str, Any] = {"publisher": 9, "session_id": 1, "stream_id": 2, "channel": CHANNEL, "lost": 3}
    single = SingleEvent(event=payload, sequence=sequence, packet_stamp=stamp, publisher_clock_ns=clock_ns, **shared)
    columns = EventColumns(
        offsets=np.array((0, len(payload))),
        data=np.frombuffer(payload, np.uint8),
        packet_seqs=np.array((sequence,), np.uint64),
        packet_events=np.ones(1, np.int64),
        packet_stamps=None if stamp is None else np.array((stamp,), np.uint32),
        publisher_clock_ns=clock_ns,
        **shared,
    )
    assert list(single) == list(columns)
    assert single.payloads() == columns.payloads() == [bytes(single.payload(0))]
    assert (len(single), single.nbytes, single.is_best_effort) == (1, columns.nbytes, columns.is_best_effort)
    assert single.to_arrow() == columns.to_arrow()
    for name in ("offsets", "data", "packet_seqs", "packet_events", "packet_stamps"):
        assert_array_equal(getattr(single, name), getattr(columns, name))
    for start, stop in ((0, 1), (0, 0), (1, 1)):
        assert list(single.slice(start, stop)) == list(columns.slice(start, stop))
        assert single.slice(start, stop).lost == columns.slice(start, stop).lost
    times, expected = single.event_times(), columns.event_times()
    assert times == expected if expected is None else times is not None and times.tolist() == expected.tolist()


def test_a_stamp_is_the_same_from_a_header_and_from_its_bytes() -> None:
    header = Header(flags=5, hop_ttl=8, hop_count=3, subnet_id=0x03070000, priority=9, origin_hash=1 << 60)
    assert Stamp.of(header) == Stamp.of_row(pack_header(header)) == Stamp(5, 8, 3, 0x03070000)
