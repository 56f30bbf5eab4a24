"""The log of a replica as its node uses it."""

import errno
import os
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import LogConfig, Retention
from meshbus.log.reader import LogReader, read_split
from meshbus.log.replicated import ReplicatedLog, put_aside
from tests.log.making import CHANNEL, Clock, numbered, payloads
from tests.log.replicas import LOG_ID, open_replica
from tests.patience import PATIENCE_S


def test_a_new_replica_is_empty_and_has_the_given_id(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        found = log.recovered
        assert (found.ballot, found.tail, found.runs, found.damaged, found.committed) == (None, 0, (), False, 0)
        assert log.committed.log_id == LogReader(tmp_path, CHANNEL).snapshot().log_id == LOG_ID


def test_everything_is_found_again(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        log.persist(b"a ballot")
        log.append(3, 0, numbered(0, 5))
        log.append(4, 5, [])
        log.append(7, 5, numbered(5, 5))
        log.append(8, 10, [])
    with open_replica(tmp_path) as log:
        found = log.recovered
        assert (found.ballot, found.tail, found.first_retained) == (b"a ballot", 10, 0)
        assert found.runs == ((3, 0), (7, 5), (8, 10))
        assert log.tail == 10


def test_reads_are_limited_and_give_at_least_one(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        log.append(1, 0, [b"12345"] * 10, origin=4)
        assert log.read(2, 3, 1 << 20) == (b"12345",) * 3
        assert log.read(0, 99, 11) == (b"12345",) * 2
        assert log.read(0, 99, 1) == (b"12345",)
        assert log.read(10, 9, 99) == ()
        assert [(event.seq, event.origin) for event in log.read_events(4, 2, 99)] == [(4, 4), (5, 4)]


def test_checksums_are_equal_whatever_the_files_look_like(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as one, open_replica(tmp_path / "b", seal_bytes=200) as other:
        one.append(1, 0, numbered(0, 30))
        for first in range(0, 30, 3):
            other.append(1, first, numbered(first, 3))
            other.sync()
        other.commit_to(20)
        other.committed.seal()
        assert one.checksum(0, 30) == other.checksum(0, 30)
        assert one.checksum(4, 17) == other.checksum(4, 17) != other.checksum(4, 18)
        other.set_aside(29)
        other.append(2, 29, [b"."])
        assert one.checksum(0, 30) != other.checksum(0, 30)
        assert one.checksum(0, 29) == other.checksum(0, 29)


def test_a_checksum_tells_where_payloads_end(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as one, open_replica(tmp_path / "b") as other:
        one.append(1, 0, [b"ab", b"c"])
        other.append(1, 0, [b"a", b"bc"])
        assert one.checksum(0, 2) != other.checksum(0, 2)


def test_committed_events_are_an_ordinary_log(tmp_path: Path) -> None:
    clock = Clock()
    with open_replica(tmp_path, clock=clock, seal_bytes=300, retention=Retention(max_events=30)) as log:
        for first in range(0, 100, 10):
            log.append(1, first, numbered(first, 10))
        log.sync()
        tail = log.committed.tail(0)
        log.commit_to(95)
        assert payloads(tail.take(200)) == numbered(0, 95)
        assert (log.committed.next_seq, log.tail) == (95, 100)
        clock.forward(4_000)
        log.keep()
        assert log.committed.stats.upkeep_failures == 0
        snapshot = LogReader(tmp_path, CHANNEL).snapshot()
        assert (snapshot.first, snapshot.end) == (log.first_retained, 95)
        assert 50 < snapshot.first <= 70
        rows = [row["payload"] for split in snapshot.splits(rows=7) for b in read_split(split) for row in b.to_pylist()]
        assert rows == numbered(snapshot.first, 95 - snapshot.first)
        assert log.committed.verify() == []
        assert log.quick_from == snapshot.sealed_end
    with open_replica(tmp_path) as log:
        assert log.recovered.committed == 95
        assert log.recovered.first_retained == snapshot.first


def test_nothing_is_appended_beside_the_core(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log, pytest.raises(LogError, match="through its leader"):
        log.committed.append(b"x")


def test_the_background_thread_seals(tmp_path: Path) -> None:
    with ReplicatedLog.open(tmp_path, CHANNEL, LOG_ID, LogConfig(seal_bytes=300)) as log:
        for first in range(0, 40, 10):
            log.append(1, first, numbered(first, 10))
        log.sync()
        log.commit_to(40)
        log.append(1, 40, numbered(40, 10))
        reader, waited = LogReader(tmp_path, CHANNEL), 0.0
        while not reader.snapshot().segments:
            assert waited < PATIENCE_S
            log.committed.wait_beyond(40, 0.05)
            waited += 0.05
    log.close()


def test_a_log_that_cannot_be_moved_away_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_replica(tmp_path).close()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(LogError, match="cannot move away") as caught:
            put_aside(tmp_path, CHANNEL)
    assert caught.value.fault is LogFault.READ_ONLY
    moved = put_aside(tmp_path, CHANNEL)
    assert moved is not None
    assert moved.is_dir()
    assert put_aside(tmp_path, CHANNEL) is None
