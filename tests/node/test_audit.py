"""The audit log keeps every change in order, shows when somebody edited it, and stays within its bounds."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from meshbus.errors import ConfigError
from meshbus.log.files import Files
from meshbus.node import audit as subject
from meshbus.node.audit import FIRST, AuditKind, AuditLog, AuditRow, now_text, read_audit, this_user


def row(number: int, changes: tuple[str, ...] = ()) -> AuditRow:
    return AuditRow(
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
    return tmp_path / "policy.toml.history"


def users(file: Path) -> list[str]:
    return [one.by for one in read_audit(file).rows]


def test_rows_are_chained_and_private(file: Path) -> None:
    for number in range(3):
        AuditLog(file).append(row(number))
    found = read_audit(file)
    assert [one.by for one in found.rows] == ["user 0", "user 1", "user 2"]
    assert found.problems == []
    assert found.rows[0].before == FIRST
    assert len({one.before for one in found.rows} | {found.last}) == 4
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert AuditLog(file).last_applied(AuditKind.POLICY) == found.rows[-1]


def test_a_refused_change_is_not_the_last_that_was_applied(file: Path) -> None:
    AuditLog(file).append(row(1))
    AuditLog(file).append(msgspec.structs.replace(row(2), result="refused"))
    last = AuditLog(file).last_applied(AuditKind.POLICY)
    assert last is not None
    assert last.by == "user 1"


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_user()

    def unknown() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr(subject, "getuser", unknown)
    assert this_user() == f"user {os.getuid()}"


def test_nothing_is_an_empty_log(file: Path) -> None:
    assert read_audit(file) == ([], [], FIRST)
    assert AuditLog(file).last_applied(AuditKind.POLICY) is None


@pytest.mark.parametrize("edit", ["change", "remove", "insert", "garbage"])
def test_an_edit_is_noticed(file: Path, edit: str) -> None:
    for number in range(4):
        AuditLog(file).append(row(number))
    lines = file.read_bytes().splitlines(keepends=True)
    match edit:
        case "change":
            lines[1] = lines[1].replace(b"user 1", b"user 9")
        case "remove":
            del lines[1]
        case "insert":
            lines.insert(2, lines[0])
        case "garbage":
            lines[1] = b"{}\n"
    file.write_bytes(b"".join(lines))
    problems = read_audit(file).problems
    assert problems
    assert all(str(file) in problem for problem in problems)
    # What is added later is chained to what is there, and does not hide the edit.
    AuditLog(file).append(row(7))
    assert read_audit(file).problems == problems


@pytest.mark.parametrize(
    "cut", ["a row", "half a row", "all but one", "the last row is changed", "the file", "the oldest file"]
)
def test_a_cut_is_noticed_and_stays_so(file: Path, cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_AUDIT_BYTES", 4 * (len(msgspec.json.encode(row(100))) + 1))
    for number in range(100, 106):
        AuditLog(file).append(row(number))
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) > 1
    match cut:
        case "a row":
            file.write_bytes(b"".join(lines[:-1]))
        case "half a row":
            file.write_bytes(b"".join(lines)[:-30])
        case "all but one":
            file.write_bytes(lines[0])
        case "the last row is changed":
            file.write_bytes(b"".join(lines).replace(b"user 105", b"user 999"))
        case "the file":
            file.unlink()
        case "the oldest file":
            file.with_name(f"{file.name}.1").unlink()
    assert read_audit(file).problems
    for number in range(2):
        AuditLog(file).append(row(number))
        assert read_audit(file).problems, "what is added later does not hide it"


def test_a_log_that_was_removed_with_all_its_rows_is_noticed(file: Path) -> None:
    AuditLog(file).append(row(1))
    file.unlink()
    (problem,) = read_audit(file).problems
    assert "rows were cut off at its end: the last one was of 2026-11-18T07:00:00.000+00:00" in problem
    AuditLog(file).append(row(2))
    (problem,) = read_audit(file).problems
    assert "rows before it were removed" in problem


def test_a_crash_before_the_head_was_written_is_no_cut(file: Path) -> None:
    AuditLog(file).append(row(1))
    head = subject._head_of(file)
    before = head.read_bytes()
    AuditLog(file).append(row(2))
    head.write_bytes(before)
    assert read_audit(file).problems == []
    AuditLog(file).append(row(3))
    assert (users(file), read_audit(file).problems) == (["user 1", "user 2", "user 3"], [])


@pytest.mark.parametrize("harm", ["removed", "damaged"])
def test_a_head_that_cannot_be_read_is_reported_until_the_next_row(file: Path, harm: str) -> None:
    AuditLog(file).append(row(1))
    head = subject._head_of(file)
    if harm == "removed":
        head.unlink()
    else:
        head.write_bytes(b"nonsense")
    (problem,) = read_audit(file).problems
    assert "rows may have been cut off" in problem
    AuditLog(file).append(row(2))
    assert read_audit(file).problems == []


def test_a_head_that_cannot_be_written_does_not_refuse_the_row(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stingy(Files):
        def write_aside(self, _path: Path, _aside: Path, _parts: object) -> None:
            raise OSError(28, "No space left on device")

    AuditLog(file).append(row(1))
    AuditLog(file, Stingy()).append(row(2))
    assert "No space left on device" in caplog.text
    assert (users(file), read_audit(file).problems) == (["user 1", "user 2"], [])


def test_a_line_that_a_crash_cut_off_goes(file: Path) -> None:
    AuditLog(file).append(row(1))
    file.write_bytes(file.read_bytes() + b'{"at": "20')
    AuditLog(file).append(row(2))
    assert users(file) == ["user 1", "user 2"]
    assert read_audit(file).problems == []


def test_old_files_rotate_and_the_chain_goes_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(msgspec.json.encode(row(100))) + 1
    monkeypatch.setattr(subject, "MAX_AUDIT_BYTES", 3 * one)
    for number in range(100, 130):
        AuditLog(file).append(row(number))
    files = sorted(file.parent.glob("policy.toml.history*"))
    assert len(files) == 1 + subject.OLDER_FILES
    assert all(one.stat().st_size <= subject.MAX_AUDIT_BYTES for one in files)
    assert read_audit(file).problems == []
    kept = users(file)
    assert kept == [f"user {number}" for number in range(130 - len(kept), 130)]
    assert len(kept) > 9


def test_a_row_names_so_many_changes(file: Path) -> None:
    AuditLog(file).append(row(1, tuple(f"change {number}" for number in range(1000))))
    last = AuditLog(file).last_applied(AuditKind.POLICY)
    assert last is not None
    assert len(last.changes) == subject.MOST_CHANGES + 1
    assert last.changes[-1] == f"and {1000 - subject.MOST_CHANGES} more"


class FullDisk(Files):
    def fsync(self, _handle: int) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_an_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="No space left on device; a change without a row is refused"):
        AuditLog(file, FullDisk()).append(row(1))


def test_several_writers_append_to_one_chain(file: Path) -> None:
    """A lock belongs to an open file, so threads keep each other out as processes do."""

    def append(number: int) -> None:
        for turn in range(10):
            AuditLog(file).append(row(100 * number + turn))

    with ThreadPoolExecutor(2) as writers:
        list(writers.map(append, range(2)))
    assert len(users(file)) == 20
    assert read_audit(file).problems == []


def test_a_lock_that_is_never_free_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LOCK_S", 0.0)
    files = Files()
    handle = files.lock(file.with_name(".policy.toml.history.lock"))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            AuditLog(file).append(row(1))
    finally:
        files.close(handle)


def test_kinds_share_one_chain(file: Path) -> None:
    AuditLog(file).append(row(1))
    AuditLog(file).append(msgspec.structs.replace(row(2), kind=AuditKind.JOIN, subject="ab" * 32, policy=None))
    found = read_audit(file)
    assert [(one.kind, one.subject) for one in found.rows] == [("policy", None), ("join", "ab" * 32)]
    assert found.problems == []
    log = AuditLog(file)
    assert [log.last_applied(kind) for kind in AuditKind] == [*found.rows, None, None]


def test_rows_of_earlier_and_of_later_versions_are_read(file: Path) -> None:
    earlier = b'{"at":"2026","by":"ada","via":"apply","node_id":"ff","result":"applied","policy":"00","before":"%s"}\n'
    file.write_bytes(earlier % FIRST.encode())
    AuditLog(file).append(msgspec.structs.replace(row(1), kind="something new"))
    found = read_audit(file)
    assert [one.kind for one in found.rows] == ["policy", "something new"]
    assert found.problems == []


def test_times_are_utc() -> None:
    assert now_text().endswith("+00:00")


def test_a_row_of_a_newer_build_is_reported_and_stays_in_the_chain(file: Path) -> None:
    AuditLog(file).append(row(0))
    AuditLog(file).append(msgspec.structs.replace(row(1), format=2))
    AuditLog(file).append(row(2))
    assert users(file) == ["user 0", "user 2"]
    (problem,) = read_audit(file).problems
    assert problem == (
        f"{file}, line 2: audit log, version 2, was written by a newer meshbus; this one reads version 1; use the meshbus"
        " that wrote it, or a newer one; nothing was changed"
    )
