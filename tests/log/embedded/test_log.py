"""When the embedded log seals, compacts and expires; the rest of it is tests/log/test_log.py and test_backend.py."""

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import Retention, interval
from meshbus.log.embedded import log as module
from meshbus.log.embedded.upkeep import seal
from meshbus.log.files import Files
from meshbus.log.reader import LogReader
from tests.log.making import CHANNEL, NOW, Clock, in_files, numbered, open_log, payloads
from tests.log.smalldisk import SmallDisk


def test_a_log_seals_itself_by_size_and_by_age(tmp_path: Path) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock, seal_bytes=300, seal_age_s=60) as log:
        log.append_batch([b"x" * 400])
        log.keep()
        assert [segment.end for segment in log.snapshot().segments] == [1]
        log.append(b"small")
        log.keep()
        assert len(log.snapshot().segments) == 1
        clock.forward(61)
        log.keep()
        assert [segment.end for segment in log.snapshot().segments] == [1, 2]
        clock.forward(61)
        log.keep()
        assert len(log.snapshot().segments) == 2, "nothing came of an empty hot file"


def test_memory_is_released_after_sealing_and_only_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[int] = []
    with open_log(tmp_path, clock=(clock := Clock()), seal_age_s=10) as log:
        monkeypatch.setattr(module, "release_memory", lambda: released.append(log.stats.seals))
        log.append_batch(numbered(0, 3))
        log.keep()
        assert released == []
        clock.forward(11)
        log.keep()
        log.keep()
        assert released == [1]


def test_keeping_compacts_and_expires(tmp_path: Path) -> None:
    with open_log(tmp_path, retention=Retention(max_events=14)) as log:
        for first in range(0, 12, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
        log.keep()
        assert (log.stats.compactions, log.first_seq) == (1, 0)
        log.append_batch(numbered(12, 14))
        log.keep()
        assert (log.first_seq, log.stats.expired) == (12, 12)


def test_a_full_disk_does_not_keep_retention_from_making_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    with open_log(tmp_path, seal_bytes=100, retention=Retention(max_events=3)) as log:
        monkeypatch.setattr(module, "seal", full)
        for first in range(0, 12, 3):
            log.append_batch(numbered(first, 3), src=1)
        log.keep()
        assert log.first_seq == 9


def test_without_pyarrow_sealing_waits_and_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "has_arrow", lambda: False)
    with open_log(tmp_path, seal_bytes=100) as log:
        for first in range(0, 20, 5):
            log.append_batch(numbered(first, 5), src=1)
            log.keep()
        assert payloads(log.read_range(0, 20)) == numbered(0, 20)
        assert caplog.text.count("sealing needs pyarrow") == 1
        monkeypatch.undo()
        log.keep()
        assert payloads(log.read_range(0, 20)) == numbered(0, 20)
        assert log.stats.seals


def test_a_backlog_is_reported_once_and_sealed_without_compressing_payloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    events = [b"%d" % number + bytes(50) for number in range(20)]
    with open_log(tmp_path, seal_bytes=100) as log:
        for first in range(0, 20, 5):
            log.append_batch(events[first : first + 5], src=1)
        left: list[int] = []

        def watched(*args: Any, **options: Any) -> Any:
            left.append(log.stats.unsealed)
            return seal(*args, **options)

        monkeypatch.setattr(module, "seal", watched)
        log.keep()
        log.keep()
        assert left == [20, 15, 10, 5]
        assert (log.stats.seals, log.stats.seals_behind, log.stats.unsealed) == (4, 3, 0)
        assert caplog.text.count("sealing is behind by 20 events") == 1
        assert payloads(log.read_range(0, 20)) == events
        found = [compression_of(segment.path) for segment in log.snapshot().segments]
        assert found == ["UNCOMPRESSED"] * 3 + ["ZSTD"]


def test_sealing_that_falls_behind_again_and_again_is_told_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with open_log(tmp_path, seal_bytes=100, clock=clock) as log:
        for _ in range(5):
            for _ in range(3):
                log.append_batch([bytes(200)] * 5)
            log.keep()  # seals all of it
            clock.forward(13)
        assert caplog.text.count("sealing is behind") == 1
        for _ in range(3):
            log.append_batch([bytes(200)] * 5)
        log.keep()
        assert caplog.text.count("sealing is behind") == 2


def compression_of(path: Path) -> str:
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return str(next(column.compression for column in columns if column.path_in_schema == "payload"))


def test_what_fails_in_the_background_is_counted_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    with open_log(tmp_path, seal_bytes=100) as log:
        log.append_batch([b"x" * 200])
        monkeypatch.setattr(module, "seal", full)
        log.keep()
        assert log.stats.upkeep_failures == 1
        assert "free some space" in caplog.text
        assert payloads(log.read_range(0, 1)) == [b"x" * 200]
        monkeypatch.undo()
        log.keep()
        assert log.stats.seals == 1


