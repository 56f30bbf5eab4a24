"""Segments move to object storage, here a directory: nothing is lost at any crash, fault or damage in between.

The steps against a real server are in tests/log/test_objectstorage.py.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import Retention, Tiering, every_n
from meshbus.log.embedded import tier as tier_module
from meshbus.log.log import RedexFile
from meshbus.log.objectstore import StoredObject, list_objects, put_object, verify_object
from meshbus.log.reader import LogReader, read_split
from tests.log.faults import Faults, each_fault, name_of
from tests.log.making import CHANNEL, Clock, in_files, kill, numbered, open_log, payloads, writer_of


class World:
    """A log whose segments move by age, its object storage, and what was appended."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.root, self.store, self.clock = folder / "logs", folder / "store", Clock()
        self.appended: list[bytes] = []
        self.settings: dict[str, Any] = {
            "tier": Tiering(self.uri, after_s=60),
            "grace_s": 5,
            "fsync": every_n(1),
        } | settings
        self.log = self.open()

    @property
    def uri(self) -> str:
        return f"file://{self.store}"

    def open(self, **options: Any) -> RedexFile:
        self.log = open_log(self.root, clock=self.clock, **(self.settings | options))
        return self.log

    def restart(self) -> None:
        kill(self.log)
        self.open()

    def add_segment(self, count: int = 10) -> None:
        events = numbered(len(self.appended), count)
        self.log.append_batch(events)
        self.appended += events
        self.log.seal()

    def places(self) -> list[str]:
        return [segment.place for segment in self.log.snapshot().segments]

    def objects(self) -> list[Path]:
        return sorted(path for path in self.store.rglob("*") if path.is_file())

    def check(self) -> None:
        """Every reader gets what was appended, and another process too."""
        first = self.log.first_seq
        assert payloads(self.log.read_range(first, self.log.next_seq)) == self.appended[first:]
        snapshot = LogReader(self.root, CHANNEL).snapshot()
        assert payloads(snapshot.events()) == self.appended[first:]
        batches = [batch for split in snapshot.splits(rows=4) for batch in read_split(split, ["payload"])]
        assert [row for batch in batches for row in batch.column("payload").to_pylist()] == self.appended[first:]
        assert self.log.verify() == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_old_segments_move_and_are_read_from_where_they_are(world: World) -> None:
    world.add_segment()
    world.add_segment()
    world.clock.forward(61)
    world.add_segment()
    world.log.append_batch(numbered(30, 3))
    world.appended += numbered(30, 3)
    assert world.log.tier() == 2
    assert world.places() == ["remote", "remote", "local"]
    assert [segment.path.exists() for segment in world.log.snapshot().segments] == [False, False, True]
    world.check()
    assert world.log.stats.copied == 2
    assert world.log.stats.copied_bytes == sum(path.stat().st_size for path in world.objects())
    world.restart()
    assert world.places() == ["remote", "remote", "local"]
    world.check()
    world.log.close()


def test_nothing_moves_before_its_time(world: World) -> None:
    world.add_segment()
    world.clock.forward(60)
    assert world.log.tier() == 0
    assert world.objects() == []
    world.log.close()


