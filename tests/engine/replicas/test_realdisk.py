"""The same worlds with real files in place of the model of a disk."""

from pathlib import Path

import pytest

from tests.engine.replicas.realdisk import play_real
from tests.seeds import for_each_seed


@for_each_seed(range(5))
def test_nothing_acknowledged_is_lost_on_real_files(seed: int, tmp_path: Path) -> None:
    play_real(seed, tmp_path / str(seed))


@pytest.mark.slow
@for_each_seed(range(20, 35))
def test_nothing_acknowledged_is_lost_on_real_files_in_more_worlds(seed: int, tmp_path: Path) -> None:
    play_real(seed, tmp_path / str(seed))
