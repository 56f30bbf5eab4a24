"""Daemons that move through many more worlds, and every deliberate bug found."""

from __future__ import annotations

import pytest

from tests.compute.ledgerworld import World as LedgerWorld
from tests.compute.migration.mutants import PATCHES
from tests.compute.migration.story import play
from tests.compute.migration.test_simulation import find
from tests.seeds import for_each_seed

pytestmark = pytest.mark.soak


@for_each_seed(range(1000, 6000))
def test_nothing_is_lost_or_done_twice_in_five_thousand_worlds(seed: int) -> None:
    play(seed)


@for_each_seed(range(1000, 11000))
def test_a_daemon_with_a_ledger_publishes_everything_once_in_ten_thousand_worlds(seed: int) -> None:
    LedgerWorld(seed, nodes=2 + seed % 3).play(600)


@pytest.mark.parametrize("bug", PATCHES)
def test_every_deliberate_bug_is_found_within_five_thousand_worlds(bug: str) -> None:
    assert find(bug, range(5000)) is not None
