"""Which batches a replicated log has."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbus.engine.replicas.records import AppendEvents
from meshbus.errors import LocalProtocolError
from meshbus.log.once import BATCH, PLACE, WRITER
from meshbus.log.replicated import ReplicatedLog
from meshbus.node.replicas import replicaonce
from meshbus.node.replicas.replicadisk import ReplicaDisk
from meshbus.node.replicas.replicaonce import Writers
from meshbus.wire.record import Record, pack_record


def batch(writer: str, number: int, rows: int) -> list[bytes]:
    return [
        pack_record(
            Record(b"x", 1, 1, {WRITER: writer.encode(), BATCH: str(number).encode(), PLACE: str(row).encode()})
        )
        for row in range(rows)
    ]


async def test_what_was_appended_is_known_before_and_after_a_restart(tmp_path: Path) -> None:
    disk = ReplicaDisk(ReplicatedLog.open(tmp_path, "alarms", bytes(16), background=False))
    writers = Writers(disk)
    rows = batch("w", 4, 5)
    assert await writers.records_done(rows) == 0
    other = [pack_record(Record(b"plain", 1, 1))] * 3000
    for number, records in enumerate((rows[:3], other, batch("v", 1, 2))):
        disk.carry_out([AppendEvents(number + 1, 1, disk.log.tail, tuple(records))])
        writers.stored(records)
    for known in (writers, Writers(disk)):
        assert await known.records_done(rows) == 3
        assert await known.records_done(batch("w", 3, 5)) == 5
        assert await known.records_done(batch("w", 5, 5)) == 0
        assert await known.records_done(batch("v", 1, 2)) == 2
        assert await known.records_done(batch("nobody", 1, 2)) == 0
        assert await known.records_done([]) == 0
    writers.forget()
    assert await writers.records_done(rows) == 3
    await disk.close()


async def test_writers_are_remembered_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicaonce, "MAX_WRITERS", 3)
    disk = ReplicaDisk(ReplicatedLog.open(tmp_path, "alarms", bytes(16), background=False))
    writers = Writers(disk)
    for number in range(10):
        records = batch(f"w{number}", 1, 2)
        disk.carry_out([AppendEvents(number + 1, 1, disk.log.tail, tuple(records))])
        writers.stored(records)
    assert len(writers._last) == 3
    assert await writers.records_done(batch("w0", 1, 2)) == 2
    await disk.close()


async def test_records_without_the_headers_of_one_writer_are_refused(tmp_path: Path) -> None:
    disk = ReplicaDisk(ReplicatedLog.open(tmp_path, "alarms", bytes(16), background=False))
    plain = pack_record(Record(b"plain", 1, 1))
    for records in ([plain], [*batch("w", 1, 1), *batch("v", 1, 1)], [pack_record(Record(b"", 1, 1, {WRITER: b"w"}))]):
        with pytest.raises(LocalProtocolError, match="use publish_once"):
            await Writers(disk).records_done(records)
    await disk.close()
