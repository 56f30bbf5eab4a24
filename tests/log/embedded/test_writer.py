"""The writer: refused appends use no sequence, failures stop it, waiting threads share a sync."""

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import NEVER, Retention, every_n
from meshbus.log.files import Files, Part
from tests.log.making import in_files, kill, numbered, open_log, payloads, writer_of


class Faulty(Files):
    """Fails the configured operations, as often as configured."""

    def __init__(self) -> None:
        self.refuse: dict[str, int] = {}
        self.calls: list[str] = []

    def ask(self, what: str, number: int) -> None:
        self.calls.append(what)
        if self.refuse.get(what, 0):
            self.refuse[what] -= 1
            raise OSError(number, f"injected into {what}")

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        if self.refuse.get("half"):  # half of it arrives, and then the disk is full
            super().write_some(handle, [memoryview(b"".join(parts))[: sum(map(len, parts)) // 2]], at)
        self.ask("half", errno.ENOSPC)
        return super().write_some(handle, parts, at)

    def truncate(self, handle: int, size: int) -> None:
        self.ask("truncate", errno.EIO)
        super().truncate(handle, size)

    def fsync(self, handle: int) -> None:
        self.ask("fsync", errno.EIO)
        super().fsync(handle)

    def create(self, path: Path) -> int:
        self.ask("create", errno.ENOSPC)
        return super().create(path)


def test_a_full_disk_uses_up_no_sequence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    files = Faulty()
    with open_log(tmp_path, files=files, fsync=NEVER) as log:
        log.append_batch(numbered(0, 3))
        size = in_files(log).hot[0].place_of(1)
        files.refuse = {"half": 2}
        for append in (lambda: log.append(b"x"), lambda: log.append_batch([b"x"] * 9)):
            with pytest.raises(LogError, match="free some space") as caught:
                append()
            assert caught.value.fault is LogFault.NO_SPACE
            assert next(tmp_path.glob("*/_hot/*")).stat().st_size == size
        assert log.append(numbered(3, 1)[0]) == 3
        assert payloads(log.read_range(0, 9)) == numbered(0, 4)
        assert log.stats.refused == 2
    with open_log(tmp_path) as log:
        assert log.report.clean
        assert payloads(log.read_range(0, 9)) == numbered(0, 4)


def test_a_system_that_takes_a_few_bytes_at_a_time_changes_nothing(tmp_path: Path) -> None:
    class Short(Files):
        def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
            return super().write_some(handle, [memoryview(b"".join(parts))[:17]], at)

    with open_log(tmp_path, files=Short()) as log:
        log.append_batch(numbered(0, 9))
        log.append(numbered(9, 1)[0])
        log.seal()
        log.append_batch(numbered(10, 5))
        assert payloads(log.read_range(0, 15)) == numbered(0, 15)
        assert log.verify() == []


@pytest.mark.parametrize(("number", "fault"), [(errno.EROFS, LogFault.READ_ONLY), (errno.EIO, LogFault.FAILED)])
def test_a_disk_error_at_opening_is_one_line(tmp_path: Path, number: int, fault: LogFault) -> None:
    class Refusing(Files):
        def create(self, *_: object) -> int:
            raise OSError(number, "said the system")

    with pytest.raises(LogError, match=r"cannot open .*said the system") as caught:
        open_log(tmp_path, files=Refusing())
    assert caught.value.fault is fault
    open_log(tmp_path).close()


def test_half_a_block_that_cannot_be_cut_stops_the_log_until_it_is_opened_again(tmp_path: Path) -> None:
    files = Faulty()
    log = open_log(tmp_path, files=files, fsync=NEVER)
    log.append_batch(numbered(0, 3))
    files.refuse = {"half": 1, "truncate": 1}
    for _ in range(2):
        with pytest.raises(LogError, match="injected into half"):
            log.append(b"x")
    assert payloads(log.read_range(0, 9)) == numbered(0, 3), "reading goes on"
    log.close()
    with open_log(tmp_path) as log:
        assert log.report.cut_bytes
        assert log.append(numbered(3, 1)[0]) == 3
        assert payloads(log.read_range(0, 9)) == numbered(0, 4)


def test_a_failed_sync_acknowledges_nothing_and_stops_the_log(tmp_path: Path) -> None:
    files = Faulty()
    log = open_log(tmp_path, files=files, fsync=every_n(1))
    log.append(b"safe")
    files.refuse = {"fsync": 1}
    with pytest.raises(LogError, match="injected into fsync") as caught:
        log.append(b"unknown")
    assert caught.value.fault is LogFault.FAILED
    assert log.durable_seq == 1
    with pytest.raises(LogError, match="open the log again"):
        log.append(b"refused")
    log.keep()
    assert log.stats.upkeep_failures == 0, "one failure is told once, to who appends"
    assert log.failed
    [before] = {path.stat().st_ino for path in writer_of(log).folder.glob("_hot/*.hot")}
    log.close()
    # Another file: another sync of the same one could succeed without writing what the first one lost.
    [after] = {path.stat().st_ino for path in writer_of(log).folder.glob("_hot/*.hot")}
    assert after != before
    with open_log(tmp_path) as log:
        assert payloads(log.read_range(0, 9)) == [b"safe", b"unknown"]


def test_a_hot_file_that_cannot_be_begun_refuses_the_append_only(tmp_path: Path) -> None:
    files = Faulty()
    with open_log(tmp_path, files=files, fsync=NEVER, seal_bytes=100) as log:
        log.append_batch([b"x" * 200])
        files.refuse = {"create": 1}
        with pytest.raises(LogError, match="injected into create"):
            log.append(b"y")
        assert log.append(b"z") == 1
        assert payloads(log.read_range(0, 9)) == [b"x" * 200, b"z"]


MEBIBYTE = [bytes(1 << 20)]


def room(root: Path) -> int:
    """Bytes that the hot files take on the disk beyond their ends."""
    found = [path.stat() for path in root.glob("*/_hot/*")]
    return sum(max(file.st_blocks * 512 - file.st_size, 0) for file in found)


def test_room_is_reserved_ahead_of_a_growing_log_and_released(tmp_path: Path) -> None:
    with open_log(tmp_path, fsync=NEVER, seal_bytes=6 << 20) as log:
        log.append_batch(MEBIBYTE)
        small = room(tmp_path)
        log.append_batch(MEBIBYTE)
        assert small < 1 << 20 <= room(tmp_path)
        for _ in range(7):
            log.append_batch(MEBIBYTE)
        assert room(tmp_path) <= 4 << 20  # of the second file: the first has given its own back
        log.append_batch(MEBIBYTE)
        kill(log)
    assert room(tmp_path) >= 1 << 20
    with open_log(tmp_path) as log:
        assert room(tmp_path) < 1 << 20
        assert log.report.clean
        log.append_batch(MEBIBYTE)
        assert payloads(log.read_range(0, 99)) == MEBIBYTE * 11
    assert room(tmp_path) < 1 << 20


def test_a_disk_that_reserves_nothing_takes_events_all_the_same(tmp_path: Path) -> None:
    asked = []

    class Plain(Files):
        def reserve(self, handle: int, at: int, size: int) -> bool:  # noqa: ARG002
            asked.append((at, size))
            return False

    with open_log(tmp_path, files=Plain(), fsync=NEVER) as log:
        for _ in range(5):
            log.append_batch(MEBIBYTE)
        assert len(asked) == 1
        assert payloads(log.read_range(0, 9)) == MEBIBYTE * 5


def test_files_are_synced_in_their_order(tmp_path: Path) -> None:
    files = Faulty()
    with open_log(tmp_path, files=files, fsync=NEVER, seal_bytes=100) as log:
        files.calls.clear()
        for first in range(3):
            log.append_batch(numbered(first, 1), src=1)
            log.append_batch(numbered(first, 1), src=1)
        assert "fsync" not in files.calls, "never means never, also between files"
        rolled = len(in_files(log).hot)
        assert rolled > 1
        log.sync()
        assert files.calls.count("fsync") == rolled
        log.sync()
        assert files.calls.count("fsync") == rolled, "there is nothing to sync"
        assert log.durable_seq == log.next_seq == 6


def test_a_complete_file_is_due_at_once(tmp_path: Path) -> None:
    calls: list[int] = []
    with open_log(tmp_path, fsync=NEVER, seal_bytes=300) as log:
        writer = writer_of(log)
        writer._due = lambda: calls.append(log.next_seq)
        for first in range(0, 12, 4):
            log.append_batch(numbered(first, 4))
        assert len(in_files(log).hot) == 2
        assert calls == [8]


def test_what_is_sealed_is_durable_and_its_hot_file_is_never_synced(tmp_path: Path) -> None:
    synced: list[int] = []

    class Watched(Files):
        def fsync(self, handle: int) -> None:
            synced.append(os.fstat(handle).st_ino)
            super().fsync(handle)

        def fsync_folder(self, path: Path) -> None:
            synced.append(path.stat().st_ino)
            super().fsync_folder(path)

    with open_log(tmp_path, files=Watched(), fsync=NEVER) as log:
        log.append_batch(numbered(0, 4))
        (hot,) = in_files(log).hot
        number = hot.path.stat().st_ino
        synced.clear()
        log.seal()
        assert number not in synced
        assert log.durable_seq == log.next_seq == 4
        log.append(b"in the next hot file")
        assert log.durable_seq == 4
        log.sync()
        (hot,) = in_files(log).hot
        assert synced[-2:] == [hot.path.parent.stat().st_ino, hot.path.stat().st_ino], "its name, and its content"
        log.append(b"more")
        log.sync()
        assert synced[-2:] == [hot.path.stat().st_ino] * 2, "the name once"


def test_threads_that_wait_share_a_sync(tmp_path: Path) -> None:
    started, go = threading.Event(), threading.Event()

    class Slow(Files):
        armed = False
        count = 0

        def fsync(self, handle: int) -> None:
            Slow.count += Slow.armed
            if Slow.armed and Slow.count == 1:
                started.set()
                assert go.wait(10)
            super().fsync(handle)

    with open_log(tmp_path, files=Slow(), fsync=every_n(1)) as log:
        Slow.armed = True
        threads = [threading.Thread(target=log.append, args=(b"x",)) for _ in range(8)]
        threads[0].start()
        assert started.wait(10)
        for thread in threads[1:]:
            thread.start()
        while log.next_seq < 8:
            log.wait_beyond(log.next_seq, 1)
        go.set()
        for thread in threads:
            thread.join()
        assert log.durable_seq == 8
        assert Slow.count == 2, "seven appends shared one"


@pytest.mark.parametrize("events", [1, 3])
def test_one_append_wakes_every_thread_that_waits(tmp_path: Path, events: int) -> None:
    with open_log(tmp_path, fsync=NEVER) as log:
        woken: list[bool] = []
        threads = [threading.Thread(target=lambda: woken.append(log.wait_beyond(0)), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        while writer_of(log)._waiting < len(threads):
            threads[0].join(0.001)
        if events == 1:
            log.append(b"x")
        else:
            log.append_batch([b"x"] * events)
        for thread in threads:
            thread.join(10)
        assert woken == [True] * 3
        assert not log.wait_beyond(9, 0)
        assert writer_of(log)._waiting == 0, "neither who was woken waits any more, nor who gave up"


def test_many_threads_append_each_event_once(tmp_path: Path) -> None:
    with open_log(tmp_path, fsync=NEVER, seal_bytes=2_000) as log:
        seqs: list[int] = []

        def append(worker: int) -> None:
            for number in range(50):
                seq = log.append(b"%d:%d" % (worker, number))
                seqs.append(seq)
                seqs.extend(log.append_batch([b"%d:%d" % (worker, number)] * 2))

        threads = [threading.Thread(target=append, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seqs) == list(range(600))
        seen: dict[bytes, list[int]] = {}
        for event in log.read_range(0, 600):
            worker, number = event.payload.split(b":")
            seen.setdefault(worker, []).append(int(number))
        assert len(seen) == 4
        assert all(numbers == sorted(numbers) and len(numbers) == 150 for numbers in seen.values())


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path):
        with pytest.raises(LogError, match="is being written by another process") as caught:
            open_log(tmp_path)
        assert caught.value.fault is LogFault.LOCKED
    open_log(tmp_path).close()


def test_a_read_only_folder_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="choose another folder") as caught:
        open_log(tmp_path / "file")
    assert caught.value.fault is LogFault.FOREIGN


def test_a_closed_log_refuses_appends_and_may_be_closed_twice(tmp_path: Path) -> None:
    told: list[Any] = []
    log = open_log(tmp_path)
    log.append(b"x")
    stop = log.listen(lambda: told.append(log.closed))
    log.append(b"y")
    log.close()
    log.close()
    assert told == [False, True]
    stop()
    stop()
    for use in (lambda: log.append(b"z"), lambda: log.append_batch([]), log.seal, log.expire, log.compact):
        with pytest.raises(LogError, match="is closed") as caught:
            use()
        assert caught.value.fault is LogFault.CLOSED
    assert not log.wait_beyond(99)
    assert payloads(log.read_range(0, 2)) == [b"x", b"y"], "reading works after close"


def test_too_many_open_files_refuse_a_sync_but_not_the_next_one(tmp_path: Path) -> None:
    class NoHandles(Files):
        left = 0

        def fsync_folder(self, path: Path) -> None:
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            super().fsync_folder(path)

    files = NoHandles()
    with open_log(tmp_path, files=files, seal_bytes=100) as log:
        for first in (0, 5):
            log.append_batch(numbered(first, 5), src=1)
        files.left = 1
        with pytest.raises(LogError, match="ulimit -n"):
            log.sync()
        assert log.append(b"next") == 10
        log.sync()
        assert log.durable_seq == 11


def test_a_limit_smaller_than_a_file_header_does_not_refuse_every_append(tmp_path: Path) -> None:
    with open_log(tmp_path, retention=Retention(max_bytes=8)) as log:
        for number in range(3):
            assert log.append(b"x") == number
            log.keep()
        assert log.next_seq == 3
