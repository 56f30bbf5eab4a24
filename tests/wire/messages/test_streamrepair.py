from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.messages.streamrepair import (
    BITMAP_BITS,
    MAX_RANGES,
    StreamNack,
    StreamRanges,
    StreamReset,
    decode_nack,
    decode_ranges,
    decode_reset,
    encode_nack,
    encode_ranges,
    encode_reset,
)
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u64

MESSAGES = load("dialects")["messages"]


def rows(subprotocol: str) -> list[dict[str, Any]]:
    return [row for row in MESSAGES if row["subprotocol"] == subprotocol]


@pytest.mark.parametrize("row", rows("0x0b01"), ids=lambda row: row["version"])
def test_nacks_of_real_nodes_read_and_write(row: dict[str, Any]) -> None:
    nack, fields = decode_nack(bytes.fromhex(row["hex"])), row["fields"]
    assert nack == StreamNack(
        stream_id=fields["stream_id"], next_expected=fields["next_expected"], bitmap=fields["missing_bitmap"]
    )
    assert encode_nack(nack).hex() == row["hex"]
    # Received 0 1 3 4 7: this is also what we write for it.
    assert nack == StreamNack.of(21, 2, [3, 4, 7])
    assert list(nack.missing()) == [2, 5, 6]
    assert nack.last == 6


@pytest.mark.parametrize("row", rows("0x0b02"), ids=lambda row: row["version"])
def test_resets_of_real_nodes_read_and_write(row: dict[str, Any]) -> None:
    assert decode_reset(bytes.fromhex(row["hex"])) == StreamReset(stream_id=row["fields"]["stream_id"])
    assert encode_reset(StreamReset(stream_id=row["fields"]["stream_id"])).hex() == row["hex"]


@pytest.mark.parametrize("row", rows("0x0b03"), ids=lambda row: row["version"])
def test_ranges_of_real_nodes_read_and_write(row: dict[str, Any]) -> None:
    ranges, fields = decode_ranges(bytes.fromhex(row["hex"])), row["fields"]
    assert (ranges.stream_id, ranges.ack_seq) == (fields["stream_id"], fields["ack_seq"])
    assert [list(one) for one in ranges.ranges] == fields["ranges"]
    assert encode_ranges(ranges).hex() == row["hex"]


@given(st.sets(st.integers(1, 200), min_size=1))
def test_a_nack_names_the_holes_and_nothing_that_arrived(arrived: set[int]) -> None:
    nack = StreamNack.of(5, 0, arrived)
    missing = set(nack.missing())
    assert nack.last == max(missing)
    assert missing.isdisjoint(arrived)
    assert missing == {place for place in range(min(max(arrived), BITMAP_BITS + 1)) if place not in arrived}


def test_all_holes_are_named_if_what_arrived_lies_beyond_the_bitmap() -> None:
    assert StreamNack.of(5, 0, [100]).bitmap == (1 << BITMAP_BITS) - 1
    assert StreamNack.of(5, 7, []).bitmap == 0


@given(st.builds(StreamNack, stream_id=u64, next_expected=u64, bitmap=u64))
def test_nacks_round_trip(nack: StreamNack) -> None:
    assert decode_nack(encode_nack(nack)) == nack


@pytest.mark.parametrize(
    "ranges",
    [
        (),
        ((5, 5),),
        ((1, 3),),
        ((2, 4), (6, 8)),
        ((6, 8), (4, 6)),
        tuple((1000 - 3 * i, 1001 - 3 * i) for i in range(17)),
    ],
    ids=["none", "empty", "touches the acknowledged", "rising", "touching", "too many"],
)
def test_ranges_that_no_node_accepts_are_neither_written_nor_read(ranges: tuple[tuple[int, int], ...]) -> None:
    wrong = StreamRanges(stream_id=1, ack_seq=1, ranges=ranges)
    with pytest.raises(LocalProtocolError, match="range"):
        encode_ranges(wrong)
    raw = b"".join(number.to_bytes(8, "little") for number in (1, 1, *(edge for one in ranges for edge in one)))
    with pytest.raises(MalformedPacket) as caught:
        decode_ranges(raw)
    assert caught.value.fault is Fault.BAD_VALUE


@pytest.mark.parametrize("size", [0, 7, 15, 17, 31])
def test_other_lengths_are_refused(size: int) -> None:
    for decode in (decode_nack, decode_ranges, decode_reset):
        with pytest.raises(MalformedPacket):
            decode(bytes(size))


def test_damaged_messages_never_crash() -> None:
    most = StreamRanges(stream_id=3, ack_seq=0, ranges=tuple((100 - 3 * i, 101 - 3 * i) for i in range(MAX_RANGES)))
    assert_survives(decode_nack, [bytes.fromhex(row["hex"]) for row in rows("0x0b01")], randoms=20_000)
    assert_survives(decode_reset, [bytes.fromhex(row["hex"]) for row in rows("0x0b02")], randoms=20_000)
    samples = [bytes.fromhex(row["hex"]) for row in rows("0x0b03")]
    assert_survives(decode_ranges, [*samples, encode_ranges(most)], randoms=20_000)
