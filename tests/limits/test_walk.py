"""Walk through docs/limits.md: every row has an attack, which fills it no further than its bound and moves its counter."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.limits import crowd, peers
from tests.limits.attack import ATTACKS, Scene
from tests.limits.elsewhere import TESTS
from tools import limits

HERE = Path(__file__).parent.parent
ROWS = {row.bound.name: row.bound for row in limits.rows()}
assert crowd.ROWS  # importing them registers their attacks
assert peers.MANY


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((HERE / path).read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_one_attack(name: str) -> None:
    assert (name in ATTACKS) + (name in TESTS) == 1, f"write an attack on {name} in tests/limits"
    if name in TESTS:
        path, _, test = TESTS[name].partition("::")
        assert test in functions(path), f"{TESTS[name]} is gone"


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_the_bound_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = ATTACKS[name](Scene(monkeypatch))
    assert attacked.kept == attacked.most, "the attack fills it, and no further"
    what, _, why = ROWS[name].told.partition(".")
    if not what.startswith("none"):
        assert attacked.counters.get(what, why) > 0


def test_no_attack_is_left_of_a_row_that_is_gone() -> None:
    assert set(ATTACKS) | set(TESTS) == set(ROWS)
