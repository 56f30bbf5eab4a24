"""Parts of large events and refusals of them: fixed bytes, round trips, and damage."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.constants import MAX_LARGE_EVENT
from meshbus.wire.frames import unpack_frames
from meshbus.wire.messages import large
from meshbus.wire.messages.large import (
    MAX_MESSAGE,
    PART_HEAD,
    Refused,
    decode_part,
    decode_refused,
    encode_parts,
    encode_refused,
    parts_of,
)
from tests.fuzz import assert_survives

REFUSED = Refused(stream_id=0x0102030405060708, number=7, size=9000, limit=8104)
UNNUMBERED = Refused(stream_id=1, number=None, size=2, limit=3)
REFUSED_BYTES = "01" + "0807060504030201" + "0700000000000000" + "28230000" + "a81f0000"


def payloads(event: bytes, body_bytes: int, start: int, stop: int) -> list[bytes]:
    packed = encode_parts(np.frombuffer(event, np.uint8), body_bytes, start, stop, 5)
    assert packed.stamp == 5
    assert packed.counts.tolist() == [0] * (stop - start)
    edges = packed.bounds.tolist()
    return [packed.data[a:b].tobytes() for a, b in pairwise(edges)]


def test_the_bytes_of_parts_are_fixed() -> None:
    first, second = payloads(b"abcde", 3, 0, 2)
    assert first.hex() == "05000000" + "00000000" + b"abc".hex()
    assert second.hex() == "05000000" + "03000000" + b"de".hex()
    assert decode_part(second) == (5, 3, memoryview(b"de"))


@given(st.binary(min_size=1, max_size=200), st.integers(1, 60), st.data())
def test_parts_of_any_range_make_up_the_event(event: bytes, body_bytes: int, data: st.DataObject) -> None:
    total = parts_of(len(event), body_bytes)
    cut = data.draw(st.integers(0, total))
    ranges = [(start, stop) for start, stop in ((0, cut), (cut, total)) if start < stop]
    parts = [decode_part(p) for start, stop in ranges for p in payloads(event, body_bytes, start, stop)]
    assert b"".join(part.body for part in parts) == event
    assert [part.offset for part in parts] == list(range(0, len(event), body_bytes))
    assert {part.size for part in parts} == {len(event)}


@given(
    st.binary(min_size=1, max_size=100),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50), st.integers(0, 255)), max_size=3),
    st.integers(0, 60),
)
def test_parts_are_put_together_as_far_as_they_continue_the_event(
    event: bytes, body_bytes: int, damage: list[tuple[int, int, int]], filled: int
) -> None:
    cut = [bytearray(part) for part in payloads(event, body_bytes, 0, parts_of(len(event), body_bytes))]
    for part, place, value in damage:
        chosen = cut[part % len(cut)]
        if place < len(chosen):
            chosen[place] = value
        elif value > 127:
            del chosen[value - 128 :]
    lengths = np.array([len(part) for part in cut], np.int64)
    data, starts = np.frombuffer(b"".join([*cut, b"end"]), np.uint8), np.cumsum(lengths) - lengths
    filled = min(filled, len(event))
    found = []
    for join in (large._join.run, large._join.reference):
        joined = np.zeros(len(event), np.uint8)
        found.append((join(data.copy(), starts, lengths, joined, filled), joined.tobytes()))
    assert found[0] == found[1]
    if not damage and not filled:
        assert found[0] == (len(cut), event)


def test_what_is_read_only_is_put_together_too() -> None:
    (part,) = payloads(b"abc", 3, 0, 1)
    joined = np.zeros(3, np.uint8)
    data, starts = np.frombuffer(part, np.uint8), np.zeros(1, np.int64)
    assert large.join_parts(data, starts, np.array([len(part)], np.int64), joined, 0) == 1
    assert joined.tobytes() == b"abc"
    assert [column.tolist() for column in large.read_heads(data, starts)] == [[3], [0]]


def test_a_part_holds_no_event_for_whoever_reads_it_as_a_packet_of_events() -> None:
    (part,) = payloads(b"x" * 50, 50, 0, 1)
    assert unpack_frames(part, 0) == []


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "05000000" + "000000",
        "05000000" + "00000000",  # no bytes
        "05000000" + "03000000" + "616263",  # beyond the size
        "00000000" + "00000000" + "61",
        "05000000" + "ffffffff" + "61",
        (MAX_MESSAGE + 1).to_bytes(4, "little").hex() + "00000000" + "61",
    ],
)
def test_parts_that_cannot_be_are_refused(payload: str) -> None:
    with pytest.raises(MalformedPacket):
        decode_part(bytes.fromhex(payload))


def test_the_largest_request_can_be_cut() -> None:
    assert MAX_MESSAGE > MAX_LARGE_EVENT + PART_HEAD


@pytest.mark.parametrize(("message", "event"), [(REFUSED, REFUSED_BYTES), (UNNUMBERED, None)])
def test_refusals_round_trip(message: Refused, event: str | None) -> None:
    assert event is None or encode_refused(message).hex() == event
    assert decode_refused(encode_refused(message)) == message


@pytest.mark.parametrize("event", ["", "02" + REFUSED_BYTES[2:], REFUSED_BYTES[:-2], REFUSED_BYTES + "00"])
def test_any_other_refusal_is_malformed(event: str) -> None:
    with pytest.raises(MalformedPacket):
        decode_refused(bytes.fromhex(event))


def test_a_size_beyond_32_bits_cannot_be_written() -> None:
    with pytest.raises(LocalProtocolError):
        encode_refused(Refused(stream_id=1, number=1, size=1 << 32, limit=0))


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_refused, [bytes.fromhex(REFUSED_BYTES)], randoms=20_000)
    assert_survives(decode_part, payloads(b"abcde", 3, 0, 2), randoms=20_000)
