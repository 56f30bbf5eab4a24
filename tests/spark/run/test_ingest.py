"""A query takes each row once, resumes what was begun, tells how far behind it is, and gives up only after a while."""

from pathlib import Path

import pytest

from meshbus.errors import LogError
from meshbus.log.consumers import list_consumers
from meshbus.log.durability import LogConfig, Retention
from meshbus.log.log import Redex
from meshbus.spark.io.inputs import Logs
from meshbus.spark.run.ingest import Ingest, Range, State
from meshbus.spark.run.plans import Plans


class Sheet:
    """Tables of a batch writer, on paper."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, int, int]]] = []
        self.tries = 0
        self.broken = False

    def last(self) -> int:
        return len(self.batches) - 1

    def write(self, batch: int, taken: list[Range]) -> None:
        self.tries += 1
        if self.broken:
            raise OSError("the disk is full")
        assert batch == len(self.batches)
        self.batches.append([(one.name, one.first, one.end) for one in taken])


def append(folder: Path, channel: str, count: int, *, seal: bool = False, keep: int | None = None) -> None:
    with Redex(folder, background=False) as redex:
        log = redex.open(channel, LogConfig(retention=Retention(max_events=keep)))
        log.append_batch([b"x"] * count)
        if seal:
            log.seal()
        if keep is not None:
            log.expire()


def query(folder: Path, sheet: Sheet, *, rows: int = 1_000, fail_on_gap: bool = True) -> Ingest:
    source = Logs(str(folder / "log"), lambda _: True)
    plans = Plans(folder / "tables", "events")
    return Ingest("events", str(folder / "log"), source, plans, sheet, rows=rows, fail_on_gap=fail_on_gap)


def test_every_row_is_taken_once_also_by_the_next_run(tmp_path: Path) -> None:
    sheet, log = Sheet(), tmp_path / "log"
    append(log, "a", 5)
    first = query(tmp_path, sheet)
    line = first.turn()
    assert line is not None
    assert (line["query"], line["batch"], line["rows"], line["lag"]) == ("events", 0, 5, 0)
    assert first.turn() is None
    append(log, "a", 3)
    append(log, "b", 2)
    again = query(tmp_path, sheet)
    assert again.turn() is not None
    assert sheet.batches == [[("a", 0, 5)], [("a", 5, 8), ("b", 0, 2)]]
    (consumer,) = list_consumers(log)
    assert consumer.next == {"a": 8, "b": 2}


def test_a_batch_that_failed_takes_the_same_rows_again(tmp_path: Path) -> None:
    sheet, log = Sheet(), tmp_path / "log"
    append(log, "a", 5)
    sheet.broken = True
    with pytest.raises(OSError, match="the disk is full"):
        query(tmp_path, sheet).turn()
    append(log, "a", 4)
    append(log, "b", 4)
    sheet.broken = False
    resumed = query(tmp_path, sheet)
    resumed.turn()
    assert sheet.batches == [[("a", 0, 5)]], "what came later is left to the next batch"
    resumed.turn()
    assert sheet.batches[1] == [("a", 5, 9), ("b", 0, 4)]


def test_a_run_that_ends_reads_what_was_there_when_it_began(tmp_path: Path) -> None:
    sheet, log = Sheet(), tmp_path / "log"
    append(log, "a", 5)
    found = query(tmp_path, sheet)
    found.stop_at_present_end()
    append(log, "a", 5)
    append(log, "b", 5)
    found.turn()
    assert found.turn() is None
    assert sheet.batches == [[("a", 0, 5)]]


def test_rows_that_expired_are_an_error_or_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "a", 5)
    query(tmp_path, Sheet()).turn()
    strict, lenient = Sheet(), Sheet()
    strict.batches = lenient.batches = [[]]
    append(log, "a", 5, seal=True)
    append(log, "a", 5, seal=True, keep=5)
    with pytest.raises(LogError, match="sequences 5 to 9 expired before they were read"):
        query(tmp_path, strict).turn()
    query(tmp_path, lenient, fail_on_gap=False).turn()
    assert lenient.batches[1] == [("a", 10, 15)]


def test_the_lag_is_told_in_rows_bytes_and_seconds(tmp_path: Path) -> None:
    append(tmp_path / "log", "a", 5)
    found = query(tmp_path, Sheet())
    assert found.facts()["lag"] is None, "nobody has looked yet"
    found.look()
    facts = found.facts()
    assert facts["lag"] == 5
    assert facts["lag_bytes"] > 0
    assert facts["lag_s"] >= 0.0
    found.turn()
    found.look()
    assert (found.facts()["lag"], found.facts()["lag_bytes"], found.facts()["lag_s"]) == (0, 0, 0.0)


def test_failures_are_followed_by_growing_pauses_and_at_last_by_the_end(tmp_path: Path) -> None:
    found = query(tmp_path, Sheet())
    pauses = []
    for _ in range(7):
        found.fail("the disk is full", 100.0, restarts=7)
        pauses.append(next(wait for wait in range(100) if found.due(100.0 + wait)))
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    found.fail("the disk is full", 100.0, restarts=7)
    assert found.state is State.FAILED
    assert not found.due(1e9)
    assert (found.facts()["restarts"], found.facts()["problem"]) == (7, "the disk is full")
