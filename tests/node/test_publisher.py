"""What people publish becomes offsets and data, without copies where it is Arrow."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from meshbus.errors import LocalProtocolError
from meshbus.node.publisher import columns_from

EVENTS = [b"one", b"", b"three"]


def as_list(columns: Any) -> list[bytes]:
    offsets, data = columns
    return [data[a:b].tobytes() for a, b in pairwise(offsets)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_arrow_columns(kind: pa.DataType) -> None:
    array = pa.array([b"skipped", *EVENTS], pa.binary()).cast(kind)
    assert as_list(columns_from(array.slice(1))) == EVENTS
    _, data = columns_from(array)
    assert data.ctypes.data == array.buffers()[2].address
    assert as_list(columns_from(pa.chunked_array([array.slice(1, 1), array.slice(2)]))) == EVENTS


def test_lists_of_bytes_and_text() -> None:
    assert as_list(columns_from(["one", b"", bytearray(b"three")])) == EVENTS
    assert as_list(columns_from([])) == []
    assert as_list(columns_from(pa.array([], pa.binary()))) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (b"one", "for one event use publish"),
        ("one", "for one event use publish"),
        (7, "takes a list of bytes"),
        (pa.array([b"a", None]), "holds 1 nulls"),
        (pa.array([1, 2]), "cast it to binary"),
    ],
)
def test_what_cannot_be_published_is_explained(events: object, problem: str) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        columns_from(events)