def test_a_log_on_a_small_disk_recovers_by_itself_within_the_grace(tmp_path: Path) -> None:
    clock = Clock()
    disk = SmallDisk(tmp_path, 6 << 20)
    limits = Retention(max_bytes=3 << 20)
    with open_log(tmp_path, files=disk, clock=clock, retention=limits, grace_s=600) as log:
        for _ in range(200):
            log.append(os.urandom(64 << 10))
            log.keep()
            assert disk.used() <= 4 << 20, "what is kept for readers counts too"
        assert (log.stats.refused, log.stats.upkeep_failures) == (0, 0)
        assert log.verify() == []
    assert clock.now == NOW, "no grace period ended meanwhile"


def test_appends_are_refused_while_the_disk_is_full_and_reading_continues(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 2 << 20)
    with open_log(tmp_path, files=disk, seal_bytes=128 << 10) as log:

        def fill() -> None:
            while True:
                log.append(os.urandom(32 << 10))
                log.keep()

        with pytest.raises(LogError, match="free some space") as caught:
            fill()
        assert caught.value.fault is LogFault.NO_SPACE
        there = log.next_seq
        log.keep()
        with pytest.raises(LogError, match="free some space"):
            log.append(os.urandom(256 << 10))
        assert len(payloads(log.read_range(0, there))) == there
        assert len(payloads(LogReader(tmp_path, CHANNEL).snapshot().events())) == there
        disk.room *= 2
        assert log.append(b"there is room again") == there
        log.keep()
        assert log.verify() == []


def test_what_expires_on_a_full_disk_goes_although_the_manifest_needs_room_first(tmp_path: Path) -> None:
    clock = Clock()
    disk = SmallDisk(tmp_path, 1 << 20)
    limits = Retention(max_age_s=60)
    with open_log(tmp_path, files=disk, clock=clock, retention=limits, grace_s=600) as log:
        for _ in range(3):
            log.append(os.urandom(32 << 10))
            log.seal()
        log.keep()
        disk.room = disk.used()  # someone else has filled the disk
        with pytest.raises(LogError, match="free some space"):
            log.append(os.urandom(32 << 10))
        clock.forward(61)
        log.keep()
        assert log.first_seq == 3
        assert log.append(os.urandom(32 << 10)) == 3
        log.keep()
        assert log.stats.upkeep_failures == 0
        assert (next(tmp_path.iterdir()) / "_spare").exists()


def test_complete_hot_files_are_sealed_before_the_rest_is_synced(tmp_path: Path) -> None:
    clock = Clock()
    steps: list[str] = []
    names: dict[int, str] = {}

    class Watched(Files):
        def create(self, path: Path) -> int:
            handle = super().create(path)
            names[handle] = path.name.partition(".")[2]
            return handle

        def fsync(self, handle: int) -> None:
            steps.append(names[handle])
            super().fsync(handle)

    with open_log(tmp_path, clock=clock, files=Watched(), fsync=interval(1), seal_bytes=300) as log:
        for number in range(3):
            log.append_batch(numbered(3 * number, 3), src=1)
        assert len(in_files(log).hot) == 2
        clock.forward(2)
        steps.clear()
        log.keep()
        assert steps == ["parquet.aside", "json.aside", "hot"]
        assert log.durable_seq == log.next_seq == 9


@pytest.mark.parametrize("waiting", [1, 2])
def test_the_interval_of_the_policy_holds_although_sealing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    clock = Clock()
    with open_log(tmp_path, clock=clock, fsync=interval(1), seal_bytes=300) as log:
        for number in range(waiting + 1):
            log.append_batch(numbered(3 * number, 3), src=1)
        monkeypatch.setattr("meshbus.log.embedded.log.seal", fail)
        clock.forward(2)
        log.keep()
        assert log.durable_seq == log.next_seq
        assert log.stats.upkeep_failures == 1


def test_a_wall_clock_that_is_set_back_delays_neither_sync_nor_seal_nor_sweep(tmp_path: Path) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock, fsync=interval(1), seal_age_s=60, grace_s=30) as log:
        log.append(b"x")
        clock.set_by_hand(-3600)
        clock.forward(1)
        log.keep()
        assert log.durable_seq == 1
        log.append(b"w")
        clock.set_by_hand(-3600)
        clock.forward(1)
        log.keep()
        assert log.durable_seq == 2, "also after the first sync"
        clock.forward(60)
        log.keep()
        assert log.stats.seals == 1
        log.append(b"y")
        log.seal()
        log.compact()
        clock.set_by_hand(-3600)
        log.keep()
        assert in_files(log).manifest.retired
        clock.forward(31)
        log.keep()
        assert not in_files(log).manifest.retired


def test_a_wall_clock_that_is_set_ahead_takes_nothing_from_running_readers(tmp_path: Path) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock, grace_s=30) as log:
        for _ in range(2):
            log.append(b"x")
            log.seal()
        log.compact()
        log.keep()
        clock.set_by_hand(3600)
        log.keep()
        assert len(in_files(log).manifest.retired) == 2


def test_a_bug_in_the_upkeep_of_one_log_does_not_end_the_upkeep_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object, **_options: object) -> None:
        raise ZeroDivisionError("a bug")

    with open_log(tmp_path, seal_bytes=100) as log:
        log.append_batch([b"x" * 200])
        monkeypatch.setattr(module, "seal", bug)
        log.keep()
        assert log.stats.upkeep_failures == 1
        assert "failed unexpectedly" in caplog.text
        monkeypatch.undo()
        log.keep()
        assert log.stats.seals == 1
