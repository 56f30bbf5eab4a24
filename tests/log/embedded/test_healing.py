"""Damaged segments of a replica are written again from what others have."""

import random
from pathlib import Path

import pytest

from meshbus.errors import LogError
from meshbus.log.embedded.logmanifest import load_manifest
from meshbus.log.reader import LogReader
from meshbus.log.replicated import ReplicatedLog
from tests.log.crash import Recorder
from tests.log.making import CHANNEL, payloads
from tests.log.replicas import open_replica


def numbered(first: int, count: int) -> list[bytes]:
    """Return payloads that cannot be compressed, so that they are found in a file."""
    return [random.Random(seq).randbytes(40) for seq in range(first, first + count)]


def fill(log: ReplicatedLog) -> None:
    for first in range(0, 30, 10):
        log.append(1, first, numbered(first, 10), origin=3)
        log.sync()
        log.commit_to(first + 10)
        log.committed.seal()


def damage(root: Path, name: int = 1) -> Path:
    """Change a payload in a segment, which is stored as it is."""
    (folder,) = root.iterdir()
    path = sorted(folder.glob("*.parquet"))[name]
    content = path.read_bytes()
    place = content.index(numbered(10 * name + 3, 1)[0])
    path.write_bytes(content[:place] + b"X" + content[place + 1 :])
    return path


def test_a_damaged_segment_is_whole_again(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        fill(log)
        digest = log.checksum(0, 30)
        path = damage(tmp_path)
        (finding,) = log.committed.verify()
        assert (finding.file, finding.first, finding.end) == (path.name, 10, 20)
        with pytest.raises(LogError, match="damaged"):
            log.checksum(0, 30)
        assert log.replace(10, numbered(10, 10), origin=3) == 1
        assert log.committed.verify() == []
        assert log.checksum(0, 30) == digest
        events = list(LogReader(tmp_path, CHANNEL).snapshot().events())
        assert payloads(events) == numbered(0, 30)
        assert {event.origin for event in events} == {3}
    with open_replica(tmp_path) as log:
        assert not log.recovered.damaged


def test_a_part_is_replaced_where_the_rest_can_be_read(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        fill(log)
        assert log.replace(7, [b"new"] * 6) == 2
        assert log.read(0, 99, 9_999) == (*numbered(0, 7), *[b"new"] * 6, *numbered(13, 17))
        assert log.replace(99, [b"nowhere"]) == 0
        damage(tmp_path)
        with pytest.raises(LogError, match="damaged"):
            log.replace(10, numbered(10, 1))
        assert log.replace(10, numbered(10, 10)) == 1
        assert log.read(10, 10, 9_999) == tuple(numbered(10, 10))


def test_a_crash_leaves_the_damaged_segment_or_the_new_one(tmp_path: Path) -> None:
    with open_replica(tmp_path / "root") as log:
        fill(log)
    damage(tmp_path / "root")
    files = Recorder(tmp_path)
    with open_replica(tmp_path / "root", files=files) as log:
        log.replace(10, numbered(10, 10))
    names = [step.what for step in files.steps if step.what in {"rename", "fsync_folder"}]
    assert names[-4:] == ["rename", "fsync_folder", "rename", "fsync_folder"], "the segment, then the manifest"
    (folder,) = (tmp_path / "root").iterdir()
    assert load_manifest(folder).segments[1].bytes == (folder / load_manifest(folder).segments[1].name).stat().st_size
