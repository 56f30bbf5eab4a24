"""Application headers: packed once, read back in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.log.headers import Headers, padded

ROW = st.none() | st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=4)


@given(st.lists(ROW, min_size=1, max_size=20))
def test_rows_are_read_back_unchanged(rows: list[dict[str, bytes] | None]) -> None:
    headers = Headers.of(rows)
    assert headers.rows == len(rows)
    assert len(headers.packed) % 8 == 0
    assert [headers.row(index) for index in range(len(rows))] == rows
    framed = memoryview(b"12345678" + bytes(headers.packed) + b"more")
    assert Headers.size_at(framed, 8) == len(headers.packed)


def test_one_row_stands_for_every_event() -> None:
    headers = Headers.of([{"a": b"1"}])
    assert headers.row(0) == headers.row(99) == {"a": b"1"}


@pytest.mark.parametrize("bad", [{"a": "text"}, {1: b""}, {"a": None}, {"\ud800": b""}])
def test_invalid_headers_are_refused(bad: dict[str, bytes]) -> None:
    with pytest.raises(ConfigError, match="headers"):
        Headers.of([bad])


def test_parts_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="add up"):
        Headers(bytes(Headers.of([{"a": b"1"}]).packed) + bytes(8)).parts()


def changed(at: int, value: int) -> Headers:
    """Return the headers of two events with another number at a place; the parts begin at 16, 24, 40 and 56."""
    packed = bytearray(Headers.of([{"ä": b"1"}, {"b": b"2"}]).packed)
    packed[at : at + 4] = value.to_bytes(4, "little", signed=True)
    return Headers(bytes(packed))


def test_headers_whose_offsets_lead_elsewhere_are_refused() -> None:
    Headers.of([{"ä": b"1"}, {"b": b"2"}]).check(2)
    Headers.of([None]).check(7)
    for at in (24, 28, 32, 40, 44, 48, 56, 60, 64):
        for value in (-1, 100, -(1 << 31), (1 << 31) - 1):
            with pytest.raises(ValueError, match="ascend"):
                changed(at, value).check(2)
    with pytest.raises(ValueError, match="within a character"):
        changed(44, 1).check(2)
    with pytest.raises(ValueError, match="headers of 2 events in a block of 3"):
        Headers.of([None, None]).check(3)
    with pytest.raises(UnicodeDecodeError):
        Headers(Headers.of([{"ab": b""}]).packed.replace(b"ab", b"\xffb")).check(1)  # type: ignore[union-attr]


def test_padding_is_to_eight() -> None:
    assert [padded(size) for size in (0, 1, 8, 9)] == [0, 8, 8, 16]
