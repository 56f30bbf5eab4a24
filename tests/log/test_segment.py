"""Sealed segments: exact row groups, any range, damage as one sentence."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshbus.errors import LogError, LogFault
from meshbus.log import segment as module
from meshbus.log.arrow import wanted
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.files import Files
from meshbus.log.folder import aside, old_path, segment_name
from meshbus.log.objectstore import put_object
from meshbus.log.segment import (
    SYNC_STEP,
    describe_segment,
    group_rows,
    new_segment,
    read_segment,
    segment_path,
    write_segment,
)
from tests.log.making import in_files, numbered, open_log


def sealed(root: Path, events: int, per_group: int, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    monkeypatch.setattr(module, "_FEWEST", per_group)
    monkeypatch.setattr(module, "_MOST", per_group)
    with open_log(root) as log:
        for first in range(0, events, 5):
            log.append_batch(numbered(first, min(5, events - first)))
        log.seal()
        return in_files(log)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_any_range_of_any_grouping_gives_its_rows(
    tmp_path_factory: pytest.TempPathFactory, events: int, per_group: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        snapshot = sealed(tmp_path_factory.mktemp("log"), events, per_group, patch)
    (segment,) = snapshot.manifest.segments
    metadata = pq.read_metadata(snapshot.folder / segment.name)
    counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert counts[:-1] == [per_group] * (len(counts) - 1)
    assert (sum(counts), segment.group_rows) == (events, per_group)
    start, stop = data.draw(st.integers(0, events)), data.draw(st.integers(0, events + 3))
    batches = list(read_segment(snapshot.folder, segment, wanted(["payload", "seq"]), start, stop))
    assert [value for batch in batches for value in batch.column("seq").to_pylist()] == list(
        range(start, min(stop, events))
    )
    read = [value for batch in batches for value in batch.column("payload").to_pylist()]
    assert read == numbered(start, max(min(stop, events) - start, 0))


def test_groups_hold_about_as_many_bytes_whatever_the_events() -> None:
    assert group_rows(1_000_000, 64_000_000) == 131_072
    assert group_rows(10_000, 10_000 * 8_192) == 2_048
    assert group_rows(10, 10 << 30) == 1_024
    assert group_rows(0, 0) == 131_072


def test_writing_leaves_nothing_when_it_fails(tmp_path: Path) -> None:
    class Full(Files):
        def write_some(self, *_: object) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_segment(Full(), tmp_path, [], first=0, end=1, per_group=8, written_ns=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compress", [True, False])
def test_record_batches_of_any_length_become_row_groups_of_one_length(tmp_path: Path, compress: bool) -> None:
    with open_log(tmp_path / "logs") as log:
        for first, count in ((0, 3), (3, 1), (4, 11), (15, 5)):
            log.append_batch(numbered(first, count), headers={"a": b"1"})
        batches = list(log.read_batches())
    found = write_segment(Files(), tmp_path, batches, first=0, end=20, per_group=8, written_ns=7, compress=compress)
    path = tmp_path / found.name
    aside(path).rename(path)
    assert (found.bytes, found.group_rows, found.written_ns) == (path.stat().st_size, 8, 7)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [8, 8, 4]
    columns = [metadata.row_group(0).column(place) for place in range(metadata.num_columns)]
    codecs = {column.path_in_schema: column.compression for column in columns}
    assert codecs["payload"] == ("ZSTD" if compress else "UNCOMPRESSED")
    read = list(read_segment(tmp_path, found, wanted(["payload", "headers"]), 0, 20))
    assert [value for batch in read for value in batch.column("payload").to_pylist()] == numbered(0, 20)
    assert {str(value) for batch in read for value in batch.column("headers").to_pylist()} == {"[('a', b'1')]"}


def test_a_new_segment_begins_to_sync_what_is_new_and_is_synced_at_the_end(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []

    class Watched(Files):
        def begin_sync(self, handle: int, at: int, size: int) -> None:  # noqa: ARG002
            steps.append(("begin", at, size))

        def end_sync(self, handle: int, at: int, size: int) -> None:  # noqa: ARG002
            steps.append(("end", at, size))

        def fsync(self, handle: int) -> None:
            steps.append(("fsync", 0, os.fstat(handle).st_size))

    large = bytes(SYNC_STEP)
    with new_segment(Watched(), tmp_path / segment_name(0, 1)) as sink:
        sink.put([b"PAR1", memoryview(b"page")])
        sink.begin_sync()
        assert steps == [], "too little for the disk"
        assert sink.put([large]) == SYNC_STEP
        sink.begin_sync()
        sink.begin_sync()
        sink.put([large, large])
        sink.begin_sync()
        sink.put([b"end"])
    assert steps == [
        ("begin", 0, SYNC_STEP),
        ("begin", SYNC_STEP, 2 * SYNC_STEP),
        ("end", 0, SYNC_STEP),
        ("fsync", 0, 3 * SYNC_STEP + 11),
    ]
    assert aside(tmp_path / segment_name(0, 1)).read_bytes() == b"PAR1page" + 3 * large + b"end"


def test_a_segment_that_the_disk_refused_meanwhile_is_not_left_behind(tmp_path: Path) -> None:
    class Broken(Files):
        def end_sync(self, *_: int) -> None:
            raise OSError(5, "Input/output error")

    def write() -> None:
        with new_segment(Broken(), tmp_path / segment_name(0, 1)) as sink:
            for _ in range(2):
                sink.put([bytes(SYNC_STEP)])
                sink.begin_sync()

    with pytest.raises(OSError, match="Input/output"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_segment_is_found_where_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = sealed(tmp_path, 5, 8, monkeypatch)
    (segment,) = snapshot.manifest.segments
    waiting = old_path(snapshot.folder, segment.name)
    (snapshot.folder / segment.name).rename(waiting)
    assert segment_path(snapshot.folder, segment.name) == waiting
    assert sum(map(len, read_segment(snapshot.folder, segment, wanted(["seq"]), 0, 5))) == 5
    waiting.unlink()
    with pytest.raises(FileNotFoundError):
        list(read_segment(snapshot.folder, segment, wanted(["seq"]), 0, 5))


def test_a_segment_is_described_as_its_manifest_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = sealed(tmp_path / "log", 11, 4, monkeypatch)
    (segment,), log_id = snapshot.manifest.segments, snapshot.manifest.id_bytes
    path = snapshot.folder / segment.name
    found = describe_segment(path, log_id)
    assert found is not None
    # How large its rows were before they were sealed is not in the file.
    known = {"written_ns": segment.written_ns, "hot_bytes": segment.hot_bytes}
    assert msgspec.structs.replace(found, **known) == segment
    assert describe_segment(path, b"another log") is None
    other = path.rename(path.with_name(segment_name(0, 12)))
    assert describe_segment(other, log_id) is None, "it has fewer rows than its name says"
    other.write_bytes(other.read_bytes()[:-9])
    assert describe_segment(other, log_id) is None
    monkeypatch.setattr(module, "has_arrow", lambda: False)
    assert describe_segment(path, log_id) is None


@pytest.mark.parametrize("how", ["empty", "cut", "flipped"])
def test_the_error_of_damage_is_one_line_that_names_the_file(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = sealed(tmp_path, 40, 64, monkeypatch)
    (segment,) = snapshot.manifest.segments
    path = snapshot.folder / segment.name
    content = path.read_bytes()
    half = len(content) // 2
    flipped = content[:4] + np.random.default_rng(0).bytes(half - 4) + content[half:]
    path.write_bytes({"empty": b"", "cut": content[:-20], "flipped": flipped}[how])
    with pytest.raises(LogError, match="is damaged: ") as caught:
        list(read_segment(snapshot.folder, segment, wanted(), 0, 40))
    assert caught.value.fault is LogFault.CORRUPT
    assert segment.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_changed_bit_in_a_payload_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path) as log:
        log.append(np.random.default_rng(0).bytes(5_000))
        log.seal()
        snapshot = in_files(log)
    (segment,) = snapshot.manifest.segments
    path = snapshot.folder / segment.name
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogError, match="is damaged: "):
        list(read_segment(snapshot.folder, segment, wanted(), 0, 1))


def test_a_changed_bit_anywhere_in_a_segment_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    events = [b"payload %d" % number for number in range(30)]
    with open_log(tmp_path) as log:
        log.append_batch(events)
        log.seal()
        snapshot = in_files(log)
    (segment,) = snapshot.manifest.segments
    path = snapshot.folder / segment.name
    content = path.read_bytes()
    noticed = 0
    for place in range(0, len(content), 19):
        changed = bytearray(content)
        changed[place] ^= 4
        path.write_bytes(changed)
        try:
            assert [event.payload for event in snapshot.events()] == events, place
        except LogError as error:
            noticed += error.fault in {LogFault.CORRUPT, LogFault.NEWER}
    assert noticed > 100


def test_a_segment_with_other_rows_than_in_the_manifest_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    snapshot = sealed(tmp_path, 5, 8, monkeypatch)
    (segment,) = snapshot.manifest.segments
    more = msgspec.structs.replace(segment, end=6)
    with pytest.raises(LogError, match="has 5 rows"):
        list(read_segment(snapshot.folder, more, wanted(), 0, 6))
    assert not aside(snapshot.folder / segment.name).exists()


@pytest.mark.parametrize(
    ("version", "fault", "problem"),
    [
        (b"99", LogFault.NEWER, "sealed segment, version 99, was written by a newer meshbus"),
        (b"", LogFault.CORRUPT, "not written"),
    ],
)
def test_a_segment_of_another_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: bytes, fault: LogFault, problem: str
) -> None:
    import pyarrow.parquet as pq

    snapshot = sealed(tmp_path, 5, 8, monkeypatch)
    (segment,) = snapshot.manifest.segments
    path = snapshot.folder / segment.name
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"meshbus.schema_version": version}), path)
    with pytest.raises(LogError, match=f"{segment.name}.*{problem}") as caught:
        list(read_segment(snapshot.folder, segment, wanted(), 0, 5))
    assert caught.value.fault is fault


def test_a_segment_that_moved_is_read_from_its_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = sealed(tmp_path / "log", 40, 8, monkeypatch)
    (segment,) = snapshot.manifest.segments
    whole = list(read_segment(snapshot.folder, segment, wanted(), 3, 29))
    stored = put_object(snapshot.folder / segment.name, f"file://{tmp_path}/store/{segment.name}")
    moved = msgspec.structs.replace(segment, remote=stored)
    (snapshot.folder / segment.name).unlink()
    assert list(read_segment(snapshot.folder, moved, wanted(), 3, 29)) == whole
    place = tmp_path / "store" / segment.name
    place.write_bytes(place.read_bytes()[:-9])
    with pytest.raises(LogError, match=f"file://{place} is damaged") as caught:
        list(read_segment(snapshot.folder, moved, wanted(), 3, 29))
    assert caught.value.fault is LogFault.CORRUPT
    place.unlink()
    with pytest.raises(FileNotFoundError, match=f"file://{place} is gone from object storage"):
        list(read_segment(snapshot.folder, moved, wanted(), 3, 29))


def test_a_segment_that_cannot_be_mapped_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Memory mapping file failed: Cannot allocate memory")  # as pyarrow does, without a number

    snapshot = sealed(tmp_path, 10, 5, monkeypatch)
    (segment,) = snapshot.manifest.segments
    monkeypatch.setattr(pa, "memory_map", refuse)
    with pytest.raises(LogError, match="Cannot allocate memory") as caught:
        list(read_segment(snapshot.folder, segment, wanted(), 0, 10))
    assert caught.value.fault is LogFault.FAILED
