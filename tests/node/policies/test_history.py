"""The history keeps every change in order, shows when somebody edited it, and stays within its bounds."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from meshbus.errors import ConfigError
from meshbus.log.files import Files
from meshbus.node.policies import history as subject
from meshbus.node.policies.history import FIRST, HistoryRow, PolicyHistory, history_of, read_history, this_user


def row(number: int, changes: tuple[str, ...] = ()) -> HistoryRow:
    return HistoryRow(
        at="2026-11-18T07:00:00.000+00:00",
        by=f"user {number}",
        via="apply",
        node_id="00000000000000ff",
        result="applied",
        policy=f"{number:064x}",
        changes=changes,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


def users(file: Path) -> list[str]:
    return [one.by for one in read_history(history_of(file)).rows]


def test_rows_are_chained_and_private(file: Path) -> None:
    for number in range(3):
        PolicyHistory(file).append(row(number))
    found = read_history(history_of(file))
    assert [one.by for one in found.rows] == ["user 0", "user 1", "user 2"]
    assert found.problems == []
    assert found.rows[0].before == FIRST
    assert len({one.before for one in found.rows} | {found.last}) == 4
    assert stat.S_IMODE(history_of(file).stat().st_mode) == 0o600
    assert PolicyHistory(file).last_applied() == found.rows[-1]


def test_a_refused_change_is_not_the_last_that_was_applied(file: Path) -> None:
    PolicyHistory(file).append(row(1))
    PolicyHistory(file).append(msgspec.structs.replace(row(2), result="refused"))
    last = PolicyHistory(file).last_applied()
    assert last is not None
    assert last.by == "user 1"


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_user()

    def unknown() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr(subject, "getuser", unknown)
    assert this_user() == f"user {os.getuid()}"


def test_nothing_is_an_empty_history(file: Path) -> None:
    assert read_history(history_of(file)) == ([], [], FIRST)
    assert PolicyHistory(file).last_applied() is None


@pytest.mark.parametrize("edit", ["change", "remove", "insert", "garbage"])
def test_an_edit_is_noticed(file: Path, edit: str) -> None:
    for number in range(4):
        PolicyHistory(file).append(row(number))
    path = history_of(file)
    lines = path.read_bytes().splitlines(keepends=True)
    match edit:
        case "change":
            lines[1] = lines[1].replace(b"user 1", b"user 9")
        case "remove":
            del lines[1]
        case "insert":
            lines.insert(2, lines[0])
        case "garbage":
            lines[1] = b"{}\n"
    path.write_bytes(b"".join(lines))
    problems = read_history(path).problems
    assert problems
    assert all(str(path) in problem for problem in problems)
    # What is added later is chained to what is there, and does not hide the edit.
    PolicyHistory(file).append(row(7))
    assert read_history(path).problems == problems


def test_a_line_that_a_crash_cut_off_goes(file: Path) -> None:
    PolicyHistory(file).append(row(1))
    path = history_of(file)
    path.write_bytes(path.read_bytes() + b'{"at": "20')
    PolicyHistory(file).append(row(2))
    assert users(file) == ["user 1", "user 2"]
    assert read_history(path).problems == []


def test_old_files_rotate_and_the_chain_goes_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(msgspec.json.encode(row(100))) + 1
    monkeypatch.setattr(subject, "MAX_HISTORY_BYTES", 3 * one)
    for number in range(100, 130):
        PolicyHistory(file).append(row(number))
    files = sorted(history_of(file).parent.glob("policy.toml.history*"))
    assert len(files) == 1 + subject.OLDER_FILES
    assert all(one.stat().st_size <= subject.MAX_HISTORY_BYTES for one in files)
    assert read_history(history_of(file)).problems == []
    kept = users(file)
    assert kept == [f"user {number}" for number in range(130 - len(kept), 130)]
    assert len(kept) > 9


def test_a_row_names_so_many_changes(file: Path) -> None:
    PolicyHistory(file).append(row(1, tuple(f"change {number}" for number in range(1000))))
    last = PolicyHistory(file).last_applied()
    assert last is not None
    assert len(last.changes) == subject.MOST_CHANGES + 1
    assert last.changes[-1] == f"and {1000 - subject.MOST_CHANGES} more"


class FullDisk(Files):
    def fsync(self, _handle: int) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_an_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="No space left on device; a change without a row is refused"):
        PolicyHistory(file, FullDisk()).append(row(1))


def test_several_writers_append_to_one_chain(file: Path) -> None:
    """A lock belongs to an open file, so threads keep each other out as processes do."""

    def append(number: int) -> None:
        for turn in range(10):
            PolicyHistory(file).append(row(100 * number + turn))

    with ThreadPoolExecutor(2) as writers:
        list(writers.map(append, range(2)))
    assert len(users(file)) == 20
    assert read_history(history_of(file)).problems == []


def test_a_lock_that_is_never_free_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LOCK_S", 0.0)
    files = Files()
    handle = files.lock(history_of(file).with_name(".policy.toml.history.lock"))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            PolicyHistory(file).append(row(1))
    finally:
        files.close(handle)
