"""Opening a replica: repaired after a crash, cut before damage, which is kept; refused only if it is another log."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.logmanifest import load_manifest
from meshbus.log.folder import MANIFEST, MARK, folder_of
from meshbus.log.reader import LogReader
from meshbus.log.replicated import ReplicatedLog
from meshbus.names.channel import ChannelName
from tests.log.making import CHANNEL, numbered, open_log, payloads
from tests.log.replicas import open_replica


def fill(root: Path) -> Path:
    """Write a replica with two segments and two hot files, everything committed, and return its folder."""
    with open_replica(root, seal_bytes=300) as log:
        log.persist(b"ballot")
        for first in range(0, 40, 10):
            log.append(1 + first // 20, first, numbered(first, 10))
            log.sync()
            if first < 20:
                log.commit_to(first + 10)
                log.committed.seal()
        log.commit_to(40)
    (folder,) = root.iterdir()
    return folder


def hot(folder: Path) -> list[Path]:
    return sorted(folder.glob("_hot/*.hot"))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def kept(folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.glob("_aside/damaged-*/*"))]


def test_a_clean_replica_is_left_alone(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    before = sorted(path.name for path in folder.rglob("*"))
    with open_replica(tmp_path, seal_bytes=300) as log:
        assert (log.recovered.ballot, log.recovered.tail, log.recovered.runs) == (b"ballot", 40, ((1, 0), (2, 20)))
        assert not log.recovered.damaged
        assert log.committed.report.clean
    assert sorted(path.name for path in folder.rglob("*")) == before


DAMAGES: dict[str, tuple[Callable[[Path], None], int]] = {
    "a bit in the first hot file": (lambda folder: flip(hot(folder)[0], -9), 20),
    "a bit in the last hot file": (lambda folder: flip(hot(folder)[-1], -9), 30),
    "the opening of the last hot file": (lambda folder: flip(hot(folder)[-1], 170), 30),
    "the last hot file is cut off": (lambda folder: cut(hot(folder)[-1], 300), 30),
    "the last hot file is cut off after its opening": (lambda folder: cut(hot(folder)[-1], 208), 30),
    "the last hot file is missing": (lambda folder: hot(folder)[-1].unlink(), 30),
    "the first hot file is missing": (lambda folder: hot(folder)[0].unlink(), 20),
    "no hot file is left": (lambda folder: shutil.rmtree(folder / "_hot"), 20),
    "the last segment is cut off": (lambda folder: cut(segments(folder)[-1], 900), 10),
    "the first segment is missing": (lambda folder: segments(folder)[0].unlink(), 0),
    "the manifest is missing": (lambda folder: (folder / MANIFEST).unlink(), 0),
    "the manifest is damaged": (lambda folder: flip(folder / MANIFEST, 200), 0),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_replica_is_cut_before_the_damage(tmp_path: Path, name: str) -> None:
    folder = fill(tmp_path)
    damage, tail = DAMAGES[name]
    damage(folder)
    for opening in range(2):
        with open_replica(tmp_path, seal_bytes=300) as log:
            assert log.recovered.damaged, "until a ballot is stored"
            assert bool(log.recovered.damage) == (not opening)
            assert log.recovered.tail == tail
            assert log.recovered.runs == tuple(run for run in ((1, 0), (2, 20)) if run[1] < tail)
            assert log.read(0, 100, 1 << 20) == tuple(numbered(0, tail))
            assert log.committed_tail == log.recovered.committed <= tail
    catch_up(tmp_path, tail)
    assert kept(folder) or "missing" in name or "no hot file" in name or "after its opening" in name


def catch_up(root: Path, tail: int) -> None:
    """Store a new ballot, append what others have, and read everything as other processes do."""
    with open_replica(root, seal_bytes=300) as log:
        log.persist(b"new")
        log.append(9, tail, numbered(tail, 60 - tail))
        log.sync()
        log.commit_to(50)
        log.keep()
        assert payloads(LogReader(root, CHANNEL).snapshot().events()) == numbered(0, 50)
        assert log.committed.verify() == []
    with open_replica(root, seal_bytes=300) as log:
        assert not log.recovered.damaged
        assert (log.recovered.ballot, log.tail) == (b"new", 60)
        assert log.committed.report.clean


def test_a_mark_that_is_gone_hides_what_is_not_sealed_and_damages_nothing(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    (folder / MARK).unlink()
    assert LogReader(tmp_path, CHANNEL).snapshot().end == 20
    with open_replica(tmp_path) as log:
        assert not log.recovered.damaged
        assert (log.tail, log.committed_tail) == (40, 20)


def test_a_removed_folder_is_a_new_replica(tmp_path: Path) -> None:
    shutil.rmtree(fill(tmp_path))
    with open_replica(tmp_path) as log:
        assert (log.recovered.ballot, log.tail, log.recovered.damaged) == (None, 0, False)
        assert log.committed.report.created


def test_a_log_without_replicas_and_a_replica_of_another_channel_are_refused(tmp_path: Path) -> None:
    with open_log(tmp_path / "plain") as log:
        log.append(b"x")
    with pytest.raises(LogError, match="log without replicas") as caught:
        open_replica(tmp_path / "plain")
    assert caught.value.fault is LogFault.FOREIGN
    folder = fill(tmp_path / "replica")
    with pytest.raises(LogError, match="is a replica of"):
        open_log(tmp_path / "replica")
    folder.rename(folder_of(tmp_path / "replica", ChannelName("other")))
    with pytest.raises(LogError, match=f"is a replica of {CHANNEL}, not the replica of other: move it away"):
        ReplicatedLog.open(tmp_path / "replica", "other", bytes(16))


def test_a_newer_manifest_is_not_moved_aside(tmp_path: Path) -> None:
    path = fill(tmp_path) / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":9'))
    with pytest.raises(LogError) as caught:
        open_replica(tmp_path)
    assert caught.value.fault is LogFault.NEWER


def test_a_segment_that_was_healed_before_a_crash_is_found_whole(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    manifest = load_manifest(folder)
    name = manifest.segments[-1].name
    with open_log(tmp_path / "other") as log:
        log.append_batch(numbered(0, 10))
    # The same rows in a file of another size, as pyarrow writes it.
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(folder / name), folder / name)
    with open_replica(tmp_path, seal_bytes=300) as log:
        assert not log.recovered.damaged
        assert log.tail == 40
    assert load_manifest(folder).segments[-1].bytes == (folder / name).stat().st_size
