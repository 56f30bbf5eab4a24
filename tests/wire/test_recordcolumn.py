"""Records in bulk are the same bytes as single ones."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.wire.column import ByteColumn, column_of
from meshbus.wire.frames import columns_of
from meshbus.wire.record import RECORD_COST, Record, pack_record
from meshbus.wire.recordcolumn import have_headers, pack_record_column, split_record_column

payloads = st.one_of(
    st.lists(st.binary(max_size=9), min_size=1, max_size=9),
    st.integers(0, 9).map(lambda size: [bytes([size]) * size] * 5),
)


def column(of: list[bytes]) -> ByteColumn:
    return column_of(memoryview(b"".join(of)), np.array([len(one) for one in of]))


@given(payloads)
def test_payloads_become_records_and_records_payloads(of: list[bytes]) -> None:
    offsets, data = columns_of([b"before", *of])
    records = pack_record_column(offsets[1:], data, 5, 7)
    assert list(records) == [pack_record(Record(payload, 5, 7)) for payload in of]
    split = split_record_column(records)
    assert split is not None
    heads, edges, found = split
    assert found.contiguous
    assert [bytes(found[left:right]) for left, right in pairwise(edges.tolist())] == of
    assert heads["ts_ns"].tolist() == [5] * len(of)
    assert heads["origin"].tolist() == [7] * len(of)
    assert not have_headers(records)


def test_a_part_of_a_column_is_split_alone() -> None:
    records = column([pack_record(Record(b"%d" % place, place, 7)) for place in range(4)])
    split = split_record_column(records[1:3])
    assert split is not None
    assert (split[0]["ts_ns"].tolist(), bytes(split[2])) == ([1, 2], b"12")


@pytest.mark.parametrize(
    "strange",
    [pack_record(Record(b"hot", 1, 2, {"k": b"v"})), bytes(RECORD_COST - 1), b""],
    ids=["headers", "short", "empty"],
)
def test_records_with_headers_and_what_is_none_are_left_to_others(strange: bytes) -> None:
    records = column([pack_record(Record(b"a", 1, 2)), strange])
    assert split_record_column(records) is None
    assert have_headers(records) == (len(strange) > RECORD_COST)


@pytest.mark.parametrize("count", [1, 3])
def test_headers_are_found_in_records_of_one_size(count: int) -> None:
    headed = column([pack_record(Record(b"hot", 1, 2, {"k": b"v"}))] * count)
    assert have_headers(headed)
    assert split_record_column(headed) is None
    assert not have_headers(column([bytes(range(10, 10 + RECORD_COST - 1))] * count)), "too short to be records"


def test_no_records_are_not_split() -> None:
    assert split_record_column(column([])) is None
    assert not have_headers(column([]))
