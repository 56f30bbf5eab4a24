"""The check of the detector's output notices what is missing, repeated or misplaced."""

from pathlib import Path

import pytest

from meshbus.demo.detector import anomalies
from meshbus.demo.member import reading
from meshbus.demo.moving import Moved, check_moved
from meshbus.demo.roles import ANOMALIES, FAILING, GATEWAY, POSES, FleetFiles
from meshbus.errors import MeshError
from meshbus.log.log import Redex

READINGS = [reading(number) for number in range(60)]
FOUND = anomalies(READINGS)


def _files(folder: Path, before: list[bytes], after: list[bytes]) -> FleetFiles:
    files = FleetFiles(folder, {})
    with Redex(files.log_dir(FAILING) / "published") as rover:
        rover.open(POSES).append_batch(READINGS)
        if before:
            rover.open(ANOMALIES).append_batch(before)
    with Redex(files.log_dir(GATEWAY) / "published") as gateway:
        gateway.open("other")
        if after:
            gateway.open(ANOMALIES).append_batch(after)
    return files


@pytest.mark.parametrize("cut", [0, 3, len(FOUND)])
def test_what_the_log_leads_to_is_right_wherever_it_was_published(tmp_path: Path, cut: int) -> None:
    moved = check_moved(_files(tmp_path, FOUND[:cut], FOUND[cut:]))
    assert moved == Moved(poses=len(READINGS), before=cut, after=len(FOUND) - cut)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FOUND[:3], FOUND[4:]),
        (FOUND[:3], FOUND[2:]),
        (FOUND[3:], FOUND[:3]),
        (FOUND, FOUND[-1:]),
    ],
    ids=["missing", "repeated", "misplaced", "too many"],
)
def test_anything_else_is_a_bug(tmp_path: Path, before: list[bytes], after: list[bytes]) -> None:
    with pytest.raises(MeshError, match="not exactly those that its poses"):
        check_moved(_files(tmp_path, before, after))
