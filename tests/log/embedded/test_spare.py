"""The spare file: there before the disk is full, gone when its room is needed, made again later."""

from pathlib import Path

import pytest

from meshbus.log.embedded.spare import NAME, Spare
from meshbus.log.files import Files
from tests.log.smalldisk import SmallDisk


def test_it_grows_with_the_manifest_and_is_found_again(tmp_path: Path) -> None:
    spare = Spare(Files(), tmp_path)
    spare.keep(100)
    small = (tmp_path / NAME).stat()
    spare.keep(200)
    assert (tmp_path / NAME).stat().st_ino == small.st_ino, "nothing to do"
    spare.keep(50_000)
    assert (tmp_path / NAME).stat().st_size >= 2 * 50_000
    assert Spare(Files(), tmp_path).release()
    assert not (tmp_path / NAME).exists()
    assert not Spare(Files(), tmp_path).release()


def test_a_full_disk_gets_no_half_file(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 8_192)
    spare = Spare(disk, tmp_path)
    with pytest.raises(OSError, match="No space"):
        spare.keep(100)
    assert list(tmp_path.iterdir()) == []
    disk.room = 1 << 20
    spare.keep(100)
    assert spare.release()
