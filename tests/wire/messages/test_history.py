from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.frames import columns_of
from meshbus.wire.messages.history import (
    CHUNK_ROOM,
    EVENT_COST,
    MAX_SEQ,
    Cancel,
    Chunk,
    ChunkFlags,
    Error,
    ErrorCode,
    HistoryMessage,
    Read,
    ReadFlags,
    decode_history,
    encode_history,
    history_stream,
    split_chunks,
)
from tests.fuzz import assert_survives
from tests.wire.strategies import channels, u32, u64

REQ = 0x1122334455667788
LIDAR = ChannelName("a/b")
BOTH = ReadFlags.FOLLOW | ReadFlags.FROM_FIRST

# Written by hand from the layout: kind, req, then the fields, little-endian.
GOLDEN: list[tuple[HistoryMessage, str]] = [
    (
        Read(req=REQ, channel=LIDAR, since=7, flags=BOTH, max_bytes=65536, token=b"\xff\x00"),
        "01 8877665544332211 03 0700000000000000 00000100 03612f62 0200ff00",
    ),
    (
        Read(req=REQ, channel=LIDAR, since=0, max_bytes=0),
        "01 8877665544332211 00 0000000000000000 00000000 03612f62 0000",
    ),
    (
        Chunk(
            req=REQ,
            flags=ChunkFlags.CAUGHT_UP | ChunkFlags.GAP,
            first_available=5,
            first_seq=9,
            stamps=(1).to_bytes(8, "little") + (-2).to_bytes(8, "little", signed=True),
            sizes=(3).to_bytes(4, "little") + bytes(4),
            data=b"abc",
        ),
        (
            "02 8877665544332211 03 0500000000000000 0900000000000000 02000000"
            " 0100000000000000 feffffffffffffff 03000000 00000000 616263"
        ),
    ),
    (
        Chunk(req=REQ, first_available=0, first_seq=1),
        "02 8877665544332211 00 0000000000000000 0100000000000000 00000000",
    ),
    (Error(req=REQ, code=ErrorCode.RANGE_GONE, first_available=40), "03 8877665544332211 03 2800000000000000"),
    (Error(req=REQ, code=ErrorCode.CLOSED), "03 8877665544332211 05 0000000000000000"),
    (Cancel(req=REQ), "04 8877665544332211"),
]

seqs = st.integers(0, MAX_SEQ - 100)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    payloads = draw(st.lists(st.binary(max_size=40), max_size=20))
    flags = draw(st.sampled_from(range(8 if payloads else 4)))
    return Chunk(
        req=draw(u64),
        flags=ChunkFlags(flags),
        first_available=draw(seqs),
        first_seq=draw(seqs),
        stamps=draw(st.binary(min_size=8 * len(payloads), max_size=8 * len(payloads))),
        sizes=b"".join(len(payload).to_bytes(4, "little") for payload in payloads),
        data=b"".join(payloads),
    )


messages = st.one_of(
    st.builds(
        Read,
        req=u64,
        channel=channels,
        since=seqs,
        flags=st.sampled_from([ReadFlags(n) for n in range(4)]),
        max_bytes=u32,
        token=st.binary(max_size=300),
    ),
    chunks(),
    st.builds(Error, req=u64, code=st.sampled_from(ErrorCode), first_available=seqs),
    st.builds(Cancel, req=u64),
)


@pytest.mark.parametrize(("message", "expected"), GOLDEN)
def test_golden_messages_read_and_write(message: HistoryMessage, expected: str) -> None:
    assert encode_history(message) == bytes.fromhex(expected)
    assert decode_history(bytes.fromhex(expected)) == message


