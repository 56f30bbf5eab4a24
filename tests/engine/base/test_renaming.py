"""Tables by node id follow a node to its new id, and keep what is there for that already."""

from collections import Counter

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.renaming import add_up, move, move_due, move_due_pairs, move_kept, move_pairs

OLD, NEW, OTHER = 1, 2, 3


def test_an_entry_moves_unless_there_is_a_newer_one() -> None:
    table = {OLD: "old", OTHER: "other"}
    move(table, OLD, NEW)
    assert table == {NEW: "old", OTHER: "other"}
    move(table, OLD, NEW)
    move(table, OTHER, NEW)
    assert table == {NEW: "old"}


def test_a_bounded_map_keeps_the_newer_entry() -> None:
    kept: BoundedMap[int, str] = BoundedMap(4)
    kept.put(OLD, "old")
    move_kept(kept, OLD, NEW)
    assert list(kept.items()) == [(NEW, "old")]
    kept.put(OTHER, "other")
    move_kept(kept, OTHER, NEW)
    move_kept(kept, OLD, NEW)
    assert list(kept.items()) == [(NEW, "old")]


def test_keys_that_begin_with_an_id_move_with_it() -> None:
    table = {(OLD, 7): "a", (OLD, 8): "b", (NEW, 8): "newer", (OTHER, 7): "c"}
    move_pairs(table, OLD, NEW)
    assert table == {(NEW, 7): "a", (NEW, 8): "newer", (OTHER, 7): "c"}


def test_deadlines_stay_what_they_are() -> None:
    due: Deadlines[int] = Deadlines()
    due.set(OLD, 5.0)
    move_due(due, OLD, NEW)
    assert (due.get(OLD), due.get(NEW), due.next()) == (None, 5.0, 5.0)
    due.set(OTHER, 1.0)
    move_due(due, OTHER, NEW)
    move_due(due, OLD, NEW)
    assert (due.get(NEW), len(due)) == (5.0, 1)
    pairs: Deadlines[tuple[int, int]] = Deadlines()
    pairs.set((OLD, 7), 5.0)
    pairs.set((OTHER, 7), 6.0)
    move_due_pairs(pairs, OLD, NEW)
    assert {key: pairs.get(key) for key in pairs} == {(NEW, 7): 5.0, (OTHER, 7): 6.0}


def test_counts_add_up() -> None:
    counts = Counter({OLD: 2, NEW: 3})
    add_up(counts, OLD, NEW)
    add_up(counts, OTHER, NEW)
    assert counts == {NEW: 5}
