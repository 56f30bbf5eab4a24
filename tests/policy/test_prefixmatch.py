"""Flat snapshot of subscriptions: links, both matchers, and the forms of topics and matches."""

import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus import jit
from meshbus.errors import LocalProtocolError
from meshbus.policy import prefixmatch
from meshbus.policy.prefixmatch import FlatTable, Matches, flatten, gather, list_topics, match_topics, pack_topics

Held = dict[bytes, set[int]]

# NULs at word boundaries are where comparing by zero-padded words could go wrong.
PIECE = st.sampled_from([b"", b"\0", b"a", b"\xff", b"aaaaaaa", b"\0\0\0\0\0\0\0\0", b"aaaaaaaa", b"b\0"])
TEXT = st.lists(PIECE, max_size=4).map(b"".join)
HELD = st.dictionaries(TEXT, st.sets(st.integers(0, 4) | st.just(2**64 - 1), min_size=1), max_size=12)


@cache
def compiled(kernel: jit.Kernel[..., Any]) -> Callable[..., Any]:
    return jit.compile_loop(kernel.loop)


def table_of(held: Held) -> FlatTable:
    prefixes = sorted({b"", *held})
    return flatten(prefixes, [sorted(held.get(prefix, set())) for prefix in prefixes])


def naive(held: Held, topic: bytes) -> list[int]:
    return sorted({peer for prefix, peers in held.items() if topic.startswith(prefix) for peer in peers})


@given(HELD, st.lists(TEXT, max_size=12))
def test_both_matchers_equal_the_naive_scan(held: Held, topics: list[bytes]) -> None:
    table = table_of(held)
    offsets, data = pack_topics([*topics, b""])
    count = len(offsets) - 1
    found = []
    for locate, fill in [
        (compiled(prefixmatch._locate), compiled(prefixmatch._fill)),
        (prefixmatch._locate.reference, prefixmatch._fill.reference),
    ]:
        rows, bounds = np.empty(count, np.int32), np.empty(count + 1, np.int64)
        total = locate(table.starts, table.data, table.links, offsets, data, rows, bounds)
        peers = np.empty(total, np.uint64)
        fill(table.links, table.peers, rows, bounds, peers)
        found.append(Matches(bounds, peers).tolist())
    expected = [naive(held, topic) for topic in [*topics, b""]]
    assert found == [expected, expected]


@given(HELD)
def test_links_mean_what_they_say(held: Held) -> None:
    table = table_of(held)
    prefixes = sorted({b"", *held})
    parents, jumps, fresh, ups, totals = table.links.T.tolist()
    for row, prefix in enumerate(prefixes):
        above = [place for place, other in enumerate(prefixes) if prefix.startswith(other) and place != row]
        peers_above = {peer for place in above for peer in held.get(prefixes[place], set())}
        own = held.get(prefix, set()) - peers_above
        assert parents[row] == (above[-1] if above else 0)
        assert jumps[row] in (above or [0])
        assert table.peers[fresh[row] : fresh[row + 1]].tolist() == sorted(own)
        assert ups[row] == max((place for place in [0, *above, row] if fresh[place + 1] > fresh[place]), default=0)
        assert totals[row] == len(peers_above | own)


