"""Twenty restarts of a fleet with more seeds; the first one is tests/interop/test_storm.py."""

from pathlib import Path

import pytest

from tests.interop.storm import weather

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("seed", range(2, 12))
async def test_a_fleet_is_whole_again_by_itself_after_twenty_random_restarts(tmp_path: Path, seed: int) -> None:
    await weather(tmp_path, restarts=20, seed=seed)