def test_recent_segments_stay_local_too_while_there_is_room(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.log.close()
    for _ in range(3):
        world.open(tier=None).append_batch(numbered(len(world.appended), 10))
        world.appended += numbered(len(world.appended), 10)
        world.log.seal()
        world.log.close()
    size = sum(segment.bytes for segment in LogReader(world.root, CHANNEL).snapshot().segments)
    world.open(tier=Tiering(world.uri, after_s=0, local_bytes=size))
    world.clock.forward(1)
    assert world.log.tier() == 3
    assert world.places() == ["remote", "both", "both"], "the hot file counts too"
    world.check()
    world.log.close()


def test_too_many_local_bytes_move_segments_of_any_age(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.log.close()
    world.open(tier=Tiering(world.uri, local_bytes=4_096))
    for _ in range(3):
        world.add_segment()
    assert world.log.tier() == 3
    assert world.places() == ["remote"] * 3
    world.check()
    world.log.close()


def test_logs_without_objects_have_the_manifest_of_before(tmp_path: Path) -> None:
    plain, tiered = World(tmp_path / "plain", tier=None), World(tmp_path / "tiered")
    for world in (plain, tiered):
        world.add_segment()
    text = (in_files(plain.log).folder / "_manifest.json").read_text()
    assert "remote" not in text
    assert '"version":1' in text
    tiered.clock.forward(61)
    tiered.log.tier()
    text = (in_files(tiered.log).folder / "_manifest.json").read_text()
    assert '"version":2' in text, "an older meshbus must not take the segments for lost"
    assert not plain.log.tiers
    plain.log.close()
    tiered.log.close()


def test_a_snapshot_from_before_reads_on_after_its_files_moved(world: World) -> None:
    for _ in range(3):
        world.add_segment()
    mine, others = world.log.snapshot(), LogReader(world.root, CHANNEL).snapshot()
    splits = others.splits(rows=4)
    reading = others.events()
    start = [next(reading).payload for _ in range(5)]
    world.clock.forward(61)
    assert world.log.tier() == 3
    assert start + payloads(reading) == world.appended
    assert payloads(mine.events()) == world.appended
    assert sum(len(batch) for split in splits for batch in read_split(split)) == len(world.appended)
    world.log.close()


def test_a_tail_goes_from_objects_to_new_events(world: World) -> None:
    world.add_segment()
    world.clock.forward(61)
    world.log.tier()
    tail = world.log.tail(0)
    assert payloads(tail.take()) == world.appended
    world.add_segment(2)
    assert payloads(tail.take()) == world.appended[10:]
    world.log.close()


def test_segments_with_a_copy_are_not_merged_again(world: World) -> None:
    for _ in range(4):
        world.add_segment()
    world.clock.forward(61)
    world.log.tier()
    for _ in range(3):
        world.add_segment()
    assert world.log.compact() == 3
    assert world.places() == ["remote"] * 4 + ["local"]
    world.check()
    world.log.close()


# ── retention ───────────────────────────────────────────────────────────────────────────────


def test_what_expires_is_deleted_remotely_too_after_the_grace_period(tmp_path: Path) -> None:
    world = World(tmp_path, retention=Retention(max_age_s=1_000))
    world.add_segment()
    world.clock.forward(900)
    world.add_segment()
    world.log.tier()
    snapshot = LogReader(world.root, CHANNEL).snapshot()
    world.clock.forward(150)
    world.log.keep()
    world.log.tier()
    assert world.log.first_seq == 10
    assert payloads(snapshot.events()) == world.appended, "a running reader may finish"
    world.clock.forward(6)
    world.log.keep()
    world.log.tier()
    assert [path.name for path in world.objects()] == [segment.path.name for segment in world.log.snapshot().segments]
    with pytest.raises(LogError) as caught:
        list(snapshot.events())
    assert caught.value.fault is LogFault.RANGE_GONE
    world.check()
    world.log.close()


def test_retention_counts_a_segment_wherever_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(4):
        world.add_segment(50)
    world.clock.forward(61)
    world.log.tier()
    world.log.close()
    segments = LogReader(world.root, CHANNEL).snapshot().segments
    hot = 1_024
    world.open(retention=Retention(max_bytes=sum(segment.bytes for segment in segments[1:]) + hot), grace_s=0)
    world.log.expire()
    assert world.log.first_seq == 50
    world.check()
    world.log.close()


def test_objects_are_deleted_even_if_moving_was_switched_off(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add_segment()
    world.add_segment()
    world.clock.forward(61)
    world.log.tier()
    world.log.close()
    world.open(tier=None, retention=Retention(max_events=10), grace_s=0)
    assert world.log.tiers
    assert world.log.expire() == 10
    world.clock.forward(1)
    world.log.keep()
    world.log.keep_tier()
    assert len(world.objects()) == 1
    world.check()
    world.log.close()


def test_another_place_is_used_for_what_moves_from_now_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add_segment()
    world.clock.forward(61)
    world.log.tier()
    world.log.close()
    world.open(tier=Tiering(f"file://{tmp_path}/other", after_s=60))
    world.add_segment()
    world.clock.forward(61)
    assert world.log.tier() == 1
    assert len(world.objects()) == 1
    assert len(list_objects(f"file://{tmp_path}/other")) == 1
    world.check()
    world.log.close()


def test_a_place_that_is_gone_does_not_stop_copies_to_another(tmp_path: Path) -> None:
    world = World(tmp_path, retention=Retention(max_age_s=1_000))
    world.add_segment()
    world.clock.forward(900)
    world.log.tier()
    world.log.close()
    shutil.rmtree(world.store)
    world.store.touch()  # nothing can be deleted there
    world.open(tier=Tiering(f"file://{tmp_path}/other", after_s=60))
    world.add_segment()
    for _ in range(2):  # expire the first, and end its grace period
        world.clock.forward(101)
        world.log.keep()
    world.log.keep_tier()
    assert world.places() == ["remote"]
    assert "cannot delete file://" in world.log.stats.waits
    world.check()
    world.log.close()


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


class Killed(BaseException):
    """The end of the process, as far as the log is concerned."""


def before(function: Callable[..., Any]) -> Callable[..., Any]:
    def stop(*_: Any) -> Any:
        raise Killed

    return stop


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def stop(*arguments: Any) -> Any:
        function(*arguments)
        raise Killed

    return stop


def halfway(_: Callable[..., Any]) -> Callable[..., Any]:
    def stop(path: Path, uri: str, *_: Any) -> StoredObject:
        place = Path(uri.removeprefix("file://"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes()[:100])
        raise Killed

    return stop


@pytest.mark.parametrize(
    ("step", "cut"),
    [
        ("put_object", before),
        ("put_object", halfway),
        ("put_object", after),
        ("verify_object", after),
        ("_with_copy", before),
        ("size_of", before),
        ("size_of", after),
        ("delete_object", before),
        ("delete_object", after),
    ],
)
def test_a_crash_at_any_step_loses_nothing_and_the_next_start_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, cut: Callable[..., Any]
) -> None:
    world = World(tmp_path, retention=Retention(max_age_s=1_000))
    world.add_segment()
    world.clock.forward(900)
    world.log.tier()
    world.add_segment()
    world.clock.forward(120)
    for _ in range(2):  # expire the first, and end its grace period
        world.log.keep()
        world.clock.forward(6)
    with monkeypatch.context() as patch:
        patch.setattr(tier_module, step, cut(getattr(tier_module, step)))
        with pytest.raises(Killed):
            world.log.tier()
    world.check()
    world.restart()
    world.check()
    world.log.tier()
    assert world.places() == ["remote"]
    assert [path.name for path in world.objects()] == [segment.path.name for segment in world.log.snapshot().segments]
    world.check()
    world.log.close()


def test_a_copy_that_was_begun_for_a_segment_that_expires_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, retention=Retention(max_age_s=100))
    world.add_segment()
    world.clock.forward(61)
    with monkeypatch.context() as patch:
        patch.setattr(tier_module, "verify_object", before(verify_object))
        with pytest.raises(Killed):
            world.log.tier()
    assert len(world.objects()) == 1
    world.restart()
    world.clock.forward(61)
    world.log.keep()
    world.log.tier()
    assert world.log.first_seq == 10
    assert world.objects() == []
    world.log.close()


@pytest.mark.parametrize("what", ["compact", "expire"])
@pytest.mark.parametrize("when", ["before the upload", "after the upload"])
def test_a_segment_that_goes_while_it_is_copied_leaves_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, when: str
) -> None:
    world = World(tmp_path, retention=Retention(max_age_s=100 if what == "expire" else None))
    for _ in range(2):
        world.add_segment()
    world.clock.forward(101)
    put = put_object

    def meanwhile(*arguments: Any) -> StoredObject:
        monkeypatch.setattr(tier_module, "put_object", put)
        stored = put(*arguments) if when == "after the upload" else None
        getattr(world.log, what)()
        return stored or put(*arguments)

    monkeypatch.setattr(tier_module, "put_object", meanwhile)
    world.log.tier()
    names = [segment.path.name for segment in world.log.snapshot().segments]
    assert [path.name for path in world.objects()] == names
    assert len(names) == (1 if what == "compact" else 0)
    world.check()
    world.log.close()


# ── damage ──────────────────────────────────────────────────────────────────────────────────


def test_a_removed_object_is_an_error_that_names_it(world: World) -> None:
    world.add_segment()
    world.add_segment()
    world.clock.forward(61)
    world.log.tier()
    gone = world.objects()[0]
    gone.unlink()
    with pytest.raises(LogError, match=f"file://{gone} is gone from object storage; restore it from a copy") as caught:
        list(world.log.read_range(0, 10))
    assert caught.value.fault is LogFault.CORRUPT
    assert payloads(world.log.read_range(10, 20)) == world.appended[10:], "the others are readable"
    (finding,) = world.log.verify()
    assert str(gone) in finding.problem
    world.log.close()


def test_a_damaged_object_is_never_another_event(world: World) -> None:
    world.add_segment()
    world.clock.forward(61)
    world.log.tier()
    (place,) = world.objects()
    content, errors = place.read_bytes(), list[str]()
    for at in range(0, len(content), 61):
        place.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        found: list[bytes] = []
        try:
            found += [event.payload for event in world.log.read_range(0, 10)]
        except LogError as error:
            errors.append(str(error))
        assert found in ([], world.appended), "columns that are not read may be damaged"
    assert errors
    assert all(str(place) in error for error in errors)
    world.log.close()


def test_an_object_that_storage_damaged_is_not_relied_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_segment()
    world.clock.forward(61)
    put = put_object

    def damaging(path: Path, uri: str, *rest: Any) -> StoredObject:
        stored = put(path, uri, *rest)
        place = Path(uri.removeprefix("file://"))
        place.write_bytes(place.read_bytes()[::-1])
        return stored

    with monkeypatch.context() as patch:
        patch.setattr(tier_module, "put_object", damaging)
        with pytest.raises(LogError, match=r"are not the .* bytes that were written"):
            world.log.tier()
    assert world.places() == ["local"]
    world.check()
    assert world.log.tier() == 1
    world.check()
    world.log.close()


def test_an_object_that_vanishes_at_once_is_not_relied_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_segment()
    world.clock.forward(61)
    put = put_object

    def vanishing(path: Path, uri: str, *rest: Any) -> StoredObject:
        stored = put(path, uri, *rest)
        Path(uri.removeprefix("file://")).unlink()
        return stored

    monkeypatch.setattr(tier_module, "put_object", vanishing)
    with pytest.raises(LogError, match="although it was just written") as caught:
        world.log.tier()
    assert caught.value.fault is LogFault.UNREACHABLE
    assert world.places() == ["local"]
    world.log.close()


def test_a_local_file_stays_if_its_copy_is_gone_and_is_copied_again(tmp_path: Path) -> None:
    world = World(tmp_path, tier=Tiering(f"file://{tmp_path}/store", after_s=60, local_bytes=1 << 20))
    world.add_segment()
    world.clock.forward(61)
    world.log.tier()
    assert world.places() == ["both"]
    world.log.close()
    shutil.rmtree(world.store)
    world.open(tier=Tiering(world.uri, after_s=60))
    with pytest.raises(LogError, match="is gone; it is copied again"):
        world.log.tier()
    assert world.places() == ["local"]
    assert world.log.tier() == 1
    assert world.places() == ["remote"]
    world.check()
    world.log.close()


def test_verifying_checks_the_copy_beside_the_local_file(tmp_path: Path) -> None:
    world = World(tmp_path, tier=Tiering(f"file://{tmp_path}/store", after_s=60, local_bytes=1 << 20))
    world.add_segment()
    world.clock.forward(61)
    world.log.tier()
    assert world.log.verify() == []
    (place,) = world.objects()
    place.write_bytes(b"x" + place.read_bytes()[1:])
    (finding,) = world.log.verify()
    assert str(place) in finding.problem
    world.log.close()


def test_a_truncated_local_file_is_not_moved(world: World) -> None:
    world.add_segment()
    world.clock.forward(61)
    path = world.log.snapshot().segments[0].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LogError, match=r"instead of .*; restore it from a copy"):
        world.log.tier()
    assert path.exists()
    world.log.close()


