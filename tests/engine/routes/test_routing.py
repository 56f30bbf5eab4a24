"""Routing table: which way is used, kept, replaced and removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.packets import Address
from meshbus.engine.routes import routing
from meshbus.engine.routes.routing import MAX_WAYS, RoutingConfig, RoutingTable

CONFIG = RoutingConfig(patience_s=30.0, max_age_s=90.0)


class RecordedTable:
    """A table, and the changes that it reported."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, Address | None]] = []
        self.table = RoutingTable(CONFIG, changed=lambda dest, hop: self.changes.append((dest, hop)))


def test_a_lower_metric_replaces_and_an_equal_one_does_not() -> None:
    told = RecordedTable()
    table = told.table
    for hop, metric, chosen in (("a", 7, "a"), ("c", 4, "c"), ("d", 4, "c"), ("d", 3, "d"), ("a", 2, "a")):
        assert table.learn(9, hop, metric, 0.0)
        assert table.lookup(9, 0.0) == chosen
    assert told.changes == [(9, "a"), (9, "c"), (9, "d"), (9, "a")]


def test_an_installed_route_has_precedence_over_learned_ones() -> None:
    table = RoutingTable(CONFIG)
    table.learn(9, "a", 2, 0.0)
    table.install(9, "b", 1.0)
    table.learn(9, "a", 2, 2.0)
    assert (table.lookup(9, 2.0), table.metric(9)) == ("b", 1)
    table.learn(9, "b", 5, 3.0)
    assert table.metric(9) == 1, "what is installed keeps its metric"


def test_a_way_that_nothing_confirms_gives_way_to_one_that_works() -> None:
    table = RoutingTable(CONFIG)
    table.install(9, "near", 0.0)
    for now in range(5, 31, 5):
        table.learn(9, "around", 6, float(now))
        assert table.lookup(9, float(now)) == "near"
    table.learn(9, "around", 6, 31.0)
    assert table.lookup(9, 31.0) == "around"


def test_a_way_that_is_confirmed_stays() -> None:
    table = RoutingTable(CONFIG)
    table.install(9, "near", 0.0)
    for now in range(5, 200, 5):
        table.confirm(9, "near", float(now))
        table.learn(9, "around", 6, float(now))
    assert table.lookup(9, 200.0) == "near"
    table.confirm(9, "nobody", 200.0)
    table.confirm(77, "near", 200.0)


def test_a_longer_way_must_persist_before_it_counts() -> None:
    """Copies of one pingwave overtake each other, so a single late copy changes nothing."""
    table = RoutingTable(CONFIG)
    table.learn(9, "a", 3, 0.0)
    table.learn(9, "b", 4, 0.0)
    table.learn(9, "a", 6, 5.0)
    assert (table.lookup(9, 5.0), table.metric(9)) == ("a", 3)
    for now in range(10, 40, 5):
        table.learn(9, "a", 6, float(now))
        table.learn(9, "b", 4, float(now))
    assert (table.lookup(9, 40.0), table.metric(9)) == ("b", 4)


def test_stale_routes_are_not_used_and_swept() -> None:
    told = RecordedTable()
    table = told.table
    table.learn(9, "a", 3, 0.0)
    table.install(8, "b", 0.0)
    assert table.lookup(9, 90.0) == "a"
    assert table.lookup(9, 90.1) is None
    assert table.sweep(90.1, alive=lambda dest: dest == 8) == 1
    assert (9 in table, 8 in table, told.changes[-1]) == (False, True, (9, None))
    assert table.lookup(8, 100.0) == "b", "heard from in another way"


def test_other_ways_are_found_by_metric_and_only_while_they_are_young() -> None:
    table = RoutingTable(CONFIG)
    for hop, metric, now in (("a", 3, 0.0), ("b", 5, 0.0), ("c", 4, 0.0), ("d", 4, 1.0)):
        table.learn(9, hop, metric, now)
    assert table.another(9, "a", 2.0) == "d"
    assert table.another(9, "a", 30.5) == "d"
    assert table.another(9, "a", 40.0) is None
    assert table.another(77, "a", 0.0) is None


def test_a_way_can_be_chosen_and_withdrawn() -> None:
    told = RecordedTable()
    table = told.table
    table.learn(9, "a", 3, 0.0)
    table.choose(9, "b", 1.0)
    table.choose(8, "b", 1.0)
    assert (table.lookup(9, 1.0), table.lookup(8, 1.0), table.via("b")) == ("b", "b", [9, 8])
    table.withdraw(9, "b")
    assert table.lookup(9, 1.0) == "a"
    table.withdraw(9, "nobody")
    table.withdraw(8, "b")
    assert (8 in table, told.changes[-1]) == (False, (8, None))


def test_routes_follow_a_neighbor_to_its_new_address() -> None:
    told = RecordedTable()
    table = told.table
    table.install(9, "old", 0.0)
    table.learn(8, "other", 3, 0.0)
    table.learn(8, "old", 4, 0.0)
    table.move_hop("old", "new")
    assert (table.lookup(9, 0.0), table.lookup(8, 0.0), table.another(8, "other", 0.0)) == ("new", "other", "new")
    assert told.changes[-1] == (9, "new")


def test_a_full_table_refuses_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_ROUTES", 3)
    table = RoutingTable(CONFIG)
    assert [table.learn(dest, "a", 3, 0.0) for dest in range(5)] == [True] * 3 + [False] * 2
    assert table.learn(1, "b", 2, 0.0)
    table.install(99, "c", 0.0)
    assert table.lookup(99, 0.0) == "c", "a session always has its route"


def test_the_table_can_be_read() -> None:
    table = RoutingTable(CONFIG)
    table.learn(9, "a", 3, 0.0)
    table.install(2, "b", 1.0)
    assert [(route.node_id, route.next_hop, route.metric, route.age_s) for route in table.describe(5.0)] == [
        (2, "b", 1, 4.0),
        (9, "a", 3, 5.0),
    ]
    assert (len(table), sorted(table), table.metric(77)) == (2, [2, 9], None)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdefg"), st.integers(2, 17), st.integers(0, 20))))
def test_whatever_is_heard_the_table_stays_in_order(heard: list[tuple[int, str, int, int]]) -> None:
    told = RecordedTable()
    table, now = told.table, 0.0
    for dest, hop, metric, pause in heard:
        now += pause
        table.learn(dest, hop, metric, now)
    chosen = dict(told.changes)
    for dest in table:
        route = table._routes[dest]
        assert route.hop == chosen[dest]
        assert route.hop in route.ways
        assert len(route.ways) <= MAX_WAYS
        assert route.heard_at >= max(way.heard_at for way in route.ways.values())


def test_the_ways_to_a_node_with_another_id_stay() -> None:
    heard: list[tuple[int, object]] = []
    table = RoutingTable(changed=lambda dest, hop: heard.append((dest, hop)))
    table.install(1, "hop", 0.0)
    table.rename(1, 9)
    assert (table.lookup(1, 0.0), table.lookup(9, 0.0)) == (None, "hop")
    assert heard == [(1, "hop"), (1, None), (9, "hop")]
    table.install(2, "other", 0.0)
    table.rename(2, 9)
    table.rename(3, 9)
    assert (table.lookup(9, 0.0), len(table)) == ("hop", 1)
