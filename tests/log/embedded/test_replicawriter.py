"""Writing a replica: one order for everything, one sync for everything, and readers that see what is committed."""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.files import Files, Part
from meshbus.log.folder import MARK
from meshbus.log.reader import LogReader
from meshbus.log.replicated import ReplicatedLog
from tests.log.making import CHANNEL, numbered, payloads
from tests.log.replicas import open_replica
from tests.log.smalldisk import SmallDisk


class Watched(Files):
    """Real files; a function is called at each fsync of a file, and writing below a name may fail."""

    def __init__(self) -> None:
        self.at_fsync: Callable[[], None] = lambda: None
        self.syncs = 0
        self.fails_in = ""
        self._names: dict[int, str] = {}

    def create(self, path: Path) -> int:
        if self.fails_in and self.fails_in in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        handle = super().create(path)
        self._names[handle] = str(path)
        return handle

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        if self.fails_in and self.fails_in in self._names.get(handle, ""):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write_some(handle, parts, at)

    def fsync(self, handle: int) -> None:  # noqa: ARG002 - nothing crashes here
        self.syncs += 1
        self.at_fsync()


def seen(root: Path) -> list[bytes]:
    return payloads(LogReader(root, CHANNEL).snapshot().events())


def test_one_sync_serves_events_and_ballots(tmp_path: Path) -> None:
    files = Watched()
    with open_replica(tmp_path, files=files) as log:
        files.syncs = 0
        log.append(1, 0, numbered(0, 3))
        log.persist(b"one")
        log.append(2, 3, [])
        log.sync()
        assert files.syncs == 1
        log.sync()
        assert files.syncs == 1, "nothing is new"
        log.persist(b"two")
        log.sync()
        assert files.syncs == 2
        log.append(2, 3, [])
        log.sync()
        assert files.syncs == 2, "the epoch has started already"


