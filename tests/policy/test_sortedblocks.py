"""Sorted blocks, compared with a sorted list."""

import random
from bisect import bisect_left, insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.policy import sortedblocks as module
from meshbus.policy.sortedblocks import SortedBlocks


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks so small that a few keys are split and joined as thousands are otherwise."""
    monkeypatch.setattr(module, "_MOST", 8)
    monkeypatch.setattr(module, "_FEWEST", 3)


def put(blocks: SortedBlocks, key: bytes) -> None:
    block, place, found = blocks.find(key)
    if not found:
        blocks.insert(block, place, key, len(key))


def drop(blocks: SortedBlocks, key: bytes) -> None:
    block, place, found = blocks.find(key)
    if found:
        blocks.delete(block, place)


def assert_sound(blocks: SortedBlocks, expected: list[bytes]) -> None:
    assert list(blocks) == expected
    assert len(blocks) == len(expected)
    assert blocks.heads == [b"", *(keys[0] for keys in blocks.keys[1:])]
    sizes = [len(keys) for keys in blocks.keys]
    assert max(sizes) <= 8
    assert len(sizes) == 1 or min(sizes) >= 3
    if blocks.values:
        assert blocks.values == [[len(key) for key in keys] for keys in blocks.keys]


KEYS = st.binary(max_size=2) | st.text("ab", max_size=5).map(str.encode)


@pytest.mark.parametrize("values", [True, False])
@given(steps=st.lists(st.tuples(st.booleans(), KEYS), max_size=150))
def test_any_changes_equal_those_of_a_sorted_list(values: bool, steps: list[tuple[bool, bytes]]) -> None:
    blocks, model = SortedBlocks(values=values), list[bytes]()
    for add, key in steps:
        if add:
            put(blocks, key)
            if key not in model:
                insort(model, key)
        else:
            drop(blocks, key)
            if key in model:
                model.remove(key)
    assert_sound(blocks, model)


@pytest.mark.parametrize("order", [1, -1, 0], ids=["ascending", "descending", "random"])
def test_many_keys_come_and_go(order: int) -> None:
    keys = [b"%04d" % number for number in range(1_000)]
    shuffled = random.Random(2).sample(keys, len(keys))
    going = shuffled if order == 0 else keys[::order]
    blocks = SortedBlocks(values=True)
    for key in going:
        put(blocks, key)
    assert_sound(blocks, keys)
    for key in going[:-2]:
        drop(blocks, key)
    assert_sound(blocks, sorted(going[-2:]))
    assert len(blocks.keys) == 1


@given(st.sets(KEYS, max_size=60), KEYS)
def test_the_neighbors_of_a_key(keys: set[bytes], key: bytes) -> None:
    blocks, model = SortedBlocks(), sorted(keys)
    for one in model:
        put(blocks, one)
    place = bisect_left(model, key)
    behind = place + (key in keys)
    assert blocks.around(key) == (
        model[place - 1] if place else None,
        key in keys,
        model[behind] if behind < len(model) else None,
    )
    longer = [one for one in model if one.startswith(key) and one != key]
    assert blocks.starting_with(key, 100) == longer
    assert blocks.starting_with(key, 2) == longer[:2]


@pytest.mark.parametrize("values", [True, False])
@given(keys=st.sets(KEYS, max_size=60), more=st.sets(KEYS, max_size=60))
def test_filled_blocks_are_sound_and_go_on_as_others(values: bool, keys: set[bytes], more: set[bytes]) -> None:
    blocks = SortedBlocks(values=values)
    put(blocks, b"before")
    lists = blocks.heads, blocks.keys
    ordered = sorted(keys)
    blocks.fill(ordered, [len(key) for key in ordered] if values else None)
    assert_sound(blocks, ordered)
    assert (blocks.heads is lists[0], blocks.keys is lists[1]) == (True, True), "policy/fans.py keeps them"
    for key in more:
        put(blocks, key)
    assert_sound(blocks, sorted(keys | more))
    for key in keys:
        drop(blocks, key)
    assert_sound(blocks, sorted(more - keys))
