"""A column of byte strings does what a tuple of them does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.wire.column import ByteColumn, column_of, fitting, joined, largest_of, nbytes_of, only_size

Strings = list[bytes]
strings = st.lists(st.binary(max_size=9), max_size=12)


def column(of: Strings, before: bytes = b"xyz") -> ByteColumn:
    """Return a column that does not begin at the start of its buffer."""
    whole = column_of(memoryview(b"".join([before, *of, b"end"])), np.array([len(before), *map(len, of), 3]))
    return whole[1 : 1 + len(of)]


@given(strings, st.integers(-14, 14), st.integers(-14, 14))
def test_it_is_a_sequence(of: Strings, start: int, stop: int) -> None:
    found = column(of)
    assert (len(found), list(found)) == (len(of), of)
    assert list(found[start:stop]) == of[start:stop]
    assert [found[place] for place in range(-len(of), len(of))] == of + of
    assert found == tuple(of)
    assert found[start:stop].nbytes == nbytes_of(of[start:stop])


@pytest.mark.parametrize(
    ("of", "size"), [([], None), ([b"ab"], 2), ([b"ab", b"cd"], 2), ([b"", b""], 0), ([b"ab", b"c"], None)]
)
def test_one_size_is_told_if_there_is_one(of: Strings, size: int | None) -> None:
    assert column(of).only_size() == only_size(column(of).edges) == size


def test_what_is_not_there_and_steps_are_refused() -> None:
    with pytest.raises(IndexError):
        column([b"a"])[1]
    with pytest.raises(ValueError, match="step 1, got 2"):
        column([b"a"])[::2]


def test_it_equals_sequences_with_the_same_strings_only() -> None:
    found = column([b"a", b"b"])
    assert found != (b"a",)
    assert found != (b"a", b"c")
    assert found != b"ab"
    assert repr(found) == "ByteColumn([b'a', b'b'])"
    with pytest.raises(TypeError):
        hash(found)


@given(st.lists(st.tuples(strings, st.booleans()), max_size=4))
def test_sequences_of_both_kinds_are_joined(parts: list[tuple[Strings, bool]]) -> None:
    found = joined([column(of) if as_column else tuple(of) for of, as_column in parts])
    assert list(found) == [string for of, _ in parts for string in of]
    if parts and all(as_column for _, as_column in parts):
        assert isinstance(found, ByteColumn)


@given(strings, st.integers(0, 60), st.integers(0, 4))
def test_as_many_fit_in_both_kinds(of: Strings, max_bytes: int, cost: int) -> None:
    found = list(fitting(column(of), max_bytes, cost))
    assert found == list(fitting(tuple(of), max_bytes, cost)) == of[: len(found)]
    taken = [cost + len(string) for string in of]
    assert sum(taken[: len(found)]) <= max_bytes
    assert len(found) == len(of) or sum(taken[: len(found) + 1]) > max_bytes


@given(strings)
def test_sizes_are_those_of_the_strings(of: Strings) -> None:
    assert nbytes_of(column(of)) == nbytes_of(of) == sum(map(len, of))
    assert largest_of(column(of)) == largest_of(of) == max(map(len, of), default=0)
