"""Test that a bounded map stays within its bound and evicts the oldest entry first."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.boundedmap import BoundedMap


def test_the_oldest_is_forgotten_and_putting_again_makes_new() -> None:
    table: BoundedMap[str, int] = BoundedMap(2)
    table.put("a", 1)
    table.put("b", 2)
    table.put("a", 3)
    assert table.oldest() == ("b", 2)
    table.renew("b")
    assert table.oldest() == ("a", 3)
    table.renew("a")
    table.put("c", 4)
    assert list(table) == ["a", "c"]
    assert (table.get("a"), table.get("b"), "b" in table, len(table)) == (3, None, False, 2)
    assert table.pop("a") == 3
    assert table.pop("a") is None
    assert table.oldest() == ("c", 4)
    table.pop("c")
    assert table.oldest() is None


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 9), st.integers())))
def test_it_equals_a_list_of_what_was_put_last(bound: int, puts: list[tuple[int, int]]) -> None:
    table: BoundedMap[int, int] = BoundedMap(bound)
    plain: list[tuple[int, int]] = []
    for key, value in puts:
        table.put(key, value)
        plain = [*(pair for pair in plain if pair[0] != key), (key, value)][-bound:]
    assert [(key, table.get(key)) for key in table] == plain


class Name:
    """A key that counts how often any of its kind was compared or hashed."""

    work = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        Name.work += 1
        return self.number


def test_a_full_map_takes_an_entry_in_a_few_steps() -> None:
    entries: BoundedMap[Name, int] = BoundedMap(1 << 12)
    for number in range(1 << 12):
        entries.put(Name(number), number)
    Name.work = 0
    for number in range(1 << 12):
        entries.put(Name(number), number)
    assert Name.work <= 5 << 12
    # Where the oldest one is found must not depend on how many were evicted: a plain dict skips all of their places.
    assert isinstance(entries._entries, OrderedDict)
