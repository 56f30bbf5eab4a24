"""Event frames: golden bytes, lenient reading, and columns equal to the scalar form, compiled or not."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError
from meshbus.wire import frames
from meshbus.wire.constants import MAX_EVENT, MAX_EVENTS, MAX_PAYLOAD
from meshbus.wire.frames import Packed, columns_of, decode_frames, encode_frames, pack_frames, unpack_frames
from tests.vectors import load

VECTORS = load("transport")

events_lists = st.lists(st.binary(max_size=300), max_size=60)


@pytest.fixture(params=["compiled", "reference"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test once with the compiled kernels and once with their references."""
    if request.param == "reference":
        for kernel in (frames._pack, frames._unpack, frames._measure):
            monkeypatch.setattr(kernel, "run", kernel.reference)


def payloads(packed: Packed) -> list[bytes]:
    return [packed.data[a:b].tobytes() for a, b in pairwise(packed.bounds)]


def events_of(offsets: Any, data: Any) -> list[bytes]:
    return [data[a:b].tobytes() for a, b in pairwise(offsets)]


def decode_all(blobs: list[bytes], counts: list[int]) -> tuple[list[bytes], list[int]]:
    """Decode payloads from one buffer with random bytes between them."""
    buffer, starts = b"", []
    for blob in blobs:
        buffer += b"\xaa\xbb\xcc"
        starts.append(len(buffer))
        buffer += blob
    lengths = np.array([len(blob) for blob in blobs], np.int64)
    offsets, data, found = decode_frames(
        np.frombuffer(buffer, np.uint8), np.array(starts, np.int64), lengths, np.array(counts, np.int64)
    )
    return events_of(offsets, data), found.tolist()


@pytest.mark.parametrize("row", VECTORS["event_frames"])
@pytest.mark.usefixtures("form")
def test_golden_frames(row: dict[str, Any]) -> None:
    events = [bytes.fromhex(event) for event in row["events"]]
    payload = bytes.fromhex(row["payload"])
    assert pack_frames(events) == payload
    assert unpack_frames(payload, row["event_count"]) == events
    packed = encode_frames(*columns_of(events))
    assert payloads(packed) == [payload]
    assert packed.counts.tolist() == [row["event_count"]]


@pytest.mark.parametrize("row", VECTORS["event_frames_lenient"])
@pytest.mark.usefixtures("form")
def test_reading_stops_early_and_keeps_what_it_has(row: dict[str, Any]) -> None:
    payload, events = bytes.fromhex(row["payload"]), [bytes.fromhex(event) for event in row["events"]]
    assert unpack_frames(payload, row["event_count"]) == events
    assert decode_all([payload], [row["event_count"]]) == (events, [len(events)])


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("limit", [MAX_PAYLOAD, 1000, 40])
def test_columns_pack_greedily_and_read_back(limit: int) -> None:
    @given(events_lists)
    def check(events: list[bytes]) -> None:
        packed = encode_frames(*columns_of(events), max_payload=limit)
        position = 0
        for payload, count in zip(payloads(packed), packed.counts.tolist(), strict=True):
            group = events[position : position + count]
            position += count
            assert payload == pack_frames(group)
            assert len(payload) <= limit or count == 1
            if position < len(events):
                assert len(payload) + 4 + len(events[position]) > limit
        assert position == len(events)
        assert decode_all(payloads(packed), packed.counts.tolist()) == (events, packed.counts.tolist())

    check()


@pytest.mark.usefixtures("form")
def test_hostile_payloads_read_as_the_scalar_form_does() -> None:
    @given(st.lists(st.tuples(st.binary(max_size=80), st.integers(0, 40)), max_size=8))
    def check(rows: list[tuple[bytes, int]]) -> None:
        expected = [unpack_frames(blob, count) for blob, count in rows]
        events, found = decode_all([blob for blob, _ in rows], [count for _, count in rows])
        assert events == [bytes(event) for group in expected for event in group]
        assert found == [len(group) for group in expected]

    check()


@pytest.mark.usefixtures("form")
def test_a_packet_holds_at_most_2027_empty_events() -> None:
    packed = encode_frames(*columns_of([b""] * (MAX_EVENTS + 1)))
    assert packed.counts.tolist() == [MAX_EVENTS, 1]


@pytest.mark.usefixtures("form")
def test_an_oversize_event_is_refused() -> None:
    assert len(encode_frames(*columns_of([bytes(MAX_EVENT)]))) == 1
    events = [b"fine", bytes(MAX_EVENT + 1)]
    with pytest.raises(LocalProtocolError, match="8105 bytes is too large"):
        encode_frames(*columns_of(events))
    with pytest.raises(LocalProtocolError, match="8105 bytes is too large"):
        pack_frames(events)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("offsets", [[0, 50, 10], [0, 11], [-1, 5], [5, 0], [0, 5, 2**62], [10, 0, 10]])
def test_offsets_that_do_not_fit_the_data_are_refused(offsets: list[int]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frames(np.array(offsets, np.int64), np.zeros(10, np.uint8))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("start", "length"), [(-1, 4), (0, 99), (8, 8), (5, -3), (2**62, 8)])
def test_a_payload_outside_the_buffer_holds_nothing(start: int, length: int) -> None:
    places = (np.array([value], np.int64) for value in (start, length, 3))
    offsets, data, found = decode_frames(np.zeros(12, np.uint8), *places)
    assert (offsets.tolist(), data.tolist(), found.tolist()) == ([0], [], [0])


@pytest.mark.usefixtures("form")
def test_memory_is_reused_when_given() -> None:
    scratch = np.empty(1000, np.uint8)
    packed = encode_frames(*columns_of([b"abc"]), out=scratch)
    assert np.shares_memory(packed.data, scratch)
    one = np.array([1], np.int64)
    _, data, _ = decode_frames(packed.data, np.array([0], np.int64), np.array([7], np.int64), one, out=scratch[100:])
    assert np.shares_memory(data, scratch)
    assert data.tobytes() == b"abc"


def test_too_many_events_for_one_payload_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="do not fit one packet"):
        pack_frames([bytes(5000), bytes(5000)])
