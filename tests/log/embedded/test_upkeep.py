"""The operations that change the parts of a log, and what is there afterwards."""

from pathlib import Path

import msgspec

from meshbus.log.durability import Retention
from meshbus.log.embedded.logmanifest import load_manifest, unused_of
from meshbus.log.embedded.upkeep import expire, move_retired, sweep
from meshbus.log.files import Files
from meshbus.log.folder import segment_name
from meshbus.log.objectstore import StoredObject
from tests.log.making import NOW, Clock, in_files, numbered, open_log, payloads

DAY = 86_400


def listing(root: Path) -> list[str]:
    (folder,) = root.iterdir()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_sealing_replaces_the_hot_file_by_a_segment(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        assert log.seal() == 5
        assert log.seal() == 0, "there is nothing more to seal"
        assert listing(tmp_path) == [segment_name(0, 5), f"_hot/{5:020d}.hot", "_lock", "_manifest.json"]
        assert payloads(log.read_range(0, 5)) == numbered(0, 5)
        (segment,) = in_files(log).manifest.segments
    assert (segment.first, segment.end, segment.written_ns) == (0, 5, NOW)
    assert segment.bytes == (next(tmp_path.iterdir()) / segment.name).stat().st_size


def test_compacting_retires_the_parts_and_sweeping_removes_them_after_the_grace(tmp_path: Path) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock, grace_s=60) as log:
        for first in (0, 3, 6):
            log.append_batch(numbered(first, 3))
            log.seal()
        assert log.compact() == 3
        old = [f"_old/{segment_name(first, first + 3)}.old" for first in (0, 3, 6)]
        assert listing(tmp_path)[:5] == [segment_name(0, 9), f"_hot/{9:020d}.hot", "_lock", "_manifest.json", old[0]]
        clock.forward(59)
        log.expire()
        assert set(old) < set(listing(tmp_path))
        clock.forward(2)
        log.expire()
        assert not set(old) & set(listing(tmp_path))
        assert in_files(log).manifest.retired == ()
        assert payloads(log.read_range(0, 9)) == numbered(0, 9)


def test_expiring_moves_the_first_sequence(tmp_path: Path) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock, retention=Retention(max_age_s=DAY), grace_s=0) as log:
        for first in (0, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
            clock.forward(DAY)
        assert (log.expire(), log.first_seq) == (3, 3)
        clock.forward(1)
        assert (log.expire(), log.first_seq, log.next_seq) == (3, 6, 6)
        assert listing(tmp_path) == [f"_hot/{6:020d}.hot", "_lock", "_manifest.json", "_spare"]
        assert log.append(b"x") == 6
    with open_log(tmp_path) as log:
        assert (log.first_seq, log.next_seq) == (6, 7)


def test_hot_files_that_cannot_be_sealed_expire_too(tmp_path: Path) -> None:
    with open_log(tmp_path, seal_bytes=100, retention=Retention(max_events=3)) as log:
        for first in range(0, 12, 3):
            log.append_batch(numbered(first, 3), src=1)
        assert len(list(tmp_path.glob("*/_hot/*"))) == 4
        assert (log.expire(), log.first_seq) == (9, 9)
        assert len(list(tmp_path.glob("*/_hot/*"))) == 1
        assert payloads(log.read_range(9, 12)) == numbered(9, 3)


def test_retention_by_bytes_counts_the_hot_tail(tmp_path: Path) -> None:
    with open_log(tmp_path, retention=Retention(max_bytes=30_000)) as log:
        for _ in range(2):
            log.append_batch([b"x"] * 5)
            log.seal()
        assert log.expire() == 0, "two small segments fit"
        log.append_batch([bytes(15_000)])
        assert log.expire() == 5


def test_moving_and_sweeping_missing_files_is_allowed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for first in (0, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
        log.compact()
    (folder,) = tmp_path.iterdir()
    for old in (folder / "_old").iterdir():
        old.unlink()
    manifest = load_manifest(folder)
    move_retired(Files(), folder, manifest.retired)
    assert sweep(Files(), folder, manifest, len(manifest.retired)).retired == ()


def test_sweeping_keeps_what_is_left_on_object_storage_as_unused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for first in (0, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
    (folder,) = tmp_path.iterdir()
    manifest = load_manifest(folder)
    moved = [
        msgspec.structs.replace(part, remote=StoredObject(f"s3://b/{part.first}", 1, "")) for part in manifest.segments
    ]
    (folder / moved[0].name).unlink()
    manifest = expire(Files(), folder, msgspec.structs.replace(manifest, segments=tuple(moved)), 6, 9)
    assert [(old.bytes > 0, old.uri) for old in manifest.retired] == [(False, "s3://b/0"), (True, "s3://b/3")]
    manifest = sweep(Files(), folder, manifest, 1)
    assert (unused_of(manifest), len(manifest.retired)) == (("s3://b/0",), 1)
    manifest = sweep(Files(), folder, manifest, 1)
    assert unused_of(manifest) == ("s3://b/0", "s3://b/3")
