"""A run of messages has the same events as the messages one by one."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.column import column_of
from meshbus.wire.datarun import DataBodies, encode_data_run
from meshbus.wire.frames import unpack_frames
from meshbus.wire.messages.leadership import DATA_HEAD, MAX_MESSAGE, MAX_REPLICATED, Data, decode_leadership

sizes = st.lists(st.one_of(st.integers(0, 3000), st.just(MAX_REPLICATED)), min_size=1, max_size=12)


def message(payloads: list[bytes], *, as_column: bool = False) -> Data:
    column = column_of(memoryview(b"".join(payloads)), np.array([len(payload) for payload in payloads]))
    return Data(
        channel_id=bytes(32),
        epoch=9,
        round=4,
        prev_epoch=2,
        entry_epoch=3,
        committed=5,
        first_retained=1,
        first_seq=10,
        payloads=column if as_column else tuple(payloads),
    )


def messages(data: Data) -> list[memoryview]:
    """Return what each packet of a run carries."""
    run = encode_data_run(data)
    assert run.counts.tolist() == [1] * len(run)
    packets = [run.data.data[start:end] for start, end in pairwise(run.bounds.tolist())]
    return [event for packet in packets for event in unpack_frames(packet, 1)]


@given(sizes, st.booleans())
def test_every_message_of_a_run_is_one_of_its_own(of: list[int], as_column: bool) -> None:
    payloads = [bytes([place]) * size for place, size in enumerate(of)]
    whole = message(payloads, as_column=as_column)
    found = messages(whole)
    assert max(map(len, found)) <= MAX_MESSAGE
    seq, prev, bodies = 10, 2, DataBodies()
    for raw in found:
        part = decode_leadership(raw)
        assert isinstance(part, Data)
        assert (part.first_seq, part.prev_epoch) == (seq, prev)
        assert (part.epoch, part.entry_epoch, part.round, part.committed, part.first_retained) == (9, 3, 4, 5, 1)
        seq, prev = seq + len(part.payloads), 3
        bodies.add(raw[DATA_HEAD:], len(part.payloads))
    assert bodies.count == len(payloads)
    assert list(bodies.column()) == payloads


@pytest.mark.parametrize("size", [0, 1, 63, 1042, MAX_REPLICATED // 2, MAX_REPLICATED])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 15, 300])
def test_events_of_one_size_become_the_same_messages_as_any_others(size: int, count: int) -> None:
    payloads = [bytes([place & 0xFF]) * size for place in range(count)]
    before = column_of(memoryview(b"".join([b"xyz", *payloads])), np.array([3] + [size] * count))[1:]
    columns, plain = msgspec.structs.replace(message(payloads), payloads=before), message(payloads)
    found, expected = encode_data_run(columns), encode_data_run(plain)
    assert found.bounds.tolist() == expected.bounds.tolist()
    assert found.counts.tolist() == expected.counts.tolist()
    assert found.data.tobytes() == expected.data.tobytes()


def test_messages_are_filled() -> None:
    assert [len(decode_leadership(raw).payloads) for raw in messages(message([bytes(1042)] * 15))] == [7, 7, 1]  # type: ignore[union-attr]


def test_an_event_that_never_fits_is_refused() -> None:
    for as_column in (False, True):
        with pytest.raises(LocalProtocolError, match="do not fit one packet"):
            encode_data_run(message([bytes(MAX_REPLICATED + 1)], as_column=as_column))


@pytest.mark.parametrize(("body", "count"), [(b"\1\0\0", 1), (b"\2\0\0\0a", 1), (b"\1\0\0\0ab", 1), (b"", 1 << 31)])
def test_sizes_that_do_not_fit_their_message_are_malformed(body: bytes, count: int) -> None:
    with pytest.raises(MalformedPacket):
        DataBodies().add(memoryview(body), count)
