"""Following a log: history joined to live, at any pace, from this process or another."""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import Retention
from meshbus.log.embedded import snapshot as snapshot_module
from meshbus.log.reader import LogReader
from meshbus.log.segment import Segment, read_segment
from meshbus.log.tail import Followed, Tail
from tests.log.making import CHANNEL, numbered, open_log, payloads


def test_history_then_live_without_gap_or_duplicate(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 10))
        log.seal()
        log.append_batch(numbered(10, 10))
        seen: list[int] = []

        def follow() -> None:
            seen.extend(event.seq for event in log.tail(5))

        thread = threading.Thread(target=follow)
        thread.start()
        for turn in range(100):
            log.append_batch(numbered(log.next_seq, 3))
            if turn % 10 == 0:
                log.seal()
        end = log.next_seq
    thread.join(10)
    assert seen == list(range(5, end)), "it ended with the log, after everything in it"


def test_a_tail_takes_what_fits(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch([b"x" * 10] * 10)
        tail = log.tail()
        assert len(tail.take(3)) == 3
        assert len(tail.take(max_bytes=25)) == 3, "the event that reaches the limit is the last"
        assert tail.next_seq == 6
        assert [len(batch) for batch in tail.take_batches(["seq"])] == [4]
        assert tail.take() == []
        assert not tail.wait(0)
        log.append(b"more")
        assert tail.wait(0)
        assert payloads(tail.take()) == [b"more"]


def test_taking_little_by_little_reads_each_part_of_a_segment_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def counted(folder: Path, segment: Segment, *rest: Any) -> Iterator[Any]:
        opened.append(segment.name)
        return read_segment(folder, segment, *rest)

    monkeypatch.setattr(snapshot_module, "read_segment", counted)
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 30))
        log.seal()
        log.append_batch(numbered(30, 5))
        tail = log.tail()
        assert [len(tail.take(4)) for _ in range(9)] == [4] * 8 + [3]
        assert tail.take() == []
        tail.next_seq = 28
        assert payloads(tail.take()) == numbered(28, 7)
    assert len(opened) == 2


def test_a_tail_may_start_before_there_is_anything(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        tail = log.tail(2)
        log.append_batch(numbered(0, 2))
        assert tail.take() == []
        log.append(b"first of interest")
        assert payloads(tail.take()) == [b"first of interest"]


def test_a_tail_that_is_overtaken_reports_where_to_continue(tmp_path: Path) -> None:
    with open_log(tmp_path, retention=Retention(max_events=2), grace_s=0) as log:
        log.append_batch(numbered(0, 4))
        tail = log.tail(0)
        log.seal()
        log.append_batch(numbered(4, 4))
        log.expire()
        with pytest.raises(LogError) as caught:
            tail.take()
        assert caught.value.fault is LogFault.RANGE_GONE
        assert caught.value.first_available == 4
        tail.next_seq = caught.value.first_available
        assert payloads(tail.take()) == numbered(4, 4)


def test_a_log_of_another_process_is_looked_at_again_and_again(tmp_path: Path) -> None:
    stopped = threading.Event()
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 3))
        source = Followed(LogReader(tmp_path, CHANNEL), 0.001, stopped=stopped)
        events: Iterator[object] = iter(Tail(source, 0))
        assert payloads(islice(events, 3)) == numbered(0, 3)
        writer = threading.Timer(0.01, lambda: log.append(b"live"))
        writer.start()
        assert payloads(islice(events, 1)) == [b"live"]
        writer.join()
        stopped.set()
        assert list(events) == []


def test_looking_ends_when_the_time_is_up(tmp_path: Path) -> None:
    times = iter(range(100))
    with open_log(tmp_path) as log:
        source = Followed(LogReader(tmp_path, CHANNEL), 0.0, clock=lambda: float(next(times)))
        assert not source.wait_beyond(0, 5)
        log.append(b"x")
        assert source.wait_beyond(0, 5)
