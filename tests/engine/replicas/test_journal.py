from __future__ import annotations

import msgspec
import pytest

from meshbus.engine.replicas import recent
from meshbus.engine.replicas.journal import Journal, Recovered
from meshbus.engine.replicas.records import AppendEvents, Ballot, Out, PersistBallot, SetAside, SkipTo
from tests.engine.replicas.memorydisk import MemoryDisk

BALLOT = Ballot(incarnation=7, promised=3, leader=1)


def journal(found: Recovered | None = None) -> tuple[Journal, Out, MemoryDisk]:
    disk = MemoryDisk()
    return Journal(found or Recovered(), BALLOT, disk), Out(), disk


def test_writes_are_numbered_and_say_what_to_do() -> None:
    one, out, _ = journal()
    later = msgspec.structs.replace(BALLOT, promised=4)
    assert [one.persist(later, out), one.append(4, [b"a", b"b"], out), one.set_aside(1, out)] == [1, 2, 3]
    assert one.skip_to(9, 4, out) == 4
    assert out.writes == [
        PersistBallot(1, later),
        AppendEvents(2, 4, 0, (b"a", b"b")),
        SetAside(3, 1),
        SkipTo(4, 9, 4),
    ]
    assert (one.tail, one.first_retained, one.runs.epoch_at(8)) == (9, 9, 4)


def test_only_what_is_synced_counts_as_durable() -> None:
    one, out, _ = journal()
    first = one.append(3, [b"a"], out)
    one.append(4, [b"b"], out)
    assert (one.synced.tail, one.synced.last_epoch) == (0, 0)
    one.durable(first)
    assert (one.synced.number, one.synced.tail, one.synced.last_epoch) == (1, 1, 3)
    one.durable(99)
    assert (one.synced.tail, one.synced.last_epoch) == (2, 4)


def test_events_that_will_be_set_aside_are_not_stable_although_they_are_on_disk() -> None:
    one, out, _ = journal()
    one.durable(one.append(3, [b"a", b"b", b"c"], out))
    assert one.stable_tail == 3
    one.set_aside(1, out)
    last = one.append(4, [b"x", b"y", b"z"], out)
    assert (one.synced.tail, one.stable_tail) == (3, 1)
    one.durable(last)
    assert one.stable_tail == 4


def test_new_events_are_read_from_memory_and_old_ones_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "KEPT_BYTES", 3)
    one, _, disk = journal()
    for payload in (b"aa", b"bb", b"cc", b"dd"):
        out = Out()
        one.append(1, [payload], out)
        assert one.read(one.tail - 1, 1, 100, 4) == (payload,), "before the disk has it"
        disk.write(out.writes[0])
    assert one.read(0, 10, 100, 4)[:2] == (b"aa", b"bb")
    assert one.read(0, 10, 12, 4) == (b"aa", b"bb")
    assert one.read(3, 10, 100, 4) == (b"dd",)
    out = Out()
    one.set_aside(3, out)
    one.append(2, [b"ee"], out)
    assert one.read(3, 10, 100, 4) == (b"ee",)


def test_retention_moves_the_first_event() -> None:
    one, _, _ = journal(Recovered(tail=10, runs=((1, 0), (2, 5))))
    one.retained(7)
    one.retained(3)
    assert (one.first_retained, one.runs.epoch_at(6)) == (7, 2)
    one.retained(99)
    assert one.first_retained == 10
