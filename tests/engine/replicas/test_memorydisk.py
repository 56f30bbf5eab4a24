from __future__ import annotations

import random

import pytest

from meshbus.engine.replicas.records import AppendEvents, Ballot, PersistBallot, SetAside, SkipTo
from tests.engine.replicas.memorydisk import MemoryDisk


def test_what_is_not_synced_may_be_lost_from_the_end_on() -> None:
    seen = set()
    for seed in range(30):
        disk = MemoryDisk()
        for number in range(1, 5):
            disk.write(AppendEvents(number, 1, number - 1, (b"x",)))
        disk.sync(2)
        disk.lose_power(random.Random(seed))
        seen.add(disk.content.tail)
    assert seen == {2, 3, 4}


def test_what_was_written_is_found_again() -> None:
    disk = MemoryDisk()
    ballot = Ballot(incarnation=1, promised=4)
    writes = (
        PersistBallot(1, ballot),
        AppendEvents(2, 1, 0, (b"a", b"b")),
        AppendEvents(3, 2, 2, ()),
        AppendEvents(4, 3, 2, (b"c", b"d")),
        SetAside(5, 2),
    )
    for write in writes:
        disk.write(write)
    found = disk.content.recovered()
    assert (found.ballot, found.tail, found.runs) == (ballot, 2, ((1, 0), (3, 2)))
    assert disk.content.aside == [(2, 3, b"c"), (3, 3, b"d")]
    disk.write(SkipTo(6, 9, 3))
    disk.write(AppendEvents(7, 5, 9, (b"e",)))
    found = disk.content.recovered()
    assert (found.first_retained, found.tail, found.runs) == (9, 10, ((3, 8), (5, 9)))
    assert disk.read(9, 5, 100) == (b"e",)


def test_damage_takes_what_was_synced() -> None:
    disk = MemoryDisk()
    disk.write(AppendEvents(1, 1, 0, (b"a", b"b", b"c")))
    disk.sync(1)
    disk.damage(2)
    disk.lose_power(random.Random(1))
    assert disk.content.recovered().tail == 1


def test_retention_removes_what_is_synced() -> None:
    disk = MemoryDisk()
    disk.write(AppendEvents(1, 1, 0, (b"a", b"b")))
    disk.write(AppendEvents(2, 2, 2, (b"c",)))
    disk.sync(1)
    disk.trim(3)
    assert (disk.content.first, disk.content.recovered().runs) == (2, ((1, 1), (2, 2)))
    with pytest.raises(AssertionError, match="only events of the log"):
        disk.read(1, 1, 100)
