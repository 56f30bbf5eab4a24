"""A crash at any point, with any loss that a disk allows: what was promised is there, once and in order.

Each policy runs one life of a log that does everything a log does. Every prefix of what it did to the disk is then left
as a crash would leave it, read as it is, opened, written to, and opened again.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from meshbus.log.durability import NEVER, Fsync, Retention, every_n
from meshbus.log.log import RedexFile
from meshbus.log.reader import LogReader
from tests.log.crash import Disk, Image, Loss, Recorder, Step, Unsynced, lay_out
from tests.log.making import CHANNEL, Clock, in_files, kill, numbered, open_log

POLICIES = [NEVER, every_n(1), every_n(4)]
PLAIN_LOSSES = [loss for loss in Loss if loss is not Loss.RANDOM]


class Promise(msgspec.Struct):
    """What is guaranteed from a moment on, whatever happens to the machine."""

    begun: int = 0
    """Events whose append had begun: no more than these can ever be found."""
    kept: int = 0
    """Events that the policy had promised to keep."""
    expired: int = 0
    """Events that retention may have removed."""


def live(recorder: Recorder, root: Path, fsync: Fsync) -> None:
    """One scenario: appends of both kinds, rolls, syncs, seals, a compaction, retention, a sweep, restarts, a crash."""
    promise = Promise()
    clock = Clock()

    def say(**changes: int) -> None:
        for name, value in changes.items():
            setattr(promise, name, value)
        recorder.mark(msgspec.json.encode(promise))

    def append(log: RedexFile, count: int) -> None:
        say(begun=log.next_seq + count)
        events = numbered(log.next_seq, count)
        if count == 1:
            log.append(events[0])
        else:
            log.append_batch(events, src=1, headers={"a": b"1"} if count == 3 else None)
        if fsync.events is not None:  # computed here, not asked of the log: fewer than n may be lost
            say(kept=max(promise.kept, log.next_seq - fsync.events + 1))

    def settings() -> dict[str, object]:
        return {"fsync": fsync, "seal_bytes": 600, "grace_s": 5, "retention": Retention(max_events=14)}

    with open_log(root, files=recorder, clock=clock, **settings()) as log:
        for count in (1, 2, 1):
            append(log, count)
        log.sync()
        say(kept=log.next_seq)
        append(log, 3)
        append(log, 1)
        log.seal()
        say(kept=log.next_seq)
        for count in (1, 2):
            append(log, count)
            log.seal()
            say(kept=log.next_seq)
        log.compact()
        append(log, 9)
        append(log, 40)
        append(log, 2)  # the hot file before it is full: a new one begins
        assert len(in_files(log).hot) > 1
        say(expired=log.next_seq - 14)
        clock.forward(10)
        log.keep()
        say(kept=log.next_seq - 2)  # what was sealed
    say(kept=log.next_seq)
    clock.forward(10)
    with open_log(root, files=recorder, clock=clock, **settings()) as log:
        append(log, 2)
        log.expire()
        append(log, 1)
    with open_log(root, files=recorder, clock=clock, **settings()) as log:
        append(log, 60)
        append(log, 2)  # in a hot file whose name nobody has synced
        assert len(in_files(log).hot) > 1
        kill(log)
    with open_log(root, files=recorder, clock=clock, **settings()) as log:
        say(kept=log.next_seq)  # what opening finds is synced
        append(log, 1)


class Crash(NamedTuple):
    image: Path
    promise: Promise
    where: str


def crashes(steps: list[Step], base: Path, target: Path, losses: list[tuple[Loss, int]]) -> Iterator[Crash]:
    """Yield every prefix of a recording, with every kind of loss."""
    disk = Disk(base)
    promise = Promise()
    seen: set[object] = set()
    for number, step in enumerate(steps):
        if step.what == "mark":
            promise = msgspec.json.decode(step.data, type=Promise)
            continue
        disk.take(step)
        for loss, seed in losses:
            image = disk.left(loss, random.Random(seed * 1_000 + number))
            what = (image, msgspec.json.encode(promise))
            if what not in seen:  # many losses leave the same
                seen.add(what)
                place = target / f"{number}-{loss}-{seed}"
                lay_out(image, place)
                yield Crash(place, promise, f"after step {number} ({step.what} {step.path}), {loss} {seed}")


def rows_of(batches: Iterator[object]) -> list[tuple[int, bytes]]:
    return [(row["seq"], row["payload"]) for batch in batches for row in batch.to_pylist()]  # type: ignore[attr-defined]


def check_rows(rows: list[tuple[int, bytes]], promise: Promise, where: str) -> None:
    seqs = [seq for seq, _ in rows]
    first = seqs[0] if seqs else promise.expired
    assert seqs == list(range(first, first + len(seqs))), f"{where}: a row is missing, twice or out of order"
    assert [payload for _, payload in rows] == numbered(first, len(rows)), where
    assert first <= promise.expired, f"{where}: rows {promise.expired} to {first} are gone"
    assert first + len(seqs) >= promise.kept, f"{where}: {promise.kept} were promised, {first + len(seqs)} are there"
    assert first + len(seqs) <= promise.begun, f"{where}: rows that nobody appended"


def check(crash: Crash) -> None:
    root, promise = crash.image / "root", crash.promise
    if promise.kept or list(root.glob("*/_manifest.json")):
        check_rows(
            rows_of(LogReader(root, CHANNEL).snapshot().batches(columns=["seq", "payload"])), promise, crash.where
        )
    sizes = {path: path.stat().st_size for path in root.glob("*/_hot/*.hot")}
    with open_log(root, files=Unsynced()) as log:
        cut = sum(size - path.stat().st_size for path, size in sizes.items() if path.exists())
        assert log.report.cut_bytes >= cut, f"{crash.where}: something was cut and not reported"
        rows = rows_of(log.read_batches(columns=["seq", "payload"]))
        check_rows(rows, promise, crash.where)
        assert log.verify() == [], crash.where
        visible = {path.name for path in root.glob("*/*.parquet")}
        named = {segment.path.name for segment in log.snapshot().segments}
        assert visible == named, f"{crash.where}: other readers of Parquet see something else"
        log.append(b"goes on")
    with open_log(root, files=Unsynced()) as log:
        assert log.report.clean, f"{crash.where}: {log.report} when it was opened again"
        assert [event.payload for event in log.read_range(log.first_seq, log.next_seq)] == [
            *(payload for _, payload in rows),
            b"goes on",
        ], crash.where


def losses_of(seeds: int) -> list[tuple[Loss, int]]:
    return [*((loss, 0) for loss in PLAIN_LOSSES), *((Loss.RANDOM, seed) for seed in range(1, seeds + 1))]


def recorded(folder: Path, fsync: Fsync) -> tuple[list[Step], Path]:
    (folder / "live").mkdir()
    (folder / "empty").mkdir()
    recorder = Recorder(folder / "live")
    live(recorder, folder / "live" / "root", fsync)
    kinds = {step.what for step in recorder.steps}
    assert kinds == {"mkdir", "create", "write", "fsync", "rename", "remove", "fsync_folder", "truncate", "mark"}
    return recorder.steps, folder / "empty"


@pytest.mark.parametrize("fsync", POLICIES, ids=["never", "every 1", "every 4"])
def test_what_was_promised_survives_every_crash(tmp_path: Path, fsync: Fsync) -> None:
    steps, empty = recorded(tmp_path, fsync)
    (tmp_path / "images").mkdir()
    for crash in crashes(steps, empty, tmp_path / "images", losses_of(3)):
        check(crash)


def twice(folder: Path, fsync: Fsync, every: int, seeds: int) -> None:
    """Crash, and crash again at every step of the recovery."""
    steps, empty = recorded(folder, fsync)
    for name in ("images", "again"):
        (folder / name).mkdir()
    for number, crash in enumerate(crashes(steps, empty, folder / "images", losses_of(seeds))):
        if number % every:
            continue
        disk = Disk(crash.image)
        recorder = Recorder(crash.image)
        with open_log(crash.image / "root", files=recorder):
            pass
        seen: set[Image] = set()
        for count, step in enumerate(recorder.steps):
            disk.take(step)
            for loss, seed in losses_of(seeds):
                image = disk.left(loss, random.Random(seed))
                if image in seen:
                    continue
                seen.add(image)
                place = folder / "again" / f"{number}-{count}-{loss}-{seed}"
                lay_out(image, place)
                check(Crash(place, crash.promise, f"{crash.where}, then recovery step {count} ({step.what}), {loss}"))


def test_a_crash_while_coming_back_from_a_crash_loses_nothing_either(tmp_path: Path) -> None:
    twice(tmp_path, every_n(1), every=23, seeds=0)


@pytest.mark.soak
@pytest.mark.parametrize("fsync", POLICIES, ids=["never", "every 1", "every 4"])
def test_many_more_losses(tmp_path: Path, fsync: Fsync) -> None:
    (tmp_path / "once").mkdir()
    (tmp_path / "once" / "images").mkdir()
    steps, empty = recorded(tmp_path / "once", fsync)
    for crash in crashes(steps, empty, tmp_path / "once" / "images", losses_of(25)):
        check(crash)
    (tmp_path / "twice").mkdir()
    twice(tmp_path / "twice", fsync, every=13, seeds=2)
