"""The inventory of hot files: live, stale, torn, or damaged."""

from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.inventory import Inventory, take_inventory
from meshbus.log.embedded.logmanifest import load_manifest
from meshbus.log.folder import hot_name
from tests.log.making import numbered, open_log
from tests.log.replicas import kill_replica, open_replica


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


def test_a_file_with_the_name_of_another_is_refused(tmp_path: Path) -> None:
    """Its events would have other sequences than they had."""
    _, second, third = three_files(tmp_path)
    third.replace(second)
    with pytest.raises(LogError, match="starts at sequence 6; give it the name") as caught:
        take(tmp_path)
    assert caught.value.fault is LogFault.CORRUPT


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


def turned(root: Path) -> list[str]:
    """A replica in three turns, none of whose files is removed yet; returns the names of the files."""
    log = open_replica(root, seal_bytes=300)
    for first in range(0, 30, 10):
        log.append(1, first, numbered(first, 10))
    log.set_aside(15)
    log.append(2, 15, numbered(15, 2))
    log.set_aside(5)
    log.append(3, 5, [b"last"])
    kill_replica(log)
    return [path.name for path in sorted(root.glob("*/_hot/*.hot"))]


def test_a_turn_replaces_the_end_of_those_before_it(tmp_path: Path) -> None:
    assert turned(tmp_path) == [hot_name(0), hot_name(5, 2), hot_name(10), hot_name(15, 1), hot_name(20)]
    found = take(tmp_path)
    assert [(index.path.name, index.end) for index in found.live] == [(hot_name(0), 5), (hot_name(5, 2), 6)]
    assert sorted(path.name for path in found.replaced) == [hot_name(10), hot_name(15, 1), hot_name(20)]
    assert (found.beyond, found.torn, found.damage) == ([], None, "")


@pytest.mark.parametrize("lost", [hot_name(10), hot_name(15, 1), hot_name(20)])
def test_what_was_replaced_may_be_gone(tmp_path: Path, lost: str) -> None:
    turned(tmp_path)
    next(tmp_path.glob(f"*/_hot/{lost}")).unlink()
    assert [index.path.name for index in take(tmp_path).live] == [hot_name(0), hot_name(5, 2)]


def test_a_turn_without_what_it_builds_on_is_beyond_the_end(tmp_path: Path) -> None:
    turned(tmp_path)
    path = next(tmp_path.glob(f"*/_hot/{hot_name(0)}"))
    path.write_bytes(path.read_bytes()[:-5])
    found = take(tmp_path)
    assert [(index.path.name, index.end) for index in found.live] == [(hot_name(0), 0)]
    assert hot_name(5, 2) in [path.name for path in found.beyond]


def test_a_file_of_a_replica_without_its_opening_is_being_created(tmp_path: Path) -> None:
    turned(tmp_path)
    path = next(tmp_path.glob(f"*/_hot/{hot_name(5, 2)}"))
    path.write_bytes(path.read_bytes()[:90])
    found = take(tmp_path)
    assert [index.path.name for index in found.live] == [hot_name(0), hot_name(10), hot_name(15, 1)]