def test_events_are_seen_when_they_are_committed_and_synced(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        told: list[int] = []
        log.committed.listen(lambda: told.append(log.committed_tail))
        log.append(1, 0, numbered(0, 10))
        assert (seen(tmp_path), told) == ([], [])
        log.commit_to(4)
        assert (seen(tmp_path), told) == ([], []), "not on this disk"
        log.sync()
        assert (seen(tmp_path), told) == (numbered(0, 4), [4])
        log.commit_to(7)
        assert (seen(tmp_path), told) == (numbered(0, 7), [4, 7])
        log.commit_to(5)
        assert told == [4, 7]
        assert payloads(log.committed.read_range(0, 99)) == numbered(0, 7)
        assert log.committed.wait_beyond(6, 0)
        assert not log.committed.wait_beyond(7, 0)


def test_a_turn_during_a_sync_takes_back_what_the_sync_cannot_promise(tmp_path: Path) -> None:
    files = Watched()
    with open_replica(tmp_path, files=files) as log:
        log.append(1, 0, numbered(0, 10))

        def turn() -> None:
            files.at_fsync = lambda: None
            log.set_aside(6)
            log.append(2, 6, [b"x", b"y"])

        files.at_fsync = turn
        log.sync()
        log.commit_to(8)
        assert log.committed_tail == 6, "the new events are not synced"
        assert log.asides() == []
        log.sync()
        assert log.committed_tail == 8
        assert [one.first for one in log.asides()] == [6]


def test_only_what_is_committed_is_sealed(tmp_path: Path) -> None:
    with open_replica(tmp_path, seal_bytes=300) as log:
        for first in range(0, 40, 10):
            log.append(1, first, numbered(first, 10))
        log.sync()
        log.commit_to(15)
        assert log.committed.seal() == 10
        log.commit_to(40)
        log.append(1, 40, numbered(40, 10))
        assert log.committed.seal() == 30
        assert seen(tmp_path) == numbered(0, 40)
        assert log.read(0, 99, 1 << 20) == tuple(numbered(0, 50))


def test_what_was_set_aside_is_kept_before_anything_is_sealed(tmp_path: Path) -> None:
    files = Watched()
    with open_replica(tmp_path, files=files, seal_bytes=300) as log:
        for first in range(0, 40, 10):
            log.append(1, first, numbered(first, 10))
        log.sync()
        files.fails_in = "/_aside/"
        log.set_aside(15)
        log.append(2, 15, [b"new"] * 20)
        log.append(2, 35, [b"newer"])
        log.sync()
        log.commit_to(36)
        assert log.committed.seal() == 0, "there is no room for the side file"
        assert log.committed.stats.upkeep_failures == 2, "it was tried at each sync"
        files.fails_in = ""
        log.persist(b"goes on")
        log.sync()
        assert payloads(log.read_aside(log.asides()[0])) == numbered(15, 25)
        assert log.committed.seal() == 36
        assert seen(tmp_path) == [*numbered(0, 15), *[b"new"] * 20, b"newer"]


def test_the_middle_of_a_block_may_be_set_aside_and_sealed(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        log.append(1, 0, numbered(0, 10), headers={"a": b"b"})
        log.append(1, 10, numbered(10, 10))
        log.set_aside(13)
        log.append(2, 13, [b"new"])
        log.sync()
        log.commit_to(14)
        log.committed.seal()
        assert seen(tmp_path) == [*numbered(0, 13), b"new"]
        assert log.committed.verify() == []


def test_committed_events_cannot_be_set_aside(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        log.append(1, 0, numbered(0, 10))
        log.sync()
        log.commit_to(5)
        for seq in (4, 11):
            with pytest.raises(LogError, match="below 5 are committed"):
                log.set_aside(seq)
        log.set_aside(10)
        log.set_aside(5)
        assert log.tail == 5


def test_events_are_appended_at_the_end_and_gaps_lead_forward(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        log.append(1, 0, numbered(0, 10))
        with pytest.raises(ValueError, match="appended at 10"):
            log.append(1, 9, [b"x"])
        with pytest.raises(ValueError, match="leads forward from 10"):
            log.skip_to(10, 1)


def test_a_skipped_range_is_a_gap_and_what_was_before_it_expires(tmp_path: Path) -> None:
    with open_replica(tmp_path, seal_bytes=300) as log:
        log.append(1, 0, numbered(0, 20))
        log.sync()
        log.commit_to(20)
        log.committed.seal()
        log.append(1, 20, numbered(20, 5))
        log.skip_to(70, 4)
        log.commit_to(75)
        assert seen(tmp_path) == [], "what is committed before the gap may be something else"
        log.append(5, 70, numbered(70, 5))
        log.sync()
        for _ in range(2):
            assert (log.first_retained, log.tail, log.gaps) == (70, 75, ((25, 70),))
            assert seen(tmp_path) == payloads(log.committed.read_range(70, 80)) == numbered(70, 5)
            with pytest.raises(LogError) as caught:
                log.read(69, 9, 99)
            assert (caught.value.fault, caught.value.first_available) == (LogFault.RANGE_GONE, 70)
            log.keep()
    with open_replica(tmp_path) as log:
        assert (log.recovered.first_retained, log.recovered.runs) == (70, ((4, 25), (5, 70)))
        assert log.gaps == ((25, 70),)


def test_the_mark_may_fail_and_lags_then(tmp_path: Path) -> None:
    files = Watched()
    with open_replica(tmp_path, files=files) as log:
        log.append(1, 0, numbered(0, 10))
        log.sync()
        log.commit_to(3)
        files.fails_in = MARK
        log.commit_to(6)
        assert (log.committed_tail, len(seen(tmp_path))) == (6, 3)
        files.fails_in = ""
        log.commit_to(7)
        assert len(seen(tmp_path)) == 7


WRITES: dict[str, Callable[[ReplicatedLog], None]] = {
    "append": lambda log: log.append(2, 10, [bytes(9_000)]),
    "persist": lambda log: log.persist(bytes(9_000)),
    "set aside": lambda log: log.set_aside(5),
    "skip": lambda log: log.skip_to(50, 2),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_refuses_and_the_log_goes_on_when_there_is_room(tmp_path: Path, name: str) -> None:
    disk = SmallDisk(tmp_path, 1 << 20)
    with open_replica(tmp_path / "root", files=disk) as log:
        log.persist(b"ballot")
        log.append(1, 0, numbered(0, 10))
        log.sync()
        log.commit_to(4)
        disk.room = 100
        with pytest.raises(LogError) as caught:
            WRITES[name](log)
        assert caught.value.fault is LogFault.NO_SPACE
        assert log.read(0, 99, 9_999) == tuple(numbered(0, 10))
        assert seen(tmp_path / "root") == numbered(0, 4)
        disk.room = 1 << 20
        WRITES[name](log)
        log.sync()
    with open_replica(tmp_path / "root") as log:
        assert not log.recovered.damaged
        assert log.read(log.first_retained, 4, 9_999) == (() if name == "skip" else tuple(numbered(0, 4)))


def test_nothing_is_written_after_a_failed_sync(tmp_path: Path) -> None:
    files = Watched()
    log = open_replica(tmp_path, files=files)

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log.append(1, 0, numbered(0, 5))
    files.at_fsync = fail
    for write in (log.sync, *(lambda write=write: write(log) for write in WRITES.values())):
        with pytest.raises(LogError) as caught:
            write()
        assert caught.value.fault is LogFault.FAILED
    log.close()
    with open_replica(tmp_path) as log:
        assert log.tail == 5


def test_events_that_cannot_be_read_are_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with open_replica(tmp_path) as log:
        log.append(1, 0, numbered(0, 10))
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", refuse)
            with pytest.raises(LogError, match="Cannot allocate memory") as caught:
                log.set_aside(4)
        assert caught.value.fault is LogFault.FAILED
        assert log.tail == 10
        log.set_aside(4)
        assert log.tail == 4
