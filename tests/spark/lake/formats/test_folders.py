"""Plain directories: a rename is the commit, wider ranges and higher generations count, and readers keep their files."""

from datetime import timedelta
from pathlib import Path

import pytest

from meshbus.spark.lake.formats.folders import FolderTable
from meshbus.spark.lake.readers import reading
from tests.spark.lake.formats.made import (
    EVENTS,
    START,
    commit,
    event,
    numbers,
    open_table,
    spans,
    write_events,
)


@pytest.fixture
def table(tmp_path: Path) -> FolderTable:
    made = open_table(EVENTS, tmp_path, "parquet")
    assert isinstance(made, FolderTable)
    return made


def folders(table: FolderTable) -> list[str]:
    return sorted(entry.name for entry in table.folder.glob("batch=*"))


def replace_second(table: FolderTable, second: int, number: int) -> None:
    staged = table.stage()
    write_events(staged, [event(number, second=second)])
    table.replace(START + timedelta(seconds=second), START + timedelta(seconds=second + 1), staged)


def test_the_directories_have_the_documented_names(table: FolderTable) -> None:
    for batch in range(3):
        commit(table, batch, [batch])
    table.compact("events", fewest=2, keep=1)
    replace_second(table, 2, 9)
    replace_second(table, 0, 8)
    assert folders(table) == ["batch=events-000000000000-000000000001-g1", "batch=events-000000000002-g1"]
    assert numbers(table) == [1, 8, 9]


def test_what_is_being_read_stays_until_the_next_commit(table: FolderTable) -> None:
    for batch in range(3):
        commit(table, batch, [batch])
    with reading(table.folder.parents[1]):
        before = [Path(file.path) for file in table.files()]
        assert table.compact("events", fewest=3, keep=0) == 3
        replace_second(table, 1, 9)
        assert all(path.exists() for path in before)
        assert len(folders(table)) == 5
        assert numbers(table) == [0, 2, 9]
    commit(table, 3, [3])
    assert len(folders(table)) == 2
    assert numbers(table) == [0, 2, 3, 9]


def test_a_compaction_that_died_after_its_rename_shows_nothing_twice(table: FolderTable) -> None:
    for batch in range(3):
        commit(table, batch, [batch])
    staged = table.stage()
    write_events(staged, map(event, range(3)))
    staged.rename(table.folder / "batch=events-000000000000-000000000002")
    assert numbers(table) == [0, 1, 2]
    assert spans(table) == [("events", 0, 2)]
    table.sweep()
    assert folders(table) == ["batch=events-000000000000-000000000002"]
    assert numbers(table) == [0, 1, 2]


def test_a_replacement_that_died_after_its_rename_counts(table: FolderTable) -> None:
    commit(table, 0, [1, 2])
    staged = table.stage()
    write_events(staged, [event(3)])
    staged.rename(table.folder / "batch=events-000000000000-g1")
    assert numbers(table) == [3]
    table.sweep()
    assert folders(table) == ["batch=events-000000000000-g1"]


def test_files_of_an_older_version_in_folders_of_hours_are_read_and_compacted(table: FolderTable) -> None:
    for batch in range(2):
        for hour in range(2):
            folder = table.folder / f"batch=events-{batch:012d}" / f"hour=2026-11-15T1{hour}"
            folder.mkdir(parents=True)
            write_events(folder, [event(batch * 2 + hour)])
    assert numbers(table) == [0, 1, 2, 3]
    assert table.last("events") == 1
    table.compact("events", fewest=2, keep=0)
    assert numbers(table) == [0, 1, 2, 3]
    assert len(table.files()) == 1


def test_other_directories_are_left_alone(table: FolderTable) -> None:
    commit(table, 0, [1])
    for name in ("batch=events", "batch=Other-000000000001", "notes"):
        (table.folder / name).mkdir()
    table.sweep()
    assert numbers(table) == [1]
    assert (table.folder / "batch=events").exists()


def test_hours_that_are_being_read_expire_later(tmp_path: Path) -> None:
    from tests.spark.lake.formats.test_contract import fan_out

    gold = open_table("gold.fan_out", tmp_path, "parquet")
    gold.put_hour("2026-11-15T08", fan_out("a"), "x")
    with reading(tmp_path):
        gold.expire(START)
        assert gold.hours() == ["2026-11-15T08"]
    gold.expire(START)
    assert gold.hours() == []
