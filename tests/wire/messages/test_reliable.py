from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.messages.reliable import (
    MAX_RANGES,
    Ack,
    Base,
    Fin,
    FinAck,
    ReliableMessage,
    Reset,
    ResetReason,
    decode_reliable,
    encode_reliable,
)
from tests.fuzz import assert_survives
from tests.wire.strategies import u16, u32, u64

STREAM = 0x0102030405060708

# Written by hand from the layout: kind, stream id, then the fields, little-endian.
GOLDEN: list[tuple[ReliableMessage, str]] = [
    (
        Ack(stream_id=STREAM, cumulative=0x1122, free=1000),
        "01 0807060504030201 2211000000000000 e8030000 00",
    ),
    (
        Ack(stream_id=STREAM, cumulative=5, free=0, ranges=((7, 2), (0x1_0000_0000, 1))),
        "01 0807060504030201 0500000000000000 00000000 02 0700000000000000 02000000 0000000001000000 01000000",
    ),
    (Fin(stream_id=STREAM, total=513), "02 0807060504030201 0102000000000000"),
    (FinAck(stream_id=STREAM, total=513), "03 0807060504030201 0102000000000000"),
    (Reset(stream_id=STREAM, reason=ResetReason.REFUSED), "04 0807060504030201 0001"),
    (Base(stream_id=STREAM, sequence=6, pub_seq=90), "05 0807060504030201 0600000000000000 5a00000000000000"),
    (Base(stream_id=STREAM, sequence=6, pub_seq=None), "05 0807060504030201 0600000000000000 ffffffffffffffff"),
    (
        Base(stream_id=STREAM, sequence=6, pub_seq=90, start=True),
        "06 0807060504030201 0600000000000000 5a00000000000000",
    ),
]

ranges = st.lists(st.tuples(u64, u32.filter(bool)), max_size=MAX_RANGES).map(tuple)
messages = st.one_of(
    st.builds(Ack, stream_id=u64, cumulative=u64, free=u32, ranges=ranges),
    st.builds(Fin, stream_id=u64, total=u64),
    st.builds(FinAck, stream_id=u64, total=u64),
    st.builds(Reset, stream_id=u64, reason=u16),
    st.builds(
        Base, stream_id=u64, sequence=u64, pub_seq=st.none() | st.integers(0, (1 << 64) - 2), start=st.booleans()
    ),
)


@pytest.mark.parametrize(("message", "expected"), GOLDEN)
def test_golden_messages_read_and_write(message: ReliableMessage, expected: str) -> None:
    assert encode_reliable(message) == bytes.fromhex(expected)
    assert decode_reliable(bytes.fromhex(expected)) == message


@given(messages)
def test_messages_round_trip(message: ReliableMessage) -> None:
    assert decode_reliable(encode_reliable(message)) == message


def test_a_reason_shows_which_side_sent_it() -> None:
    assert not Reset(stream_id=1, reason=ResetReason.GAVE_UP).by_receiver
    assert not Reset(stream_id=1, reason=0xFF).by_receiver
    assert Reset(stream_id=1, reason=ResetReason.REFUSED).by_receiver
    assert Reset(stream_id=1, reason=0xFFFF).by_receiver


def ack_with(count: int, tail: bytes) -> bytes:
    return b"\x01" + bytes(20) + bytes((count,)) + tail


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b"", Fault.TRUNCATED),
        (b"\x00" + bytes(30), Fault.UNKNOWN_KIND),
        (b"\x07" + bytes(30), Fault.UNKNOWN_KIND),
        (b"\x01" + bytes(20), Fault.TRUNCATED),
        (ack_with(1, bytes(11)), Fault.TRUNCATED),
        (ack_with(0, b"\x00"), Fault.TRAILING),
        (ack_with(1, bytes(13)), Fault.TRAILING),
        (ack_with(33, (bytes(8) + b"\x01\x00\x00\x00") * 33), Fault.BAD_VALUE),
        (ack_with(1, bytes(12)), Fault.BAD_VALUE),
        (b"\x02" + bytes(15), Fault.TRUNCATED),
        (b"\x03" + bytes(17), Fault.TRAILING),
        (b"\x04" + bytes(9), Fault.TRUNCATED),
        (b"\x05" + bytes(25), Fault.TRAILING),
        (b"\x06" + bytes(23), Fault.TRUNCATED),
    ],
)
def test_each_kind_of_damage_has_its_fault(event: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_reliable(event)
    assert caught.value.fault is fault


@pytest.mark.parametrize(
    "message",
    [
        Ack(stream_id=1 << 64, cumulative=0, free=0),
        Ack(stream_id=1, cumulative=1 << 64, free=0),
        Ack(stream_id=1, cumulative=0, free=1 << 32),
        Ack(stream_id=1, cumulative=0, free=0, ranges=((1, 1),) * 33),
        Ack(stream_id=1, cumulative=0, free=0, ranges=((1, 0),)),
        Ack(stream_id=1, cumulative=0, free=0, ranges=((1, 1 << 32),)),
        Ack(stream_id=1, cumulative=0, free=0, ranges=((-1, 1),)),
        Fin(stream_id=1, total=-1),
        Reset(stream_id=1, reason=1 << 16),
        Base(stream_id=1, sequence=1 << 64, pub_seq=0),
        Base(stream_id=1, sequence=0, pub_seq=(1 << 64) - 1),
    ],
)
def test_what_no_peer_could_read_is_not_written(message: ReliableMessage) -> None:
    with pytest.raises(LocalProtocolError):
        encode_reliable(message)


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_reliable, [bytes.fromhex(event) for _, event in GOLDEN])