@given(messages)
def test_messages_round_trip(message: HistoryMessage) -> None:
    assert decode_history(encode_history(message)) == message


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b"", Fault.TRUNCATED),
        (b"\x00" + bytes(40), Fault.UNKNOWN_KIND),
        (b"\x05" + bytes(40), Fault.UNKNOWN_KIND),
        (b"\x01" + bytes(20), Fault.TRUNCATED),
        (b"\x01" + bytes(21) + b"\x02a", Fault.TRUNCATED),
        (b"\x01" + bytes(21) + b"\x01a\x01\x00", Fault.TRUNCATED),
        (b"\x01" + bytes(21) + b"\x01a\x00\x00\x00", Fault.TRAILING),
        (b"\x01" + bytes(21) + b"\x01A\x00\x00", Fault.BAD_NAME),
        (b"\x01" + bytes(21) + b"\x01\xe9\x00\x00", Fault.BAD_NAME),
        (b"\x01" + bytes(8) + b"\x04" + bytes(12) + b"\x01a\x00\x00", Fault.BAD_VALUE),
        (b"\x01" + bytes(9) + b"\xff" * 8 + bytes(4) + b"\x01a\x00\x00", Fault.BAD_VALUE),
        (b"\x02" + bytes(28), Fault.TRUNCATED),
        (b"\x02" + bytes(25) + b"\x01\x00\x00\x00" + bytes(11), Fault.TRUNCATED),
        (b"\x02" + bytes(25) + b"\x01\x00\x00\x00" + bytes(8) + b"\x02\x00\x00\x00a", Fault.TRUNCATED),
        (b"\x02" + bytes(25) + b"\x01\x00\x00\x00" + bytes(12) + b"a", Fault.TRAILING),
        (b"\x02" + bytes(25) + b"\xff\xff\xff\xff", Fault.TRUNCATED),
        (b"\x02" + bytes(8) + b"\x08" + bytes(20), Fault.BAD_VALUE),
        (b"\x02" + bytes(8) + b"\x04" + bytes(20), Fault.BAD_VALUE),
        (b"\x02" + bytes(9) + b"\xff" * 8 + bytes(12), Fault.BAD_VALUE),
        (b"\x02" + bytes(17) + b"\xff" * 8 + bytes(4), Fault.BAD_VALUE),
        (b"\x03" + bytes(8) + b"\x00" + bytes(8), Fault.BAD_VALUE),
        (b"\x03" + bytes(8) + b"\x06" + bytes(8), Fault.BAD_VALUE),
        (b"\x03" + bytes(8) + b"\x01" + b"\xff" * 8, Fault.BAD_VALUE),
        (b"\x03" + bytes(18), Fault.TRAILING),
        (b"\x04" + bytes(7), Fault.TRUNCATED),
        (b"\x04" + bytes(9), Fault.TRAILING),
    ],
)
def test_each_kind_of_damage_has_its_fault(event: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_history(event)
    assert caught.value.fault is fault


@pytest.mark.parametrize(
    "message",
    [
        Read(req=1 << 64, channel=LIDAR, since=0, max_bytes=0),
        Read(req=1, channel=LIDAR, since=-1, max_bytes=0),
        Read(req=1, channel=LIDAR, since=0, max_bytes=1 << 32),
        Read(req=1, channel="Not//legal", since=0, max_bytes=0),  # type: ignore[arg-type]
        Read(req=1, channel=LIDAR, since=0, max_bytes=0, token=bytes(MAX_EVENT - 10)),
        Read(req=1, channel=LIDAR, since=0, max_bytes=0, token=bytes(1 << 16)),
        Chunk(req=1, first_available=0, first_seq=0, stamps=bytes(8), sizes=bytes(4), data=bytes(CHUNK_ROOM)),
        Error(req=-1, code=ErrorCode.BUSY),
        Cancel(req=1 << 64),
    ],
)
def test_what_no_peer_could_read_is_not_written(message: HistoryMessage) -> None:
    with pytest.raises(LocalProtocolError):
        encode_history(message)


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_history, [bytes.fromhex(event) for _, event in GOLDEN])


def test_a_payload_outlives_the_buffer_it_came_in() -> None:
    buffer = bytearray(bytes.fromhex(GOLDEN[2][1]))
    chunk = decode_history(buffer)
    buffer[:] = bytes(len(buffer))
    assert chunk == GOLDEN[2][0]


def test_each_request_has_its_own_stream() -> None:
    assert history_stream(0x1234567890) == 0x4D02_3456_7890
    assert history_stream(1) != history_stream(2)


# ── events in chunks ────────────────────────────────────────────────────────────────────────


def joined(found: list[Chunk], first_seq: int) -> tuple[list[bytes], list[int]]:
    """Join chunks in the simplest way, and check that each fits one message and continues the one before."""
    events: list[bytes] = []
    times: list[int] = []
    continues = False
    for chunk in found:
        assert len(encode_history(chunk)) <= MAX_EVENT
        assert chunk.first_seq == first_seq + len(events) - continues
        pieces = [chunk.data[left:right] for left, right in pairwise(chunk.offsets().tolist())]
        if continues:
            assert chunk.times()[0] == times[-1]
            events[-1] += pieces[0]
        events += pieces[1:] if continues else pieces
        times += chunk.times().tolist()[continues:]
        continues = ChunkFlags.CONTINUES in chunk.flags
    assert not continues
    return events, times


SIZES = st.integers(0, 200) | st.sampled_from([CHUNK_ROOM - EVENT_COST, CHUNK_ROOM - EVENT_COST + 1, 8104, 30_000])


@given(st.lists(SIZES, max_size=60), st.integers(0, 1000), st.booleans(), st.booleans())
def test_events_survive_being_split(sizes: list[int], first_seq: int, gap: bool, caught_up: bool) -> None:
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    times = np.arange(len(sizes)) * 7 - 3
    found = list(
        split_chunks(1, first_seq, *columns_of(payloads), times, first_available=2, gap=gap, caught_up=caught_up)
    )
    assert joined(found, first_seq) == (payloads, times.tolist())
    assert [ChunkFlags.GAP in chunk.flags for chunk in found] == [gap, *[False] * (len(found) - 1)]
    assert [ChunkFlags.CAUGHT_UP in chunk.flags for chunk in found] == [*[False] * (len(found) - 1), caught_up]
    assert {(chunk.req, chunk.first_available) for chunk in found} == {(1, 2)}


def test_chunks_are_full() -> None:
    payloads = [bytes(64)] * 1000
    found = list(split_chunks(1, 0, *columns_of(payloads), np.zeros(1000, np.int64), first_available=0))
    assert len(found) == -(-1000 // (CHUNK_ROOM // (64 + EVENT_COST)))


def test_columns_may_start_anywhere() -> None:
    offsets, data = columns_of([b"skipped", b"one", b"two"])
    (chunk,) = split_chunks(1, 5, offsets[1:], data, np.arange(2), first_available=0)
    assert (chunk.data, chunk.offsets().tolist(), chunk.first_seq) == (b"onetwo", [0, 3, 6], 5)
