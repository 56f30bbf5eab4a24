"""Claim: the log appends batches several times as fast as net-mesh's log, and reads as fast as plain Parquet.

Bias: one writer, one channel, one disk, warm, files in the system's cache. A batch is a mebibyte of events of equal size,
about what a node appends at full speed, which suits columns. A node passes an Arrow column or (offsets, data), and the
claim is about these. net-mesh takes only lists; the `list` rows show meshbus with the same input, which must be joined
first. All events differ, so that each form is a mebibyte of memory. meshbus stores 24 columns per event, the peers a
payload and a number. The net-mesh binding also keeps every event in memory and reads from there. It cannot sync on its own
from Python (its fsync options abort the process), so `every append` calls its sync. SQLite is one table (seq, ts, payload)
in WAL mode; synchronous OFF, NORMAL and FULL stand for the policies. `file` is os.write of the payloads alone: a lower
bound, not a log. Times are wall-clock times, because waiting for a disk costs no processor time; without sync, both agree
on an idle machine. The cost of `fsync` depends on the disk.

A ratio is the median of several comparisons, with the lowest and the highest, because they vary widely. For appends, each
comparison starts with new files and a disk with nothing left to write. A scan is compared only with pyarrow, in both
orders equally often. The table of reads measures both among five others; do not take ratios from it.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import net
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import Case, Cell, Table, Timing, compare
from meshbus.log.durability import NEVER, Fsync, LogConfig, every_n, interval
from meshbus.log.log import Redex, RedexFile

SIZES = (64, 1_024)
BATCH_BYTES = 1 << 20
READ_BATCH = 1_000
"""Events per append when reading and sealing are measured."""
POLICIES: dict[str, Fsync] = {"never": NEVER, "every append": every_n(1), "every second": interval(1.0)}
SYNCHRONOUS = {"never": "OFF", "every append": "FULL", "every second": "NORMAL"}
READ_EVENTS = 200_000
HUGE = 1 << 40
"""Large enough that nothing is sealed while appends are measured."""
BATCH_CLAIM = 5.0
SCAN_CLAIM = 1.5


def run(quick: bool) -> list[Table]:
    """Measure appending, reading and sealing."""
    seconds, rounds, appends, scans = (0.05, 3, 2, 2) if quick else (0.4, 7, 15, 6)
    singles: list[list[Cell]] = []
    batches: list[list[Cell]] = []
    for size in SIZES:
        for policy in POLICIES:
            with contenders(size, policy) as (one, many):
                found = compare(one, seconds=seconds, rounds=rounds)
                singles.append([size, policy, *_columns(found, ONE, 1e-3)])
                found = compare(many, seconds=_little(seconds, size), rounds=rounds)
                batches.append([size, policy, *_columns(found, MANY, 1.0)])
    claims = [row for size in SIZES for row in _batch_claims(size, seconds, rounds, appends)]
    reading: list[list[Cell]] = []
    for size in SIZES:
        timings, ratios = reads(size, seconds, rounds, scans)
        reading.append([size, *(timings[name].median_ns for name in READS)])
        claims.append(_claim(size, "scan of sealed data, times pyarrow alone", ratios, at_most=SCAN_CLAIM))
    return [
        Table("Append one event: wall-clock µs", ["bytes", "fsync", *ONE], singles),
        Table("Append a batch of 1 MiB: wall-clock ns per event", ["bytes", "fsync", *MANY], batches),
        Table(f"Read {READ_EVENTS} events: wall-clock ns per event", ["bytes", *READS], reading),
        Table("Seal: hot blocks to Parquet", ["bytes", "events/s", "MB/s"], [_sealing(size, rounds) for size in SIZES]),
        Table(
            "Log: ratios",
            ["bytes", "claim", "measured", "lowest", "highest", "target", "met"],
            claims,
            [
                f"median of {appends} comparisons of appends (without sync) and {scans} of scans, each with interleaved rounds",
                "net-mesh: persistent file, list of bytes; on a busy machine the range is wider than the distance to the target",
            ],
        ),
    ]


ONE = ("meshbus", "net-mesh", "SQLite", "file")
MANY = ("arrays", "Arrow", "list", "net-mesh", "SQLite", "file")
READS = (
    "hot, events", "sealed, events", "net-mesh", "SQLite", "hot, Arrow", "sealed, Arrow", "Parquet alone",
)  # fmt: skip


@contextmanager
def contenders(size: int, policy: str) -> Iterator[tuple[dict[str, Case], dict[str, Case]]]:
    """Open a log of each kind; yield the candidates for single appends and for batches."""
    os.sync()
    payload, count = os.urandom(size), BATCH_BYTES // size
    events = [os.urandom(size) for _ in range(count)]
    column = pa.array(events, pa.binary())
    edges = np.arange(0, (count + 1) * size, size)
    data = np.frombuffer(b"".join(events), np.uint8)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-log-")))
        redex = stack.enter_context(Redex(folder / "ours"))
        log = redex.open("bench/log", LogConfig(fsync=POLICIES[policy], seal_bytes=HUGE))
        theirs = net.Redex(persistent_dir=str(folder / "theirs")).open_file("bench/log", persistent=True)
        stack.callback(theirs.close)
        table = _sqlite(folder / "table.db", SYNCHRONOUS[policy])
        stack.callback(table.close)
        handle = os.open(folder / "plain", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        stack.callback(os.close, handle)
        sync = policy == "every append"

        def file_one() -> None:
            os.write(handle, payload)
            if sync:
                os.fsync(handle)

        def file_many() -> None:
            os.write(handle, data.data)
            if sync:
                os.fsync(handle)

        yield (
            {
                "meshbus": (lambda: log.append(payload), 1),
                "net-mesh": (_synced(lambda: theirs.append(payload), theirs.sync, sync), 1),
                "SQLite": (_committing(table, lambda: table.execute(INSERT, (0, payload))), 1),
                "file": (file_one, 1),
            },
            {
                "arrays": (lambda: log.append_batch((edges, data)), count),
                "Arrow": (lambda: log.append_batch(column), count),
                "list": (lambda: log.append_batch(events), count),
                "net-mesh": (_synced(lambda: theirs.append_batch(events), theirs.sync, sync), count),
                "SQLite": (
                    _committing(table, lambda: table.executemany(INSERT, ((0, event) for event in events))),
                    count,
                ),
                "file": (file_many, count),
            },
        )


INSERT = "insert into events (ts, payload) values (?, ?)"


def _sqlite(path: Path, synchronous: str) -> sqlite3.Connection:
    table = sqlite3.connect(path, isolation_level=None)
    table.execute("pragma journal_mode = wal")
    table.execute(f"pragma synchronous = {synchronous}")
    table.execute("create table events (seq integer primary key, ts integer, payload blob)")
    return table


def _committing(table: sqlite3.Connection, insert: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        table.execute("begin")
        insert()
        table.execute("commit")

    return call


def _synced(append: Callable[[], object], sync: Callable[[], object], wanted: bool) -> Callable[[], object]:
    if not wanted:
        return append

    def call() -> None:
        append()
        sync()

    return call


def reads(size: int, seconds: float, rounds: int, repeats: int) -> tuple[dict[str, Timing], list[float]]:
    """Compare ways to read the same events; also return the ratios of a scan to pyarrow alone."""
    payload = os.urandom(size)
    events = [os.urandom(size // 2) + payload[: size - size // 2] for _ in range(READ_BATCH)]
    with (
        tempfile.TemporaryDirectory(prefix="bench-log-") as name,
        Redex(Path(name) / "ours", background=False) as redex,
    ):
        hot = redex.open("hot", LogConfig(fsync=NEVER, seal_bytes=HUGE))
        sealed = redex.open("sealed", LogConfig(fsync=NEVER, seal_bytes=HUGE))
        theirs = net.Redex(persistent_dir=f"{name}/theirs").open_file("bench/log", persistent=True)
        table = _sqlite(Path(name) / "table.db", "OFF")
        for _ in range(READ_EVENTS // READ_BATCH):
            hot.append_batch(events)
            sealed.append_batch(events)
            theirs.append_batch(events)
            _committing(table, lambda: table.executemany(INSERT, ((0, event) for event in events)))()
        sealed.seal()
        (path,) = (Path(name) / "ours").glob("sealed-*/*.parquet")
        select = "select seq, ts, payload from events order by seq"
        found = compare(
            {
                "hot, events": (lambda: _count(hot.read_range(0, READ_EVENTS)), READ_EVENTS),
                "sealed, events": (lambda: _count(sealed.read_range(0, READ_EVENTS)), READ_EVENTS),
                "net-mesh": (lambda: _count(theirs.read_range(0, READ_EVENTS)), READ_EVENTS),
                "SQLite": (lambda: _count(table.execute(select)), READ_EVENTS),
                "hot, Arrow": (lambda: _rows(hot), READ_EVENTS),
                **(pair := _scans(sealed, path)),
            },
            seconds=seconds,
            rounds=rounds,
        )
        ratios = []
        for turn in range(repeats):
            order = pair if turn % 2 else dict(reversed(pair.items()))
            scans = compare(order, seconds=2 * seconds, rounds=rounds)
            ratios.append(scans["sealed, Arrow"].median_ns / scans["Parquet alone"].median_ns)
        table.close()
        theirs.close()
    return found, ratios


def _scans(log: RedexFile, path: Path) -> dict[str, Case]:
    return {
        "sealed, Arrow": (lambda: _rows(log), READ_EVENTS),
        "Parquet alone": (lambda: pq.read_table(path).num_rows, READ_EVENTS),
    }


def _count(events: Any) -> None:
    count = sum(1 for _ in events)
    assert count == READ_EVENTS


def _rows(log: RedexFile) -> None:
    count = sum(len(batch) for batch in log.read_batches())
    assert count == READ_EVENTS


def _sealing(size: int, rounds: int) -> list[Cell]:
    payload = np.frombuffer(os.urandom(size * READ_BATCH), np.uint8)
    edges = np.arange(0, (READ_BATCH + 1) * size, size)
    with tempfile.TemporaryDirectory(prefix="bench-log-") as name, Redex(name, background=False) as redex:
        log = redex.open("bench/log", LogConfig(fsync=NEVER, seal_bytes=HUGE))
        taken = []
        for _ in range(rounds):
            for _ in range(READ_EVENTS // READ_BATCH):
                log.append_batch((edges, payload))
            start = time.perf_counter()
            log.seal()
            taken.append(time.perf_counter() - start)
    rate = READ_EVENTS / statistics.median(taken)
    return [size, rate, size * rate / 1e6]


def _columns(found: dict[str, Timing], names: tuple[str, ...], scale: float) -> list[Cell]:
    return [found[name].median_ns * scale for name in names]


def _little(seconds: float, size: int) -> float:
    """Return a shorter time for large events: with too many unwritten pages, the disk would be measured."""
    return seconds * SIZES[0] / size


def _batch_claims(size: int, seconds: float, rounds: int, repeats: int) -> Iterator[list[Cell]]:
    """Repeat the comparison of batches, with new files each time."""
    times: dict[str, list[float]] = {"Arrow": [], "list": [], "file": []}
    for _ in range(repeats):
        with contenders(size, "never") as (_one, many):
            cases = {name: many[name] for name in ("net-mesh", *times)}
            found = compare(cases, seconds=_little(seconds, size), rounds=rounds)
        for name, ratios in times.items():
            ratios.append(found["net-mesh"].median_ns / found[name].median_ns)
    yield _claim(size, "append_batch of an Arrow column, times net-mesh", times["Arrow"], at_least=BATCH_CLAIM)
    yield _claim(size, "append_batch of a list, times net-mesh", times["list"])
    yield _claim(size, "bare file write, times net-mesh", times["file"])


def _claim(
    size: int, what: str, ratios: list[float], *, at_least: float | None = None, at_most: float | None = None
) -> list[Cell]:
    middle = statistics.median(ratios)
    verdict = ["", ""]
    if at_least is not None:
        verdict = [f"≥ {at_least:g}", "yes" if middle >= at_least else "no"]
    if at_most is not None:
        verdict = [f"≤ {at_most:g}", "yes" if middle <= at_most else "no"]
    return [size, what, middle, min(ratios), max(ratios), *verdict]
