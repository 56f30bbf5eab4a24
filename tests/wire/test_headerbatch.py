"""Header columns: every row equals the result of the scalar parser, and every invalid header has a status."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import MalformedPacket, UnknownVersion
from meshbus.wire import headerbatch
from meshbus.wire.constants import HEADER_BYTES, PACKET_COST, Flags
from meshbus.wire.header import HEADER_DTYPE, Header, pack_header, unpack_header
from meshbus.wire.headerbatch import HeaderBatch, HeaderStatus, read_headers

PACKETS = {
    HeaderStatus.OK: pack_header(Header(payload_len=4, event_count=1)) + bytes(20),
    HeaderStatus.TRUNCATED: pack_header(Header())[:67],
    HeaderStatus.BAD_MAGIC: b"XX" + pack_header(Header())[2:] + bytes(16),
    HeaderStatus.BAD_VERSION: b"EN\x02" + pack_header(Header())[3:] + bytes(16),
    HeaderStatus.BAD_LENGTH: pack_header(Header(event_count=2028)) + bytes(16),
    HeaderStatus.WRONG_SIZE: pack_header(Header(payload_len=4)) + bytes(21),
}


def read(packets: list[bytes]) -> HeaderBatch:
    data = np.frombuffer(b"".join(packets), np.uint8)
    lengths = np.array([len(packet) for packet in packets], np.int64)
    starts = np.cumsum(lengths) - lengths
    batch = read_headers(data, starts, lengths)
    rows, status = np.empty(len(packets) * HEADER_BYTES, np.uint8), np.empty(len(packets), np.uint8)
    headerbatch._read.reference(data, starts, lengths, rows, status)
    assert status.tolist() == batch.status.tolist()
    assert rows.tobytes() == batch.rows.tobytes()
    return batch


@pytest.mark.parametrize("status", HeaderStatus)
def test_every_status_is_reached(status: HeaderStatus) -> None:
    batch = read([PACKETS[HeaderStatus.OK], PACKETS[status], PACKETS[HeaderStatus.OK]])
    assert batch.status.tolist() == [HeaderStatus.OK, status, HeaderStatus.OK]
    assert batch.acceptable.tolist() == [True, status is HeaderStatus.OK, True]


@given(st.lists(st.one_of(st.sampled_from(list(PACKETS.values())), st.binary(max_size=120)), min_size=1, max_size=20))
def test_statuses_agree_with_the_scalar_reader(packets: list[bytes]) -> None:
    batch = read(packets)
    for packet, row, status in zip(packets, batch.columns, batch.status.tolist(), strict=True):
        try:
            header = unpack_header(packet)
        except MalformedPacket:
            assert status in {HeaderStatus.TRUNCATED, HeaderStatus.BAD_MAGIC, HeaderStatus.BAD_LENGTH}
        except UnknownVersion:
            assert status == HeaderStatus.BAD_VERSION
        else:
            assert row.tobytes() == packet[:HEADER_BYTES]
            exact = len(packet) == header.payload_len + PACKET_COST or header.flags & Flags.HANDSHAKE
            assert status == (HeaderStatus.OK if exact else HeaderStatus.WRONG_SIZE)


def test_handshakes_may_have_any_length() -> None:
    assert read([pack_header(Header(flags=Flags.HANDSHAKE, payload_len=48)) + bytes(48)]).acceptable.all()


@pytest.mark.parametrize(("start", "length"), [(-1, 100), (0, 10**6), (2**62, 84)])
def test_a_packet_outside_the_buffer_is_truncated(start: int, length: int) -> None:
    data = np.frombuffer(PACKETS[HeaderStatus.OK], np.uint8)
    batch = read_headers(data, np.array([start], np.int64), np.array([length], np.int64))
    assert batch.status.tolist() == [HeaderStatus.TRUNCATED]
    assert batch.rows.tobytes() == bytes(HEADER_BYTES)


def test_an_empty_drain_is_an_empty_batch() -> None:
    nothing = np.empty(0, np.int64)
    batch = read_headers(np.empty(0, np.uint8), nothing, nothing)
    assert len(batch) == 0
    assert batch.columns.dtype == HEADER_DTYPE


def test_recorded_columns_become_a_batch() -> None:
    recorded = read([PACKETS[HeaderStatus.OK]] * 3).columns
    batch = HeaderBatch.of(recorded[::2])
    assert len(batch) == 2
    assert batch.acceptable.all()
    assert batch.columns.tobytes() == recorded[::2].tobytes()


def test_what_is_no_header_can_be_blanked() -> None:
    """With another magic or version the fields have no meaning; with a wrong length they do."""
    batch = read(list(PACKETS.values())).blanked()
    blank = {HeaderStatus.TRUNCATED, HeaderStatus.BAD_MAGIC, HeaderStatus.BAD_VERSION}
    assert batch.rows.reshape(-1, HEADER_BYTES).any(axis=1).tolist() == [status not in blank for status in PACKETS]
