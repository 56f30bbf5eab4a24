"""Which small segments are merged, and that merging changes no row."""

from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.embedded.compaction import choose_run, merge_segments
from meshbus.log.files import Files
from meshbus.log.folder import aside
from meshbus.log.objectstore import StoredObject
from meshbus.log.segment import Segment
from tests.log.making import in_files, numbered, open_log


def segments_of(sizes: list[int]) -> list[Segment]:
    return [Segment(str(place), place, place + 1, size, 1024, 0) for place, size in enumerate(sizes)]


@given(st.lists(st.integers(1, 120), max_size=12), st.integers(2, 5))
def test_a_run_is_neighbors_that_are_small_and_fit(sizes: list[int], fewest: int) -> None:
    segments = segments_of(sizes)
    run = choose_run(segments, 100, fewest=fewest)
    if run:
        assert len(run) >= fewest
        assert sum(segment.bytes for segment in run) <= 100
        assert all(segment.bytes < 50 for segment in run)
        assert list(run) == segments[run[0].first : run[-1].end]


def test_large_ones_separate_runs_and_lonely_ones_stay() -> None:
    assert choose_run(segments_of([10, 90, 10, 10]), 100, fewest=2) == tuple(segments_of([10, 90, 10, 10])[2:])
    assert choose_run(segments_of([10, 90, 10]), 100, fewest=2) == ()
    assert choose_run(segments_of([10, 10, 10]), 100) == (), "three are not worth the work"


def test_what_was_large_before_compression_is_left_alone() -> None:
    small = segments_of([2] * 8)
    assert len(choose_run(small, 100)) == 8
    whole = [msgspec.structs.replace(segment, hot_bytes=90) for segment in small]
    assert choose_run(whole, 100) == ()
    assert choose_run([*whole[:4], *small[4:]], 100) == tuple(small[4:])
    parts = [msgspec.structs.replace(segment, hot_bytes=24) for segment in small]
    assert choose_run(parts, 100) == tuple(parts[:4]), "together they are as large as one file before it is sealed"


def test_a_log_of_payloads_that_compress_well_is_not_written_again_and_again(tmp_path: Path) -> None:
    with open_log(tmp_path, seal_bytes=64 << 10) as log:
        for _ in range(24):
            log.append_batch([bytes(1000)] * 80)
            log.keep()
        assert log.stats.seals >= 16
        assert log.stats.compactions == 0
        assert sum(segment.bytes for segment in in_files(log).manifest.segments) < 256 << 10


def test_compaction_comes_to_an_end() -> None:
    segments = segments_of([7] * 40)
    rounds = 0
    while run := choose_run(segments, 100, fewest=2):
        place = segments.index(run[0])
        merged = Segment("m", run[0].first, run[-1].end, sum(part.bytes for part in run), 1024, 0)
        segments[place : place + len(run)] = [merged]
        rounds += 1
        assert rounds < 50
    assert sum(segment.bytes for segment in segments) == 280


def test_the_merged_segment_holds_the_rows_of_its_parts(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for first in range(0, 9, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
        snapshot = in_files(log)
        merged = merge_segments(Files(), snapshot.folder, snapshot.manifest.segments)
    assert (merged.first, merged.end) == (0, 9)
    assert merged.hot_bytes == sum(part.content_bytes for part in snapshot.manifest.segments)
    import pyarrow.parquet as pq

    table = pq.read_table(aside(snapshot.folder / merged.name))
    assert table.column("payload").to_pylist() == numbered(0, 9)
    assert table.column("seq").to_pylist() == list(range(9))


def test_segments_with_a_copy_on_object_storage_separate_runs() -> None:
    segments = segments_of([10, 10, 10, 10, 10])
    segments[2] = msgspec.structs.replace(segments[2], remote=StoredObject("s3://b/2", 10, ""))
    assert choose_run(segments, 100, fewest=2) == tuple(segments[:2])
    assert choose_run(segments, 100, fewest=3) == ()
