"""The file layer: complete writes however much the system accepts at once, and errors as one sentence."""

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.files import Files, Part, log_error, translated


class Short(Files):
    """Accepts three bytes at a time."""

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        return super().write_some(handle, [memoryview(b"".join(parts))[:3]], at)


@pytest.mark.parametrize("files", [Files(), Short()], ids=["whole", "short"])
def test_all_parts_arrive_in_order_at_their_place(files: Files, tmp_path: Path) -> None:
    handle = files.create(tmp_path / "f")
    end = files.write(handle, [b"head", memoryview(b"body"), b"", b"tail!"], 2)
    files.close(handle)
    assert end == 2 + 13
    assert (tmp_path / "f").read_bytes() == b"\0\0headbodytail!"


def test_a_file_is_never_created_over_another(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        Files().create(tmp_path / "f")


def test_a_lock_is_held_once_and_ends_with_its_handle(tmp_path: Path) -> None:
    files = Files()
    held = files.lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path / "lock")
    files.close(held)
    files.close(files.lock(tmp_path / "lock"))


def test_replacing_aside_leaves_one_whole_file(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "_f.aside").write_bytes(b"left by a crash")
    files.write_aside(tmp_path / "f", tmp_path / "_f.aside", [b"new"])
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"new"


def test_reopening_truncating_and_removing(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "f").write_bytes(b"123456")
    handle = files.reopen(tmp_path / "f")
    files.truncate(handle, 2)
    files.fsync(handle)
    files.close(handle)
    assert (tmp_path / "f").read_bytes() == b"12"
    files.remove(tmp_path / "f")
    files.remove(tmp_path / "f")
    files.make_folder(tmp_path / "a" / "b")
    files.fsync_folder(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("number", "fault", "next_step"),
    [
        (errno.ENOSPC, LogFault.NO_SPACE, "free some space"),
        (errno.EDQUOT, LogFault.NO_SPACE, "free some space"),
        (errno.EACCES, LogFault.READ_ONLY, "write access"),
        (errno.EROFS, LogFault.READ_ONLY, "another folder"),
        (errno.ENOTDIR, LogFault.FOREIGN, "another folder"),
        (errno.EIO, LogFault.FAILED, "check the disk"),
    ],
)
def test_an_os_error_is_one_line_with_advice(number: int, fault: LogFault, next_step: str) -> None:
    error = log_error(OSError(number, "said the system"), Path("x"), "cannot write")
    assert error.fault is fault
    assert str(error).startswith("cannot write x: said the system; ")
    assert next_step in str(error)


def test_translation_keeps_the_cause() -> None:
    with pytest.raises(LogError) as caught, translated(Path("x"), "cannot"):
        raise OSError(errno.EIO, "no")
    assert isinstance(caught.value.__cause__, OSError)


def test_room_beyond_the_end_leaves_the_end_where_it_is(tmp_path: Path) -> None:
    files = Files()
    handle = files.create(tmp_path / "f")
    files.write(handle, [b"123"], 0)
    if files.reserve(handle, 3, 1 << 20):
        assert (tmp_path / "f").stat().st_blocks * 512 >= 1 << 20
        files.truncate(handle, 3)
        assert (tmp_path / "f").stat().st_blocks * 512 < 1 << 20
    files.close(handle)
    assert (tmp_path / "f").read_bytes() == b"123"


def test_room_that_cannot_be_reserved_is_not_an_error(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "f").write_bytes(b"")
    handle = os.open(tmp_path / "f", os.O_RDONLY)
    assert not files.reserve(handle, 0, 1 << 20)
    files.close(handle)


def test_a_sync_can_begin_before_all_is_written_and_changes_nothing(tmp_path: Path) -> None:
    files = Files()
    handle = files.create(tmp_path / "f")
    end = files.write(handle, [b"first"], 0)
    files.begin_sync(handle, 0, end)
    files.write(handle, [b"second"], end)
    files.end_sync(handle, 0, end)
    files.fsync(handle)
    files.close(handle)
    assert (tmp_path / "f").read_bytes() == b"firstsecond"


def test_a_system_without_early_write_back_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.log.files._libc", lambda: None)
    handle = Files().create(tmp_path / "f")
    Files().begin_sync(handle, 0, 10)
    Files().end_sync(handle, 0, 10)
    Files().close(handle)


@pytest.mark.parametrize(("number", "raises"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.ENOSYS, False)])
def test_what_the_disk_refused_is_an_error_and_what_the_system_lacks_is_none(
    number: int, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        @staticmethod
        def sync_file_range(*_: object) -> int:
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr("meshbus.log.files._libc", Library)
    Files().begin_sync(0, 0, 10)
    if raises:
        with pytest.raises(OSError, match=os.strerror(number)):
            Files().end_sync(0, 0, 10)
    else:
        Files().end_sync(0, 0, 10)


def test_what_is_created_is_for_this_user_only(tmp_path: Path) -> None:
    files = Files()
    files.make_folder(tmp_path / "a" / "b")
    files.close(files.create(tmp_path / "a" / "b" / "f"))
    files.write_aside(tmp_path / "a" / "g", tmp_path / "a" / "_g.aside", [b"x"])
    files.close(files.lock(tmp_path / "a" / "_lock"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")}
    assert modes == {"b": 0o700, "f": 0o600, "g": 0o600, "_lock": 0o600}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_an_existing_folder_keeps_its_mode_and_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    Files().make_folder(tmp_path / "shared" / "log")
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o750
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        Files().make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        Files().make_folder(tmp_path / "file" / "log")


def test_another_user_cannot_open_a_lock_that_an_older_version_made_nor_redirect_it(tmp_path: Path) -> None:
    lock = tmp_path / "_lock"
    lock.touch()
    lock.chmod(0o644)
    Files().close(Files().lock(lock))
    assert lock.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(lock)
    with pytest.raises(OSError, match="symbolic links"):
        Files().lock(tmp_path / "link")
