"""A fleet whose members are restarted at random is whole again by itself; more seeds are tests/soak/test_storm.py."""

from pathlib import Path

import pytest

from tests.interop.storm import weather


@pytest.mark.slow
async def test_a_fleet_is_whole_again_by_itself_after_random_restarts(tmp_path: Path) -> None:
    await weather(tmp_path, restarts=20, seed=1)
