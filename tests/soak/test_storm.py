"""Twenty restarts of a fleet with more seeds; the first one is tests/interop/test_storm.py."""

import asyncio
from pathlib import Path

import pytest

from tests.interop.storm import weather
from tests.seeds import for_each_seed

pytestmark = pytest.mark.soak


@for_each_seed(range(2, 12))
def test_a_fleet_is_whole_again_by_itself_after_twenty_random_restarts(seed: int, tmp_path: Path) -> None:
    place = tmp_path / str(seed)
    place.mkdir()
    asyncio.run(weather(place, restarts=20, seed=seed))