def test_a_lost_local_file_is_an_error_that_names_it(world: World) -> None:
    world.add_segment()
    world.clock.forward(61)
    path = world.log.snapshot().segments[0].path
    path.unlink()
    with pytest.raises(LogError, match=f"{path} is gone; restore it from a copy"):
        world.log.tier()
    world.log.close()


# ── outages ─────────────────────────────────────────────────────────────────────────────────


def test_an_outage_is_logged_once_and_retried_with_pauses_until_it_ends(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add_segment()
    world.clock.forward(61)
    world.store.touch()  # a file where the directory should be
    for _ in range(100):
        world.log.keep_tier()
        world.clock.forward(1)
    assert 6 <= world.log.stats.copy_failures <= 8, "1 + 2 + 4 + … seconds between two attempts"
    assert [record.message for record in caplog.records if "waits for object storage" in record.message] == [
        f"log of {CHANNEL}: waits for object storage: {world.log.stats.waits}"
    ]
    assert "cannot write file://" in world.log.stats.waits
    assert LogReader(world.root, CHANNEL).snapshot().waits == world.log.stats.waits
    world.check()
    world.store.unlink()
    world.clock.forward(61)
    world.log.keep_tier()
    assert world.places() == ["remote"]
    assert world.log.stats.waits == LogReader(world.root, CHANNEL).snapshot().waits == ""
    assert "answers again" in caplog.records[-1].message
    world.log.close()


def test_what_an_earlier_process_waited_for_is_forgotten_once_storage_answers(world: World) -> None:
    world.add_segment()
    world.clock.forward(61)
    world.store.touch()
    world.log.keep_tier()
    world.restart()
    assert LogReader(world.root, CHANNEL).snapshot().waits != ""
    world.store.unlink()
    world.log.keep_tier()
    assert LogReader(world.root, CHANNEL).snapshot().waits == ""
    world.log.close()


def test_an_unexpected_failure_is_counted_and_retried(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.add_segment()
    world.clock.forward(61)
    with monkeypatch.context() as patch:
        patch.setattr(tier_module, "put_object", lambda *_: 1 / 0)
        world.log.keep_tier()
    assert world.log.stats.copy_failures == 1
    assert "will be retried" in caplog.text
    world.clock.forward(1)
    world.log.keep_tier()
    assert world.places() == ["remote"]
    world.log.close()


def test_closing_ends_a_transfer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add_segment()
    world.clock.forward(61)
    world.log.keep_tier(lambda: True)
    assert world.places() == ["local"]
    put = put_object

    def closing(*arguments: Any) -> StoredObject:
        stored = put(*arguments)
        world.log.close()
        return stored

    monkeypatch.setattr(tier_module, "put_object", closing)
    world.log.keep_tier()
    assert world.log.stats.copy_failures == 0
    monkeypatch.setattr(tier_module, "put_object", put)
    world.open()
    assert world.log.tier() == 1
    world.check()
    world.log.close()


def test_disk_faults_at_any_call_lose_nothing(tmp_path: Path) -> None:
    def play(name: str, files: Faults) -> World:
        world = World(tmp_path / name)
        world.add_segment()
        world.clock.forward(61)
        world.log.close()
        world.open(files=files)
        return world

    plain = Faults()
    world = play("plain", plain)
    before_calls = len(plain.calls)
    world.log.tier()
    world.log.close()
    for error, lasting, at in each_fault(len(plain.calls) - before_calls, 3):
        files = Faults()
        where = name_of(error, lasting=lasting)
        world = play("one", files)
        files.at, files.error, files.lasting = len(files.calls) + at, error, lasting
        world.log.keep_tier()
        files.heal()
        world.clock.forward(2)
        world.log.keep_tier()
        assert world.places() == ["remote"], f"{where} at {files.hit or at}"
        assert writer_of(world.log).problem is None
        world.check()
        world.log.close()
        shutil.rmtree(tmp_path / "one")
