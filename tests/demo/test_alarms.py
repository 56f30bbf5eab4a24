"""The demo's alarms: real processes, a killed leader, and a check of the disks that notices a loss."""

from pathlib import Path

import pytest

from meshbus.demo import alarms
from meshbus.demo.alarms import ALARMS, NAMES, run_alarms
from meshbus.demo.replica import CHANNEL, alarm
from meshbus.errors import MeshError
from meshbus.log.log import Redex


@pytest.mark.slow
async def test_no_alarm_is_lost_with_the_leader(tmp_path: Path) -> None:
    found = await run_alarms(tmp_path / "replicas")
    assert found.acknowledged == ALARMS
    assert {found.killed, found.leader} < set(NAMES)
    assert found.killed != found.leader
    assert found.lags.keys() == set(NAMES)
    assert found.lags[found.leader] == 0
    assert found.longest_wait_s > 0


@pytest.mark.parametrize("stored", [range(ALARMS - 1), [*range(ALARMS), 0], [1, 0, *range(2, ALARMS)]])
def test_a_missing_doubled_or_misplaced_alarm_is_noticed(tmp_path: Path, stored: range | list[int]) -> None:
    with Redex(tmp_path / "logs" / "published") as redex:
        redex.open(CHANNEL).append_batch([alarm(number) for number in stored])
    with pytest.raises(MeshError, match="once and in order"):
        alarms._check(tmp_path)
