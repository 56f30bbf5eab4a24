"""Snapshots: a range is read exactly, whatever happens to the files meanwhile."""

import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import Retention
from meshbus.log.embedded import snapshot as snapshots
from meshbus.log.event import LogEvent, events_of_rows
from meshbus.log.reader import read_split
from tests.log.making import numbered, open_log, payloads


def seqs(batches: Any) -> list[int]:
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


def test_a_range_spans_segments_and_blocks(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for first in range(0, 20, 5):
            log.append_batch(numbered(first, 5))
            if first < 10:
                log.seal()
        snapshot = log.snapshot()
        for start in range(21):
            for stop in range(22):
                assert seqs(snapshot.batches(start, stop, ["seq"])) == list(range(start, min(stop, 20)))
        assert payloads(snapshot.events(3, 17)) == numbered(3, 14)
        assert payloads(snapshot.events()) == numbered(0, 20)
        assert (snapshot.first, snapshot.end, snapshot.channel) == (0, 20, "sensors/lidar")


def test_a_few_events_of_a_large_append_cost_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def count(rows: Any, start: int, stop: int) -> list[LogEvent]:
        made.append(stop - start)
        return events_of_rows(rows, start, stop)

    monkeypatch.setattr(snapshots, "events_of_rows", count)
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 4000))
        assert [event.seq for event in islice(log.snapshot().events(3000), 7)] == list(range(3000, 3007))
        assert sum(made) < 300
        assert payloads(log.snapshot().events(10, 3990)) == numbered(10, 3980)


def test_what_comes_later_is_not_in_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        snapshot = log.snapshot()
        log.append_batch(numbered(5, 5))
        assert seqs(snapshot.batches()) == list(range(5))
        log.seal()
        assert seqs(snapshot.batches()) == list(range(5)), "its hot file is a segment by now"


def test_reading_continues_while_files_are_sealed_and_merged(tmp_path: Path) -> None:
    with open_log(tmp_path, grace_s=0) as log:
        for first in range(0, 12, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
        log.append_batch(numbered(12, 3))
        log.append_batch(numbered(15, 3))
        batches = log.snapshot().batches(columns=["seq"])
        seen = seqs([next(batches)])
        log.seal()
        log.compact()
        log.expire()
        assert not list(tmp_path.glob("*/_old/*"))
        assert seen + seqs(batches) == list(range(18))


def test_reading_raises_when_retention_overtakes_it(tmp_path: Path) -> None:
    with open_log(tmp_path, grace_s=0, retention=Retention(max_events=1)) as log:
        for first in range(0, 9, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
        events = log.snapshot().events()
        assert next(events).seq == 0
        log.expire()
        with pytest.raises(LogError, match="first available is 6") as caught:
            list(events)
        assert (caught.value.fault, caught.value.first_available) == (LogFault.RANGE_GONE, 6)


def test_a_gone_range_names_the_first_available(tmp_path: Path) -> None:
    with open_log(tmp_path, retention=Retention(max_events=1)) as log:
        log.append_batch(numbered(0, 3))
        log.seal()
        log.append(b"x")
        assert log.expire() == 3
        snapshot = log.snapshot()
        for read in (snapshot.batches, snapshot.events):
            with pytest.raises(LogError) as caught:
                list(read(2, 4))
            assert caught.value.first_available == 3
        assert payloads(snapshot.events()) == [b"x"]
        assert list(snapshot.events(1, 1)) == [], "nothing was asked for"


def test_a_segment_that_vanished_is_named(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 3))
        log.seal()
        (path,) = tmp_path.glob("*/*.parquet")
        path.unlink()
        with pytest.raises(LogError, match="is gone; restore it") as caught:
            list(log.read_batches())
        assert path.name in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=8), st.integers(1, 9), st.data())
def test_splits_cover_a_range_once_and_survive_what_happens(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, bool]], rows: int, data: st.DataObject
) -> None:
    with open_log(tmp_path_factory.mktemp("log"), grace_s=0) as log:
        for count, seal in parts:
            log.append_batch(numbered(log.next_seq, count))
            if seal:
                log.seal()
        start = data.draw(st.integers(0, log.next_seq))
        stop = data.draw(st.integers(0, log.next_seq + 2))
        splits = log.snapshot().splits(start, stop, rows=rows)
        assert json.loads(json.dumps(splits)) == splits
        assert all(isinstance(split, dict) for split in pickle.loads(pickle.dumps(splits)))
        expected = list(range(start, min(stop, log.next_seq)))
        assert [seq for split in splits for seq in seqs(read_split(split, ["seq"]))] == expected
        log.append(b"later")
        log.seal()
        log.compact()
        log.expire()
        assert [seq for split in splits for seq in seqs(read_split(split, ["seq"]))] == expected


def test_hot_splits_are_about_as_large_as_asked_for(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for _ in range(100):
            log.append(b"x")
        splits = log.snapshot().splits(rows=30)
    assert [split["end"] - split["first"] for split in splits] == [30, 30, 30, 10]
