"""The disk of a replicated channel: order, group commit, failures, and reading ahead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from meshbus.engine.replicas.records import AppendEvents, Ballot, PersistBallot, SetAside, SkipTo
from meshbus.errors import LogError, LogFault
from meshbus.log.replicated import ReplicatedLog
from meshbus.node.replicas import replicadisk
from meshbus.node.replicas.replicadisk import ReplicaDisk
from meshbus.wire.record import Record, pack_record
from tests.node.replicas.replicatrio import until

LOG_ID = bytes(16)
BALLOT = Ballot(incarnation=7, promised=3, leader=1 << 63)


def record(text: str) -> bytes:
    return pack_record(Record(text.encode(), 5, 1 << 63, {"k": b"v"} if text.startswith("h") else None))


def opened(folder: Path) -> ReplicaDisk:
    return ReplicaDisk(ReplicatedLog.open(folder, "alarms", LOG_ID, background=False))


async def test_writes_are_carried_out_in_order_and_found_again(tmp_path: Path) -> None:
    disk = opened(tmp_path)
    assert disk.recovered.ballot is None
    durable: list[int] = []
    disk.on_durable = durable.append
    disk.carry_out(
        [
            PersistBallot(1, BALLOT),
            AppendEvents(2, 3, 0, ()),
            AppendEvents(3, 3, 0, (record("a"), record("hot"))),
            AppendEvents(4, 3, 2, (record("c"),)),
            SetAside(5, 2),
            AppendEvents(6, 4, 2, (record("d"),)),
        ]
    )
    await until(lambda: durable == [6])
    assert disk.read(0, 9, 10_000) == (record("a"), record("hot"), record("d"))
    disk.commit_to(3)
    assert [
        (event.payload, event.ts_ns, event.origin, event.headers) for event in disk.log.committed.read_range(0, 3)
    ] == [
        (b"a", 5, 1 << 63, None),
        (b"hot", 5, 1 << 63, {"k": b"v"}),
        (b"d", 5, 1 << 63, None),
    ]
    await disk.close()
    again = opened(tmp_path)
    found = again.recovered
    assert (found.ballot, found.tail, found.damaged) == (BALLOT, 3, False)
    assert found.runs == ((3, 0), (4, 2))
    again.carry_out([SkipTo(1, 10, 4)])
    await until(lambda: again.log.tail == 10)
    await again.close()


async def test_one_sync_serves_everything_that_was_written_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = opened(tmp_path)
    durable: list[int] = []
    disk.on_durable = durable.append
    syncs = 0
    sync = disk.log.sync

    def counted() -> None:
        nonlocal syncs
        syncs += 1
        sync()

    monkeypatch.setattr(disk.log, "sync", counted)
    for number in range(1, 101):
        disk.carry_out([AppendEvents(number, 1, number - 1, (record(str(number)),))])
    await until(lambda: durable[-1:] == [100])
    assert syncs <= 2
    await disk.close()


@pytest.mark.parametrize("broken", ["append", "sync", "commit_to"])
async def test_after_a_failure_nothing_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    disk = opened(tmp_path)
    problems: list[str] = []
    disk.on_failure = problems.append

    def refuse(*_: object, **__: object) -> None:
        raise LogError(LogFault.NO_SPACE, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk.log, broken, refuse)
        disk.carry_out([AppendEvents(1, 1, 0, (record("a"),))])
        disk.commit_to(1)
        await until(lambda: problems == ["no space left on device"])
    tail = disk.log.tail
    disk.carry_out([AppendEvents(2, 1, 1, (record("b"),))])
    disk.commit_to(2)
    await asyncio.sleep(0)
    assert (disk.log.tail, len(problems)) == (tail, 1)
    await disk.close()


async def test_old_events_are_read_ahead_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicadisk, "AHEAD_EVENTS", 40)
    disk = opened(tmp_path)
    records = tuple(record(str(number)) for number in range(100))
    disk.carry_out([AppendEvents(1, 1, 0, records)])
    monkeypatch.setattr(type(disk.log), "quick_from", 90)  # as if the others were sealed
    got: list[bytes] = []

    def more() -> bool:
        got.extend(disk.read(len(got), 7, 10_000))
        return len(got) == 100

    assert disk.read(0, 7, 10_000) == ()
    await until(more)
    assert tuple(got) == records
    monkeypatch.setattr(
        disk.log, "read_events", lambda *_: (_ for _ in ()).throw(LogError(LogFault.CORRUPT, "damaged"))
    )
    assert disk.read(95, 1, 1) == ()
    monkeypatch.undo()
    await disk.close()
