"""Arguments of an append: defaults, numbers, and three forms of payloads."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log import columns
from meshbus.log.columns import Columns, Defaults, number, pack_events
from meshbus.log.rows import NULL, OWN, PLACES, Cells, Kind
from meshbus.log.schema import EVENTS

EVENT_LISTS = st.lists(st.binary(max_size=6), max_size=9)


def unpacked(events: Any) -> list[bytes]:
    offsets, data = pack_events(events)
    edges = offsets.cast("i")
    assert edges[0] == 0
    return [bytes(data[a:b]) for a, b in pairwise(edges)]


@given(EVENT_LISTS, st.binary(max_size=3))
def test_payloads_are_taken_in_every_form(events: list[bytes], before: bytes) -> None:
    assert unpacked(events) == events
    edges = len(before) + np.concatenate([[0], np.cumsum([len(event) for event in events])]).astype(np.int64)
    assert unpacked((edges, np.frombuffer(before + b"".join(events), np.uint8))) == events
    for kind in (pa.binary(), pa.large_binary()):
        assert unpacked(pa.array(events, kind)) == events
    assert unpacked(pa.chunked_array([pa.array(events, pa.binary())] * 2)) == events * 2


@given(st.lists(st.text(max_size=4), min_size=2, max_size=6))
def test_arrow_slices_and_text_are_taken_too(texts: list[str]) -> None:
    assert unpacked(pa.array(texts).slice(1)) == [text.encode() for text in texts[1:]]


@pytest.mark.parametrize(
    "bad",
    [
        [1, 2],
        5,
        ["text"],
        (np.array([0, 9]), b"short"),
        (np.array([0, 3, 1]), b"abcd"),
        (np.array([-1, 3]), b"abcd"),
        (np.array([], np.int64), b""),
        (np.array([0.0, 1.0]), b"a"),
        (np.array([[0, 1]]), b"a"),
        (np.array([0, 1]), "text"),
        pa.array([1, 2]),
        pa.array([b"a", None]),
        pa.scalar(b"a"),
    ],
    ids=str,
)
def test_values_that_are_not_payloads_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="events"):
        pack_events(bad)


def test_too_much_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_APPEND_BYTES", 5)
    with pytest.raises(LogError, match="append fewer") as caught:
        pack_events([b"123", b"456"])
    assert caught.value.fault is LogFault.TOO_LARGE


def test_defaults_are_now_and_who_writes() -> None:
    cells, headers = Defaults(recorder=2**64 - 1, origin=7).cells({}, 3, 99)
    assert headers is None
    assert cells[PLACES["ts_ns"]] == cells[PLACES["recv_ts_ns"]] == Cells(Kind.SAME, 99)
    assert cells[PLACES["recorder"]] == Cells(Kind.SAME, -1)
    assert cells[PLACES["origin"]] == Cells(Kind.SAME, 7)
    assert cells[PLACES["session_id"]] is NULL
    assert number(cells, 12)[PLACES["pub_seq"]] == Cells(Kind.COUNT, 12)


def test_publish_numbers_are_the_sequences_of_the_log_by_default() -> None:
    defaults = Defaults(recorder=0, origin=0)
    for said, expected in [(OWN, Cells(Kind.COUNT, 12)), (None, NULL), (5, Cells(Kind.COUNT, 5))]:
        cells, _ = defaults.cells({"pub_seq": said}, 1, 0)
        assert number(cells, 12)[PLACES["pub_seq"]] == expected


def test_one_append_does_not_change_the_defaults_of_the_next() -> None:
    defaults = Defaults(recorder=0, origin=1)
    defaults.cells({"origin": 5, "headers": {"a": b""}}, 1, 0)
    cells, headers = defaults.cells({}, 1, 0)
    assert cells[PLACES["origin"]] == Cells(Kind.SAME, 1)
    assert headers is None


@pytest.mark.parametrize("name", ["seq", "recorder", "colour"])
def test_an_unknown_column_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not a column"):
        Defaults(recorder=0, origin=0).cells({name: 1}, 1, 0)  # type: ignore[misc]


def test_every_column_is_in_the_table() -> None:
    assert set(Columns.__annotations__) < {column.name for column in EVENTS}
