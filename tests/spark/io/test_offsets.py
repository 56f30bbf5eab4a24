"""Offsets: everything is read once, shares are fair, and what expired or was replaced is said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.spark.io.offsets import Extent, Gap, advance, first_offset, next_of, offset_of, ranges, share

CHANNELS = st.sampled_from(["a", "b/c", "d"])
LOGS = st.dictionaries(CHANNELS, st.tuples(st.integers(0, 50), st.integers(0, 200)))


def extents_of(logs: dict[str, tuple[int, int]]) -> dict[str, Extent]:
    return {name: Extent(first, first + rows, f"id-{name}", 10.0) for name, (first, rows) in logs.items()}


@given(LOGS, st.integers(1, 40))
def test_small_steps_read_everything_once_and_in_order(logs: dict[str, tuple[int, int]], limit: int) -> None:
    extents = extents_of(logs)
    at = first_offset(extents, "earliest")
    read: dict[str, list[int]] = {name: [] for name in extents}
    while (following := advance(at, extents, rows=limit)) != at:
        found, gaps = ranges(at, following, extents)
        assert not gaps
        assert 0 < sum(stop - start for start, stop in found.values()) <= limit
        for channel, (start, stop) in found.items():
            read[channel] += range(start, stop)
        at = json.loads(json.dumps(following))
    assert read == {name: list(range(extent.first, extent.end)) for name, extent in extents.items()}


@given(st.dictionaries(CHANNELS, st.integers(0, 100)), st.integers(0, 250))
def test_shares_are_as_equal_as_they_can_be(wanted: dict[str, int], limit: int) -> None:
    given_ = share(wanted, limit)
    assert sum(given_.values()) == min(limit, sum(wanted.values()))
    assert all(given_[name] <= wanted[name] for name in wanted)
    short = [given_[name] for name in wanted if given_[name] < wanted[name]]
    assert max(short, default=0) - min(short, default=0) <= 1
    assert all(given_[name] <= min(short, default=limit) + 1 for name in wanted)


def test_bytes_limit_rows_by_their_size_and_always_let_one_through() -> None:
    extents = {"a": Extent(0, 100, "x", 10.0), "b": Extent(0, 100, "y", 1_000.0)}
    assert next_of(advance(offset_of({}, {}), extents, size=2_000)) == {"a": 100, "b": 1}
    assert next_of(advance(offset_of({}, {}), {"b": extents["b"]}, size=10)) == {"b": 1}


def test_nothing_new_gives_the_same_offset() -> None:
    extents = {"a": Extent(0, 5, "x")}
    start = offset_of({"a": 5}, {"a": "x"})
    assert advance(start, extents) == start
    assert advance(start, extents, rows=3) == start


@pytest.mark.parametrize(
    ("starting", "expected"), [("earliest", {"a": 3}), ("latest", {"a": 9}), ('{"a": 5, "new": 0}', {"a": 5, "new": 0})]
)
def test_a_reader_begins_where_it_is_told(starting: str, expected: dict[str, int]) -> None:
    assert next_of(first_offset({"a": Extent(3, 9, "x")}, starting)) == expected


@pytest.mark.parametrize("starting", ["first", "[1]", '{"a": "x"}', ""])
def test_another_beginning_is_refused(starting: str) -> None:
    with pytest.raises(ConfigError, match="earliest"):
        first_offset({}, starting)


def test_what_expired_is_a_gap_and_the_rest_is_read() -> None:
    found, gaps = ranges(offset_of({"a": 2}, {}), offset_of({"a": 9}, {}), {"a": Extent(5, 20, "x")})
    assert (found, gaps) == ({"a": (5, 9)}, [Gap("a", 2, 5)])
    found, gaps = ranges(offset_of({"a": 2}, {}), offset_of({"a": 4}, {}), {"a": Extent(5, 20, "x")})
    assert (found, gaps) == ({}, [Gap("a", 2, 4)])


def test_a_channel_that_is_gone_is_a_gap() -> None:
    assert ranges(offset_of({"a": 2}, {}), offset_of({"a": 4}, {}), {}) == ({}, [Gap("a", 2, 4)])


def test_a_channel_seen_for_the_first_time_begins_at_its_first_sequence() -> None:
    assert ranges(offset_of({}, {}), offset_of({"a": 9}, {}), {"a": Extent(5, 20, "x")}) == ({"a": (5, 9)}, [])


@pytest.mark.parametrize(
    ("extent", "fault", "problem"),
    [
        (Extent(0, 20, "other"), LogFault.FOREIGN, "the log was replaced after sequence 2"),
        (
            Extent(0, 3, "mine"),
            LogFault.CORRUPT,
            "'a': the log ends before sequence 3, but 8 was there: a block is damaged",
        ),
    ],
)
def test_a_log_that_was_replaced_or_cut_is_an_error(extent: Extent, fault: LogFault, problem: str) -> None:
    with pytest.raises(LogError, match=problem) as caught:
        ranges(offset_of({"a": 2}, {"a": "mine"}), offset_of({"a": 9}, {"a": "mine"}), {"a": extent})
    assert caught.value.fault is fault


def test_offsets_of_the_plain_form_are_readable() -> None:
    plain = {"v": 1, "next": {"a": 4}}
    assert next_of(plain) == {"a": 4}
    assert ranges(plain, {"v": 1, "next": {"a": 6}}, {"a": Extent(0, 9, "x")}) == ({"a": (4, 6)}, [])


@pytest.mark.parametrize("offset", [{}, {"v": 1}, {"next": {}}, {"v": "1", "next": {}}, {"logOffset": 3}])
def test_an_offset_of_another_source_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="is not a meshbus offset"):
        next_of(offset)


def test_an_offset_of_a_newer_meshbus_is_refused() -> None:
    with pytest.raises(ConfigError, match="newer"):
        next_of({"v": 2, "next": {}})
