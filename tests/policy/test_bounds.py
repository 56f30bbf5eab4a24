"""Documented cost limits of the subscription index: counted comparisons and lookups of prefixes for any table.

With S = log2(N) + 6 for one search of N prefixes in blocks:

    subscribe, unsubscribe    3 S + 8, and 2 * 64 when other prefixes start with this one
    remove_peer               as unsubscribe, for each prefix that the peer holds
    match                     S + 4 log2(d) + 4 for d nested prefixes, where these were met before; for each note that
                              is new or marked, S + 4 and a lookup per inner length up to 4 times the topic's length;
                              a topic that meets a prefix more than 4 times longer than itself pays for a note each time
"""

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from meshbus.policy.fans import _MARKED
from meshbus.policy.prefixes import SubscriptionIndex

NESTED = 4_096


class Counted(bytes):
    """A prefix or a topic that counts how often it is compared, and how often a piece of it is looked up."""

    total = 0
    __slots__ = ()
    __hash__ = bytes.__hash__

    def __lt__(self, other: bytes) -> bool:
        Counted.total += 1
        return bytes.__lt__(self, other)

    def __gt__(self, other: bytes) -> bool:
        Counted.total += 1
        return bytes.__gt__(self, other)

    def __eq__(self, other: object) -> bool:
        Counted.total += 1
        return bytes.__eq__(self, other)

    def startswith(self, *arguments: Any) -> bool:
        Counted.total += 1
        return bytes.startswith(self, *arguments)

    def __getitem__(self, key: Any) -> Any:
        Counted.total += 1
        return bytes.__getitem__(self, key)


def counted(function: Any, *arguments: Any) -> int:
    before = Counted.total
    function(*arguments)
    return Counted.total - before


def names(rng: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        parts = [f"{name}-{rng.randrange(20)}/" for name in ("region", "fleet", "vehicle", "sensor")]
        yield "".join(parts[: rng.choice([1, 2, 3, 4, 4, 4])]).encode()


TABLES: dict[str, list[bytes]] = {
    "hierarchy": sorted(set(names(random.Random(1), 4_000))),
    "random bytes": sorted({random.Random(seed).randbytes(seed % 6) for seed in range(2_000)}),
    "nested": [b"n" * length for length in range(1, NESTED + 1)],
    "comb": [b"n" * length + b"a" for length in range(1, 1_025)],
    "comb and nested": [
        *(b"m" * length for length in range(1, 1_025)),
        *(b"n" * length + b"a" for length in range(1, 1_025)),
    ],
}


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> list[Counted]:
    return random.Random(3).sample([Counted(prefix) for prefix in TABLES[request.param]], len(TABLES[request.param]))


def search(index: SubscriptionIndex) -> float:
    """Return the most comparisons of one search: a binary search for the block, and one within it."""
    return math.log2(len(index) + 2) + 6


def has_below(index: SubscriptionIndex, prefix: bytes) -> bool:
    return bool(index._table.starting_with(prefix, 1))


def change_bound(index: SubscriptionIndex, prefix: bytes) -> float:
    plain = bytes(prefix)
    return 3 * search(index) + 8 + (2 * _MARKED if has_below(index, plain) else 0)


def test_subscribing_and_unsubscribing_cost_a_few_searches(table: list[Counted]) -> None:
    index, rng = SubscriptionIndex(), random.Random(4)
    for number, prefix in enumerate(table):
        assert counted(index.subscribe, 7, prefix) <= change_bound(index, prefix)
        if number % 16 == 0:
            index.match(bytes(rng.choice(table))[:200])  # so that there are notes to mark
    for prefix in rng.sample(table, 500):
        assert counted(index.subscribe, 8, prefix) <= change_bound(index, prefix)
        assert counted(index.unsubscribe, 8, prefix) <= change_bound(index, prefix)
    for prefix in rng.sample(table, 500):
        bound = change_bound(index, prefix)
        assert counted(index.unsubscribe, 7, prefix) <= bound


def test_a_peer_that_leaves_costs_its_own_prefixes_only(table: list[Counted]) -> None:
    index = SubscriptionIndex()
    own = table[::10]
    for prefix in table:
        index.subscribe(7, prefix)
    for prefix in own:
        index.subscribe(8, prefix)
        index.match(bytes(prefix)[:200])
    assert counted(index.remove_peer, 8) <= len(own) * (2 * search(index) + 4)
    bound = sum(change_bound(index, prefix) for prefix in table)
    assert counted(index.remove_peer, 7) <= bound
    assert len(index) == 0


def topics_for(table: list[Counted], rng: random.Random) -> Iterator[Counted]:
    for prefix in rng.sample(table, 300):
        length = rng.randrange(len(prefix) + 1)
        yield Counted(bytes(prefix)[:length] + rng.choice([b"", b"z", b"\0", b"a"]))


def test_a_match_costs_a_search_and_a_logarithm_of_the_nesting(table: list[Counted]) -> None:
    index, rng = SubscriptionIndex(), random.Random(5)
    for prefix in table:
        index.subscribe(7, prefix)
    nesting = 4 * math.log2(NESTED) + 4
    for topic in topics_for(table, rng):
        inner = sum(length <= 4 * len(topic) for length in index._fans._inner._lengths)
        known = len(index._fans._notes)
        cold = counted(index.match, topic)
        new = max(len(index._fans._notes) - known, 1)
        assert cold <= search(index) + nesting + new * (search(index) + 4 + inner)
        warm = search(index) + nesting + (inner if meets_a_long_one(index, topic) else 0)
        assert counted(index.match, topic) <= warm
        index.subscribe(9, b"elsewhere")
        assert counted(index.match, topic) <= warm
        index.unsubscribe(9, b"elsewhere")


def meets_a_long_one(index: SubscriptionIndex, topic: bytes) -> bool:
    """Return whether the greatest prefix that is not above a topic is too long to be linked for it."""
    before, found, _ = index._table.around(bytes(topic))
    return not found and len(before or b"") > 4 * len(topic)


def test_a_short_topic_costs_little_whatever_subscribers_hold(table: list[Counted]) -> None:
    index = SubscriptionIndex()
    for prefix in table:
        index.subscribe(7, prefix)
    for topic in (b"n", b"nnz", b"m", b"mmmz", b"region-1/z", b"\xff"):
        index.subscribe(9, b"mm")  # comes and goes above many: the most that a change can mark
        index.unsubscribe(9, b"mm")
        short = Counted(topic)
        assert counted(index.match, short) <= (len(topic) + 2) * (search(index) + 4 + 4 * len(topic))
