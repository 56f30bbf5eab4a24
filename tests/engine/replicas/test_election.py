from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.replicas.election import Standing, elect
from tests.vectors import load

CASES: list[dict[str, Any]] = load("subprotocols")["election"]["cases"]

standings = st.lists(
    st.builds(Standing, st.integers(1, 9), st.none() | st.integers(0, 3), st.booleans()),
    unique_by=lambda standing: standing.node,
)


@pytest.mark.parametrize("case", CASES)
def test_the_reference_elects_the_same(case: dict[str, Any]) -> None:
    members = [Standing(row["node"], row["rtt_us"], row["healthy"]) for row in case["replica_set"]]
    assert elect(case["self"], members) == case["winner"]


@given(st.integers(1, 9), standings, st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter(own: int, members: list[Standing], rng: Any) -> None:
    mixed = members[:]
    rng.shuffle(mixed)
    assert elect(own, members) == elect(own, mixed)


@given(st.integers(1, 9), standings)
def test_the_winner_is_healthy_and_nobody_healthy_is_nearer(own: int, members: list[Standing]) -> None:
    winner = elect(own, members)
    healthy = {
        member.node: 0 if member.node == own else float("inf") if member.rtt_us is None else member.rtt_us
        for member in members
        if member.healthy
    }
    if not healthy:
        assert winner is None
    else:
        assert winner is not None
        assert all((healthy[winner], winner) <= (rtt, node) for node, rtt in healthy.items())


@given(st.integers(1, 9), standings)
def test_losing_another_member_does_not_change_the_winner(own: int, members: list[Standing]) -> None:
    winner = elect(own, members)
    for lost in members:
        rest = [member for member in members if member != lost]
        if lost.node == winner:
            assert elect(own, rest) != winner
        else:
            assert elect(own, rest) == winner


def test_a_healthy_member_elects_itself_unless_a_lower_id_has_no_distance() -> None:
    near, far = Standing(1, 0, healthy=True), Standing(3, 7, healthy=True)
    assert elect(2, [Standing(2, None, healthy=True), far]) == 2
    assert elect(2, [Standing(2, None, healthy=True), near, far]) == 1