@given(HELD)
def test_the_compiled_links_equal_the_plain_ones(held: Held) -> None:
    prefixes = sorted({b"", *held})
    data = np.frombuffer(b"".join(prefixes), np.uint8)
    starts = np.cumsum([0, *map(len, prefixes)]).astype(np.int32)
    own = np.cumsum([0, *(len(held.get(prefix, ())) for prefix in prefixes)])
    peers = [peer for prefix in prefixes for peer in sorted(held.get(prefix, ()))]
    names, ids = np.unique(np.array(peers, np.uint64), return_inverse=True)
    results = []
    for link in (compiled(prefixmatch._link), prefixmatch._link.reference):
        links, fresh = np.zeros((len(starts), 5), np.int32), np.empty(len(ids), np.int64)
        count = link(starts, data, own, ids, np.zeros(len(names), np.bool_), links, fresh)
        results.append((links.tolist(), fresh[:count].tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("depth", [2, 8, 9, 10, 11, 300])
def test_chains_are_merged_or_sorted_to_the_same_order(depth: int) -> None:
    rng = random.Random(depth)
    held = {b"x" * length: {rng.randrange(2**64) for _ in range(rng.randrange(1, 5))} for length in range(depth)}
    topics = [b"x" * length for length in range(depth + 1)]
    assert match_topics(table_of(held), *pack_topics(topics)).tolist() == [naive(held, topic) for topic in topics]


def test_a_wide_fan_is_merged_with_a_narrow_one() -> None:
    held = {b"": set(range(0, 2_000, 2)), b"a": {7, 1_999, 4}, b"ab": {1, 3_000}}
    assert match_topics(table_of(held), *pack_topics([b"abc", b"a", b""])).tolist() == [
        naive(held, b"abc"),
        naive(held, b"a"),
        naive(held, b""),
    ]


def test_jumps_make_the_deepest_climb_short() -> None:
    depth = 4_096
    table = table_of({b"x" * length: {1} for length in range(depth)})
    parents, jumps = table.links.T.tolist()[:2]
    for wanted in (0, 1, 2_000, depth - 2):  # a row is as long as its number here
        row, steps = depth - 1, 0
        while row > wanted:
            row = jumps[row] if jumps[row] > wanted else parents[row]
            steps += 1
        assert row == wanted
        assert steps <= 2 * math.log2(depth)


def test_a_snapshot_costs_at_most_60_bytes_per_subscription() -> None:
    rng = random.Random(1)
    held = {b"sensors/lidar/%05d" % rng.randrange(100_000): {rng.randrange(50)} for _ in range(5_000)}
    table = table_of(held)
    size = sum(part.nbytes for part in (table.starts, table.data, table.links, table.peers))
    assert size / len(held) <= 60


def test_topics_come_as_lists_or_as_columns_and_back() -> None:
    topics: list[bytes | str] = [b"a", "é", b"", b"\0"]
    expected = [b"a", b"\xc3\xa9", b"", b"\0"]
    packed = pack_topics(topics)
    assert list_topics(topics) == list_topics(packed) == expected
    assert prefixmatch.count_topics(topics) == prefixmatch.count_topics(packed) == 4
    narrow = (packed[0].astype(np.int32), packed[1])
    assert pack_topics(narrow)[0].dtype == np.int64
    assert list_topics(narrow) == expected


def test_nothing_behind_the_last_topic_is_read() -> None:
    table = table_of({b"a": {1}, b"a\xff": {2}})
    offsets = np.array([0, 1], np.int64)
    for tail in (b"", b"\xff", b"\xff" * 20):
        assert match_topics(table, offsets, np.frombuffer(b"a" + tail, np.uint8)).tolist() == [[1]]


@pytest.mark.parametrize("bad", [[0, 3], [1, 0], [-2, 1], [0, 2, 1], [0, 2**40, 1], [0, -1]])
def test_bad_offsets_are_refused(bad: list[int]) -> None:
    data = np.zeros(2, np.uint8)
    with pytest.raises(LocalProtocolError, match="2 bytes"):
        match_topics(table_of({b"a": {1}}), np.array(bad, np.int64), data)
    with pytest.raises(LocalProtocolError, match="2 bytes"):
        list_topics((np.array(bad, np.int64), data))


def test_matches_are_read_by_topic() -> None:
    matches = gather([(1, 2), (), (2**64 - 1,)])
    assert len(matches) == 3
    assert matches.tolist() == [[1, 2], [], [2**64 - 1]]
    assert matches[0].tolist() == [1, 2]
    assert [found.tolist() for found in matches] == matches.tolist()
    for index in (3, -1):
        with pytest.raises(IndexError):
            matches[index]
