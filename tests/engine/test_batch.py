"""Event batches: columns first, objects on demand, slices that know where they were on the wire."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.batch import Event, EventBatch
from meshbus.names.channel import ChannelName
from meshbus.wire.frames import columns_of

CHANNEL = ChannelName("sensors/lidar")


def batch_of(packets: list[list[bytes]], pub_seq: int | None = None) -> EventBatch:
    offsets, data = columns_of([event for packet in packets for event in packet])
    return EventBatch(
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
