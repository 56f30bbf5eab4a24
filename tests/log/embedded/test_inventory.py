"""The inventory of hot files: live, stale, torn, or damaged."""

from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.inventory import Inventory, take_inventory
from meshbus.log.embedded.logmanifest import load_manifest
from tests.log.making import numbered, open_log


def take(root: Path) -> Inventory:
    (folder,) = root.iterdir()
    return take_inventory(folder, load_manifest(folder))


def three_files(root: Path, *, sync_after: int | None = None) -> list[Path]:
    """Three hot files of three events each, not sealed."""
    with open_log(root, seal_bytes=200) as log:
        for first in range(0, 9, 3):
            log.append_batch(numbered(first, 3), src=1)
            if first == sync_after:
                log.sync()
    files = sorted(root.glob("*/_hot/*.hot"))
    assert len(files) == 3
    return files


def test_files_follow_each_other(tmp_path: Path) -> None:
    files = three_files(tmp_path)
    found = take(tmp_path)
    assert [index.path for index in found.live] == files
    assert (found.stale, found.torn, found.beyond, found.damage) == ([], None, [], "")


def test_what_is_sealed_is_stale(tmp_path: Path) -> None:
    three_files(tmp_path)
    (folder,) = tmp_path.iterdir()
    kept = {path: path.read_bytes() for path in (folder / "_hot").iterdir()}
    with open_log(tmp_path) as log:
        log.seal()
    for path, content in kept.items():  # as if the removals had not reached the disk
        path.write_bytes(content)
    found = take(tmp_path)
    assert sorted(found.stale) == sorted(kept)
    assert [index.header.first for index in found.live] == [9]


def test_a_torn_file_puts_the_next_ones_beyond(tmp_path: Path) -> None:
    files = three_files(tmp_path)
    files[1].write_bytes(files[1].read_bytes()[:-5])
    found = take(tmp_path)
    assert [index.path for index in found.live] == files[:2]
    assert found.torn is not None
    assert (found.beyond, found.damage) == ([files[2]], "")


def test_a_missing_file_ends_the_log_there(tmp_path: Path) -> None:
    files = three_files(tmp_path)
    files[1].unlink()
    found = take(tmp_path)
    assert [index.path for index in found.live] == files[:1]
    assert (found.beyond, found.damage) == ([files[2]], "")


def test_damage_below_the_synced_end_is_not_a_torn_tail(tmp_path: Path) -> None:
    files = three_files(tmp_path, sync_after=3)
    files[1].write_bytes(files[1].read_bytes()[:-5])
    found = take(tmp_path)
    assert "sequences 3 to 5 were synced and are damaged" in found.damage
    files[1].unlink()
    assert "a file is missing" in take(tmp_path).damage


def test_a_file_that_is_just_being_made_is_beyond(tmp_path: Path) -> None:
    files = three_files(tmp_path)
    files[2].write_bytes(b"MBHT")
    found = take(tmp_path)
    assert [index.path for index in found.live] == files[:2]
    assert (found.beyond, found.damage) == ([files[2]], "")


def test_a_file_of_another_log_is_named(tmp_path: Path) -> None:
    three_files(tmp_path / "a")
    three_files(tmp_path / "b")
    (mine,) = (tmp_path / "a").glob("*/_hot/*0.hot")
    (other,) = (tmp_path / "b").glob("*/_hot/*0.hot")
    mine.write_bytes(other.read_bytes())
    with pytest.raises(LogError, match="another log") as caught:
        take(tmp_path / "a")
    assert caught.value.fault is LogFault.FOREIGN
