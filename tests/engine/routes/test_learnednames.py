"""Learned channel names: counted by holder, limited, and forgotten fairly."""

from __future__ import annotations

from meshbus.engine.routes.learnednames import LearnedNames
from meshbus.names.channel import ChannelName

NEAR, FAR = 1, 2


def names(*texts: str) -> tuple[ChannelName, ...]:
    return tuple(map(ChannelName, texts))


def test_a_name_stays_as_long_as_a_node_announces_it() -> None:
    known = LearnedNames()
    known.hear(10, names("a", "b"), None)
    known.hear(11, names("b", "c"), NEAR)
    assert (set(known), len(known)) == ({"a", "b", "c"}, 4)
    known.hear(10, names("d"), None)
    assert set(known) == {"b", "c", "d"}
    assert known.forget(11) == 2
    assert set(known) == {"d"}
    assert known.forget(11) == 0


def test_the_version_changes_with_the_set_of_names_and_only_then() -> None:
    known = LearnedNames()
    known.hear(10, names("a"), None)
    version = known.version
    known.hear(11, names("a"), NEAR)
    known.forget(10)
    assert known.version == version
    known.forget(11)
    assert known.version > version
    assert not set(known)


def test_a_node_that_announces_the_same_again_changes_nothing_for_others() -> None:
    known = LearnedNames()
    known.hear(10, names("a", "b"), None)
    known.hear(10, names("a", "b"), None)
    assert (set(known), len(known)) == ({"a", "b"}, 2)


def test_the_names_of_the_most_talkative_neighbor_make_room_oldest_first() -> None:
    known = LearnedNames(max_names=6)
    known.hear(10, names("own"), None)
    known.hear(11, names("f1"), FAR)
    for node_id in range(20, 24):
        known.hear(node_id, names(f"n{node_id}"), NEAR)
    assert known.hear(30, names("x", "y"), NEAR) == 2
    assert set(known) == {"own", "f1", "n22", "n23", "x", "y"}
    assert known.hear(12, names("f2"), FAR) == 1, "of NEAR, which told of more"
    assert set(known) == {"own", "f1", "f2", "n23", "x", "y"}


def test_names_that_nodes_announced_themselves_are_never_evicted() -> None:
    known = LearnedNames(max_names=2)
    known.hear(10, names("a", "b"), None)
    assert known.hear(11, names("c"), NEAR) == 1
    assert known.hear(12, names("d"), None) == 1
    assert set(known) == {"a", "b"}


def test_nodes_that_are_no_longer_known_are_forgotten() -> None:
    known = LearnedNames()
    known.hear(10, names("a"), None)
    known.hear(11, names("b"), NEAR)
    known.keep({11}.__contains__)
    assert set(known) == {"b"}
