"""When the embedded log seals, compacts and expires; the rest of it is tests/log/test_log.py and test_backend.py."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from meshbus.log.durability import Retention
from meshbus.log.embedded import log as module
from meshbus.log.embedded.upkeep import seal
from tests.log.making import Clock, numbered, open_log, payloads


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
    with open_log(tmp_path, seal_bytes=100) as log:
        for first in range(0, 20, 5):
            log.append_batch(numbered(first, 5), src=1)
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
        assert payloads(log.read_range(0, 20)) == numbered(0, 20)
        found = [compression_of(segment.path) for segment in log.snapshot().segments]
        assert found == ["UNCOMPRESSED"] * 3 + ["ZSTD"]


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
