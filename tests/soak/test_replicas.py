"""Replicated channels in many more worlds, and every deliberate bug found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.replicas.mutants import PATCHES
from tests.engine.replicas.realdisk import play_real
from tests.engine.replicas.story import play
from tests.engine.replicas.test_simulation import find, play_generous
from tests.seeds import for_each_seed

pytestmark = pytest.mark.soak


@for_each_seed(range(1000, 11_000))
def test_nothing_acknowledged_is_lost_in_ten_thousand_worlds(seed: int) -> None:
    play(seed)


@for_each_seed(range(1000, 3000))
def test_nothing_acknowledged_is_lost_when_candidates_let_others_lead(seed: int) -> None:
    play_generous(seed)


@pytest.mark.parametrize("bug", PATCHES)
def test_every_deliberate_bug_is_found_within_a_thousand_worlds(bug: str) -> None:
    assert find(bug, range(1000)) is not None


@for_each_seed(range(1000, 2_000))
def test_nothing_acknowledged_is_lost_on_real_files_in_a_thousand_worlds(seed: int, tmp_path: Path) -> None:
    play_real(seed, tmp_path / str(seed))
