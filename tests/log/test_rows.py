"""Columns become cells, and cells become the same values again."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.log.rows import NULL, PLACES, STORED, ZERO, Kind, Rows, as_headers, expand, make_cells, pack_payloads
from meshbus.log.schema import EVENTS

COMPUTED = {"channel", "seq", "log_id", "ts", "recv_ts", "chash64", "chash", "payload", "headers"}
COLUMN = st.sampled_from([column.name for column in STORED])


def bounds(name: str) -> tuple[int, int]:
    column = STORED[PLACES[name]]
    bits = 8 * column.dtype.itemsize
    return -(1 << bits - 1), (1 << (bits if column.bit_cast else bits - 1)) - 1


def signed(name: str, value: int) -> int:
    bits = 8 * STORED[PLACES[name]].dtype.itemsize
    return value - (1 << bits) if value >= 1 << bits - 1 else value


def test_every_column_of_the_table_is_stored_or_computed() -> None:
    assert {column.name for column in STORED} | COMPUTED == {column.name for column in EVENTS}
    assert len(STORED) == 15, "a block has room for the kinds of 15 columns and the headers"


@given(COLUMN, st.data())
def test_an_array_is_stored_bit_by_bit(name: str, data: st.DataObject) -> None:
    low, high = bounds(name)
    values = data.draw(st.lists(st.integers(max(low, 0), high), min_size=1, max_size=9))
    cells = make_cells(name, np.array(values, np.uint64), len(values))
    array, valid = expand(cells, len(values), STORED[PLACES[name]].dtype)
    assert valid is None
    assert array is not None
    assert array.tolist() == [signed(name, value) for value in values]


@given(COLUMN, st.data())
def test_one_number_stands_for_all_and_counts_on_for_publish_numbers(name: str, data: st.DataObject) -> None:
    low, high = bounds(name)
    value = data.draw(st.integers(low, high - 3))
    cells = make_cells(name, value, 3)
    array, _ = expand(cells, 3, STORED[PLACES[name]].dtype)
    assert array is not None
    step = 1 if name == "pub_seq" else 0
    assert array.tolist() == [signed(name, value) + step * row for row in range(3)]
    assert cells.array is None, "nothing is stored per row"


@given(st.lists(st.none() | st.integers(0, 99), min_size=1, max_size=20))
def test_masked_arrays_become_nulls(values: list[int | None]) -> None:
    masked = np.ma.array([value or 0 for value in values], mask=[value is None for value in values])
    cells = make_cells("session_id", masked, len(values))
    array, valid = expand(cells, len(values), np.dtype("<i8"))
    if array is None:
        assert set(values) == {None}
        return
    bits = np.ones(len(values), bool) if valid is None else np.unpackbits(valid, bitorder="little")[: len(values)] == 1
    assert [value if there else None for value, there in zip(array.tolist(), bits, strict=True)] == values


def test_an_array_of_the_stored_type_is_not_copied() -> None:
    given_array = np.arange(5, dtype="<i8")
    assert np.shares_memory(make_cells("ts_ns", given_array, 5).array, given_array)


def test_zero_and_null_take_no_room() -> None:
    assert make_cells("src", 0, 9) is ZERO
    assert make_cells("session_id", None, 9) is NULL
    assert expand(NULL, 9, np.dtype("<i8")) == (None, None)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("ttl", 40_000, "must be in"),
        ("src", 2**32, "must be in"),
        ("recv_ts_ns", None, "must not be null"),
        ("recv_ts_ns", np.ma.array([1, 2], mask=[True, False]), "must not be null"),
        ("ts_ns", [1, 2, 3], "shape"),
        ("ts_ns", [1.5, 2.5], "must be integers"),
        ("event_index", np.array([0, 2**31]), "must be in"),
        ("event_index", np.array([-(2**31) - 1, 0]), "must be in"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_cells(name, value, 2)


@given(st.lists(st.binary(max_size=5), max_size=9))
def test_payloads_are_offsets_and_data(events: list[bytes]) -> None:
    offsets, data = pack_payloads(events)
    rows = Rows(7, (), offsets.astype(np.int32), data)
    assert list(rows.payloads(0, len(events))) == events
    assert list(rows.payloads(1, len(events))) == events[1:]
    assert (len(rows), rows.end) == (len(events), 7 + len(events))


def test_values_are_found_by_name() -> None:
    cells = [ZERO] * len(STORED)
    cells[PLACES["src"]] = make_cells("src", 2**32 - 1, 2)
    rows = Rows(0, tuple(cells), np.zeros(3, np.int32), memoryview(b""))
    assert rows.values("src")[0].tolist() == [-1, -1]  # type: ignore[union-attr]
    assert cells[PLACES["src"]].kind is Kind.SAME


def test_headers_are_for_all_or_one_each() -> None:
    assert as_headers(None, 3) is None
    assert as_headers({"a": b"1"}, 3).row(2) == {"a": b"1"}  # type: ignore[union-attr]
    assert as_headers([None, {"a": b"1"}], 2).row(1) == {"a": b"1"}  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="headers"):
        as_headers([None], 2)
