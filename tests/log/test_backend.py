"""The contract of log/backend.py, checked for every backend: the embedded one, and one that is added at run time."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.backend import BACKENDS, find_backend
from meshbus.log.durability import LogConfig, Retention, every_n
from meshbus.log.log import Redex, RedexFile
from meshbus.log.reader import LogReader, find_channels, list_channels, read_split
from meshbus.log.tail import Followed, Tail
from tests.log.making import CHANNEL, NOW, Clock, numbered, payloads
from tests.log.memory import Memory


class Place(NamedTuple):
    """Where the logs of a test are, and in which backend."""

    root: Path
    backend: str

    def redex(self, clock: Callable[[], int] | None = None) -> Redex:
        return Redex(self.root, recorder=5, backend=self.backend, clock=clock or Clock(), background=False)

    def open(self, config: LogConfig | None = None) -> RedexFile:
        return self.redex().open(CHANNEL, config, origin=6)

    def reader(self) -> LogReader:
        return LogReader(self.root, CHANNEL, backend=self.backend)


@pytest.fixture(params=["embedded", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    logs = Memory()
    monkeypatch.setitem(BACKENDS, "memory", lambda: logs)
    return Place(tmp_path, request.param)


def seqs(log: RedexFile | LogReader) -> list[int]:
    return [event.seq for event in log.snapshot().events()]


def test_an_unknown_backend_is_named_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown backend 'tape'; choose from embedded"):
        find_backend("tape")
    for make in (lambda: Redex(tmp_path, backend="tape"), lambda: LogReader(tmp_path, CHANNEL, backend="tape")):
        with pytest.raises(ConfigError):
            make()


def test_appends_get_consecutive_sequences(place: Place) -> None:
    with place.open() as log:
        assert (log.first_seq, log.next_seq, log.report.created, log.report.clean) == (0, 0, True, True)
        assert log.append(b"a") == 0
        assert log.append_batch([b"b", b"c"]) == range(1, 3)
        assert log.append_batch([]) == range(3, 3)
        assert log.append_batch(pa.array([b"d", b""])) == range(3, 5)
        assert (log.next_seq, log.stats.appended) == (5, 5)
        assert payloads(log.read_range(0, 99)) == [b"a", b"b", b"c", b"d", b""]
        assert len(log.log_id) == 16


def test_a_refused_append_uses_no_sequence(place: Place) -> None:
    with place.open() as log:
        log.append(b"a")
        with pytest.raises(ConfigError):
            log.append_batch([b"b", b"c"], src=np.arange(3))
        assert log.append(b"d") == 1


def test_columns_have_defaults_and_given_values(place: Place) -> None:
    with place.open() as log:
        log.append(b"x")
        log.append_batch([b"y", b"z"], origin=np.array([7, 8]), ts_ns=9, pub_seq=40, headers={"k": b"v"})
        names = ["seq", "channel", "recorder", "origin", "ts_ns", "recv_ts_ns", "pub_seq", "log_id", "headers"]
        found = [row for batch in log.read_batches(columns=names) for row in batch.to_pylist()]
        same = {"channel": CHANNEL, "recorder": 5, "recv_ts_ns": NOW, "log_id": log.log_id}
        headers = [("k", b"v")]
        assert found == [
            {"seq": 0, "origin": 6, "ts_ns": NOW, "pub_seq": 0, "headers": None, **same},
            {"seq": 1, "origin": 7, "ts_ns": 9, "pub_seq": 40, "headers": headers, **same},
            {"seq": 2, "origin": 8, "ts_ns": 9, "pub_seq": 41, "headers": headers, **same},
        ]
        assert [event.headers for event in log.read_range(0, 2)] == [None, {"k": b"v"}]


def test_any_range_is_read_as_events_and_as_batches(place: Place) -> None:
    with place.open() as log:
        for first in range(0, 12, 3):
            log.append_batch(numbered(first, 3))
        log.seal()
        log.append_batch(numbered(12, 4))
        for start in range(17):
            for stop in range(start, 18):
                expected = numbered(start, max(min(stop, 16) - start, 0))
                assert payloads(log.read_range(start, stop)) == expected
                batches = log.read_batches(start, stop, ["payload"])
                assert [event for batch in batches for event in batch.column("payload").to_pylist()] == expected


def test_a_snapshot_stays_as_it_was(place: Place) -> None:
    with place.open() as log:
        log.append_batch(numbered(0, 4))
        before = log.snapshot()
        log.append_batch(numbered(4, 4))
        log.seal()
        log.append(b"later")
    assert (before.first, before.end, before.damage) == (0, 4, "")
    assert payloads(before.events()) == numbered(0, 4)


def test_a_reader_needs_no_writer_and_sees_every_append_at_once(place: Place) -> None:
    reader = place.reader()
    with pytest.raises(LogError) as caught:
        reader.snapshot()
    assert caught.value.fault is LogFault.UNKNOWN
    with place.open() as log:
        for count in range(1, 4):
            log.append(b"x")
            assert seqs(reader) == list(range(count))
        assert reader.snapshot().log_id == log.log_id
    assert seqs(reader) == [0, 1, 2]
    assert reader.verify() == []


def test_there_is_one_writer_at_a_time(place: Place) -> None:
    with place.open() as log:
        with pytest.raises(LogError) as caught:
            place.open()
        assert caught.value.fault is LogFault.LOCKED
        log.append(b"x")
    place.open().close()


def test_a_log_continues_when_it_is_opened_again(place: Place) -> None:
    with place.open() as log:
        log.append_batch(numbered(0, 3))
        log_id = log.log_id
    with place.open() as log:
        assert (log.next_seq, log.durable_seq, log.log_id) == (3, 3, log_id)
        assert (log.report.created, log.report.clean) == (False, True)
        assert log.append_batch(numbered(3, 2)) == range(3, 5)
        assert payloads(log.read_range(0, 5)) == numbered(0, 5)


def test_a_sync_makes_everything_durable(place: Place) -> None:
    with place.open(LogConfig(fsync=every_n(2))) as log:
        log.append(b"a")
        log.append(b"b")
        assert log.durable_seq == 2
        log.append(b"c")
        log.sync()
        assert log.durable_seq == log.next_seq == 3


def test_a_closed_log_takes_nothing_and_is_still_read(place: Place) -> None:
    log = place.open()
    log.append(b"x")
    log.close()
    log.close()
    assert log.closed
    for use in (lambda: log.append(b"y"), lambda: log.append_batch([]), log.seal, log.compact, log.expire):
        with pytest.raises(LogError) as caught:
            use()
        assert caught.value.fault is LogFault.CLOSED
    log.keep()
    assert payloads(log.read_range(0, 9)) == [b"x"]


def test_a_tail_joins_stored_and_new_events(place: Place) -> None:
    with place.open() as log:
        log.append_batch(numbered(0, 3))
        log.seal()
        log.append_batch(numbered(3, 3))
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.extend(event.payload for event in log.tail(2)))
        thread.start()
        for first in range(6, 60, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
    thread.join(30)
    assert not thread.is_alive()
    assert found == numbered(2, 58)


def test_waiting_ends_with_an_event_the_timeout_or_the_log(place: Place) -> None:
    log = place.open()
    assert not log.wait_beyond(0, 0.001)
    log.append(b"x")
    assert log.wait_beyond(0)
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(log.wait_beyond(1)))
    thread.start()
    log.close()
    thread.join(30)
    assert ended == [False]


def test_callbacks_come_after_each_append_and_at_the_end(place: Place) -> None:
    calls: list[int] = []
    log = place.open()
    stop = log.listen(lambda: calls.append(log.snapshot().end))
    ignored = log.listen(lambda: calls.append(-1))
    ignored()
    log.append(b"x")
    log.append_batch([b"y", b"z"])
    log.close()
    assert calls == [1, 3, 3]
    stop()


def test_a_log_is_followed_through_a_reader(place: Place) -> None:
    with place.open() as log:
        log.append_batch(numbered(0, 3))
        tail = Tail(Followed(place.reader(), 0.001), 1)
        assert payloads(tail.take()) == numbered(1, 2)
        log.append(b"more")
        assert tail.wait(30)
        assert payloads(tail.take()) == [b"more"]


def test_sealing_changes_where_events_are_and_nothing_else(place: Place) -> None:
    with place.open() as log:
        log.append_batch(numbered(0, 5))
        sealed = log.seal()
        log.append_batch(numbered(5, 5))
        snapshot = log.snapshot()
        assert payloads(snapshot.events()) == numbered(0, 10)
        assert sealed == sum(segment.end - segment.first for segment in snapshot.segments)
        assert snapshot.sealed_end == snapshot.first + sealed
        assert snapshot.stored_bytes > 0
        edges = [snapshot.first, *(segment.end for segment in snapshot.segments)]
        assert [segment.first for segment in snapshot.segments] == edges[:-1]
        for segment in snapshot.segments:
            assert segment.path.stat().st_size == segment.bytes
        assert log.seal() in {0, 5}
        log.compact()
        assert payloads(log.read_range(0, 10)) == numbered(0, 10)
        assert log.verify() == []


def test_sealed_files_and_the_splits_after_them_are_the_whole_log(place: Place) -> None:
    """What a reader of Parquet such as Spark relies on."""
    with place.open() as log:
        log.append_batch(numbered(0, 5))
        log.seal()
        log.append_batch(numbered(5, 5))
        snapshot = log.snapshot()
        import pyarrow.parquet as pq

        found = [pq.read_table(segment.path).column("seq").to_pylist() for segment in snapshot.segments]
        for split in snapshot.splits(snapshot.sealed_end):
            found += [batch.column("seq").to_pylist() for batch in read_split(split, ["seq"])]
        assert [seq for part in found for seq in part] == list(range(10))


def test_splits_divide_a_range_and_are_read_later(place: Place) -> None:
    with place.open() as log:
        for first in range(0, 40, 4):
            log.append_batch(numbered(first, 4))
        splits = log.snapshot().splits(3, 35, rows=8)
        log.seal()
        log.append(b"later")
    assert len(splits) > 1
    assert [split["first"] for split in splits[1:]] == [split["end"] for split in splits[:-1]]
    read = [seq for split in splits for batch in read_split(split, ["seq"]) for seq in batch.column("seq").to_pylist()]
    assert read == list(range(3, 35))


def test_retention_moves_and_reports_the_first_sequence(place: Place) -> None:
    with place.open(LogConfig(retention=Retention(max_events=4), grace_s=0)) as log:
        for first in range(0, 12, 3):
            log.append_batch(numbered(first, 3))
            log.seal()
        assert log.expire() == log.stats.expired == 6
        assert (log.first_seq, log.next_seq) == (6, 12)
        assert log.expire() == 0
        for read in (lambda: log.read_range(5, 12), lambda: log.read_batches(5, 12), lambda: log.tail(5)):
            with pytest.raises(LogError, match="sequence 5 has expired") as caught:
                list(read())
            assert caught.value.fault is LogFault.RANGE_GONE
            assert caught.value.first_available == 6
        assert seqs(log) == seqs(place.reader()) == list(range(6, 12))
    with place.open() as log:
        assert (log.first_seq, log.next_seq) == (6, 12)


def test_maintenance_applies_retention(place: Place) -> None:
    with place.open(LogConfig(retention=Retention(max_events=3))) as log:
        log.append_batch(numbered(0, 3))
        log.seal()
        log.append_batch(numbered(3, 3))
        log.keep()
        assert (log.first_seq, log.stats.expired, log.stats.upkeep_failures) == (3, 3, 0)


def test_logs_are_found_by_name(place: Place) -> None:
    with place.redex() as redex:
        assert not redex.exists("b")
        for name in ("b", "a/c"):
            redex.open(name).append(b"x")
        assert redex.exists("b")
    entries, problems = find_channels(place.root, backend=place.backend)
    assert entries == list_channels(place.root, backend=place.backend)
    assert ([entry.channel for entry in entries], problems) == (["a/c", "b"], [])


def test_many_threads_append_each_event_once(place: Place) -> None:
    with place.open() as log:

        def append(name: int) -> None:
            for turn in range(50):
                log.append_batch([b"%d-%d" % (name, turn)] * 2)

        threads = [threading.Thread(target=append, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        events = list(log.read_range(0, 500))
        assert [event.seq for event in events] == list(range(400))
        for name in range(4):
            mine = [event.payload for event in events if event.payload.startswith(b"%d-" % name)]
            assert mine == [b"%d-%d" % (name, turn) for turn in range(50) for _ in range(2)]
