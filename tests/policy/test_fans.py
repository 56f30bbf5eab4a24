"""Cache of subscription matches: what a change invalidates, what it keeps, and the limit of memory."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.policy import fans as module
from meshbus.policy.fans import Fans, Peers, _InnerPrefixes
from meshbus.policy.prefixes import SubscriptionIndex


def index_of(*held: tuple[int, bytes]) -> SubscriptionIndex:
    index = SubscriptionIndex()
    for peer, prefix in held:
        index.subscribe(peer, prefix)
    return index


def fans_of(index: SubscriptionIndex) -> Fans:
    return index._fans


PREFIXES = st.text("ab", max_size=4).map(str.encode)


@given(st.lists(st.tuples(st.booleans(), PREFIXES), max_size=60))
def test_inner_prefixes_are_those_that_others_start_with(steps: list[tuple[bool, bytes]]) -> None:
    index, anew = SubscriptionIndex(), SubscriptionIndex()
    for add, prefix in steps:
        if add:
            index.subscribe(1, prefix)
        else:
            index.unsubscribe(1, prefix)
    held = index.prefixes()
    anew.change(1, dict.fromkeys(held, True))
    assert fans_of(anew)._inner._prefixes == fans_of(index)._inner._prefixes
    assert fans_of(anew)._inner._lengths == fans_of(index)._inner._lengths
    inner = {one for one in held if one and any(other.startswith(one) for other in held if other != one)}
    assert fans_of(index)._inner._prefixes == inner
    assert fans_of(index)._inner._lengths == sorted({len(one) for one in inner})
    assert set(fans_of(index)._inner._counts) == {len(one) for one in inner}


@given(st.sets(PREFIXES.filter(bool)), PREFIXES, st.integers(0, 5))
def test_the_enclosing_prefix_is_the_longest(inner: set[bytes], text: bytes, length: int) -> None:
    table = _InnerPrefixes()
    for one in inner:
        table.set(one, inner=True)
    expected = max((one for one in inner if text.startswith(one) and len(one) <= length), key=len, default=b"")
    assert table.enclosing(text, length) == expected


def test_a_fan_is_the_same_object_until_it_changes() -> None:
    index = index_of((1, b"a"), (2, b"ab"), (3, b"b"))
    fan = index.fan(b"abc")
    assert fan == (1, 2)
    index.subscribe(4, b"c")
    index.subscribe(4, b"b")
    assert index.fan(b"abc") is fan
    index.subscribe(4, b"a")
    assert index.fan(b"abc") == (1, 2, 4)


def test_a_prefix_that_adds_nothing_shares_the_fan_of_another() -> None:
    index = index_of((1, b"a"), (1, b"ab"), (1, b"abc"), (1, b"abcd"), (2, b"abcd"))
    assert index.fan(b"abc") is index.fan(b"ab") is index.fan(b"a")
    assert index.fan(b"abcd") is index._table.values[0][-1]


def test_the_empty_prefix_touches_one_note() -> None:
    index = index_of(*((number % 5, b"%03d" % number) for number in range(500)))
    for number in range(500):
        index.fan(b"%03d" % number)
    notes = fans_of(index)._notes
    before = {prefix: (note.fan, note.checked, note.linked) for prefix, note in notes.items()}
    index.subscribe(77, b"")
    touched = [prefix for prefix, note in notes.items() if (note.fan, note.checked, note.linked) != before[prefix]]
    assert touched == [b""]
    assert index.fan(b"123") == (3, 77)
    index.unsubscribe(77, b"")
    assert index.fan(b"123") == (3,)


def test_a_new_leaf_leaves_every_link_as_it_is() -> None:
    index = index_of(*((1, b"s/%03d" % number) for number in range(500)), (2, b"s/"))
    for number in range(500):
        index.fan(b"s/%03d" % number)
    shape = fans_of(index)._shape
    index.subscribe(3, b"s/0005")
    assert fans_of(index)._shape == shape
    assert all(note.linked == shape for note in fans_of(index)._notes.values() if note.prefix)


@pytest.mark.parametrize("children", [10, 500], ids=["a few are marked", "many are marked at once"])
def test_a_prefix_above_others_becomes_their_parent_and_ceases_to_be(children: int) -> None:
    index = index_of(*((1, b"s/%03d" % number) for number in range(children)), (9, b"t"))
    topics = [b"s/%03d" % number for number in range(children)]
    assert {index.fan(topic) for topic in topics} == {(1,)}
    for _ in range(2):
        index.subscribe(2, b"s/")
        assert {index.fan(topic) for topic in topics} == {(1, 2)}
        index.unsubscribe(2, b"s/")
        assert {index.fan(topic) for topic in topics} == {(1,)}
    assert fans_of(index)._shape == (0 if children < 64 else 4)


def test_a_jump_over_a_prefix_that_is_gone_is_still_right() -> None:
    depth = 40
    index = index_of(*((length, b"n" * length) for length in range(1, depth + 1)))
    index.fan(b"n" * depth)
    rng = random.Random(5)
    gone = rng.sample(range(1, depth), 20)
    for length in gone:
        index.unsubscribe(length, b"n" * length)
        for other in range(depth):
            expected = tuple(peer for peer in range(1, other + 1) if (peer, b"n" * peer) in _held(index))
            assert index.fan(b"n" * other + b"z") == expected


def _held(index: SubscriptionIndex) -> set[tuple[int, bytes]]:
    return {
        (peer, prefix)
        for keys, values in zip(index._table.keys, index._table.values, strict=True)
        for prefix, peers in zip(keys, values, strict=True)
        for peer in peers
    }


def test_notes_are_bounded_and_matches_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NOTES", 20)
    monkeypatch.setattr(module, "_FEWEST_NOTES", 10)
    index = index_of(*((number, b"s/%03d" % number) for number in range(300)), (1_000, b"s/"))
    for number in range(300):
        assert index.fan(b"s/%03d/x" % number) == (number, 1_000)
        assert index.fan(b"s/%03dx" % number) == (number, 1_000)
        assert len(fans_of(index)._notes) <= 20 + 2


def test_a_long_prefix_is_not_linked_for_a_short_topic() -> None:
    index = index_of((1, b"t"), (2, b"t" + b"a" * 500))
    assert index.fan(b"tb") == (1,)
    assert set(fans_of(index)._notes) == {b"", b"t"}


def distinct_fans(index: SubscriptionIndex) -> list[Peers]:
    return list(
        {id(note.fan): note.fan for note in fans_of(index)._notes.values() if note.fan is not note.own}.values()
    )


def test_nested_prefixes_of_many_peers_stay_exact_and_within_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FREE_FANS", 1_000)
    order = random.Random(3).sample(range(1_000), 1_000)
    index = index_of(*((peer, b"n" * length) for length, peer in enumerate(order, 1)))
    for length in (*range(0, 1_001, 49), 1_000, 3):
        assert list(index.fan(b"n" * length + b"z")) == sorted(order[:length])
        assert sum(map(len, distinct_fans(index))) <= 1_000 + module._FANS_PER_SUBSCRIPTION * 1_000 + 1_000


def test_links_go_up_and_jumps_reach_far() -> None:
    depth = 1_000
    index = index_of(*((1, b"n" * length) for length in range(1, depth + 1)))
    index.fan(b"n" * depth)
    chain = [fans_of(index)._notes[b"n" * length] for length in range(1, depth + 1)]
    assert all(below.parent is above and below.depth == above.depth + 1 for above, below in pairwise(chain))
    steps, note = 0, chain[-1]
    while note.prefix:
        note = note.jump
        steps += 1
    assert steps <= 10
