"""Claim: the log takes batches at several times the speed of net-mesh's own, and is read as fast as plain Parquet.

Bias. One writer, one channel, one machine's disk, warm, files in the system's cache. Batches are a mebibyte of equal
events, about what a node hands over at full speed, which suits columns; an Arrow column or (offsets, data) is what a node hands over, and what the claim is about. net-mesh
takes lists only; the `list` rows are ours with the same input, which has to be joined first. Ours stores 24 columns for
an event, the peers a payload and a number. net-mesh's binding keeps every event in memory as well and reads from there;
it cannot sync by itself from Python (its fsync options abort the process), so `every append` calls its sync. SQLite is
one table (seq, ts, payload) in WAL mode: synchronous OFF, NORMAL and FULL stand for the policies. `file` is os.write of
the payloads alone: a floor, not a log. Times are by the wall clock, because waiting for a disk costs no processor; where
nothing is synced the two agree on a machine that is not busy. What `fsync` costs is a property of this disk.
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
"""Events of one append where reading and sealing are measured."""
POLICIES: dict[str, Fsync] = {"never": NEVER, "every append": every_n(1), "every second": interval(1.0)}
SYNCHRONOUS = {"never": "OFF", "every append": "FULL", "every second": "NORMAL"}
READ_EVENTS = 200_000
HUGE = 1 << 40
"""Nothing is sealed while appends are measured."""
BATCH_CLAIM = 5.0
SCAN_CLAIM = 1.5


def run(quick: bool) -> list[Table]:
    """Measure appending, reading and sealing."""
    seconds, rounds = (0.05, 3) if quick else (0.4, 7)
    singles: list[list[Cell]] = []
    batches: list[list[Cell]] = []
    claims: list[list[Cell]] = []
    for size in SIZES:
        for policy in POLICIES:
            with contenders(size, policy) as (one, many):
                found = compare(one, seconds=seconds, rounds=rounds)
                singles.append([size, policy, *_columns(found, ONE, 1e-3)])
                # Little at a time: what is measured beyond the system's patience with unwritten pages is the disk.
                found = compare(many, seconds=seconds * SIZES[0] / size, rounds=rounds)
                batches.append([size, policy, *_columns(found, MANY, 1.0)])
                if policy == "never":
                    claims += _batch_claims(size, found)
    reading: list[list[Cell]] = []
    for size in SIZES:
        timings = reads(size, seconds, rounds)
        reading.append([size, *(timings[name].median_ns for name in READS)])
        ratio = timings["sealed, Arrow"].median_ns / timings["Parquet alone"].median_ns
        claims.append(
            [size, "scan of sealed data, times pyarrow alone", ratio, f"≤ {SCAN_CLAIM:g}", _met(ratio <= SCAN_CLAIM)]
        )
    return [
        Table("Append one event, µs by the wall clock", ["bytes", "fsync", *ONE], singles),
        Table("Append a batch of 1 MiB, ns per event by the wall clock", ["bytes", "fsync", *MANY], batches),
        Table(f"Read {READ_EVENTS} events, ns per event by the wall clock", ["bytes", *READS], reading),
        Table("Seal: hot blocks to Parquet", ["bytes", "events/s", "MB/s"], [_sealing(size, rounds) for size in SIZES]),
        Table(
            "Claims of the log",
            ["bytes", "claim", "measured", "committed", "met"],
            claims,
            [f"median of {rounds} interleaved rounds; net-mesh: persistent file, list of bytes"],
        ),
    ]


ONE = ("meshbus", "net-mesh", "SQLite", "file")
MANY = ("arrays", "Arrow", "list", "net-mesh", "SQLite", "file")
READS = (
    "hot, events", "sealed, events", "net-mesh", "SQLite", "hot, Arrow", "sealed, Arrow", "Parquet alone",
)  # fmt: skip


@contextmanager
def contenders(size: int, policy: str) -> Iterator[tuple[dict[str, Case], dict[str, Case]]]:
    """Open a log of each kind, and give what appends one event and what appends many."""
    payload, count = os.urandom(size), BATCH_BYTES // size
    events = [payload] * count
    column = pa.array(events, pa.binary())
    edges = np.arange(0, (count + 1) * size, size)
    data = np.frombuffer(payload * count, np.uint8)
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


def reads(size: int, seconds: float, rounds: int) -> dict[str, Timing]:
    """Compare ways to read the same events."""
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
                "sealed, Arrow": (lambda: _rows(sealed), READ_EVENTS),
                "Parquet alone": (lambda: pq.read_table(path).num_rows, READ_EVENTS),
            },
            seconds=seconds,
            rounds=rounds,
        )
        table.close()
        theirs.close()
    return found


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


def _batch_claims(size: int, found: dict[str, Timing]) -> list[list[Cell]]:
    times = {name: found["net-mesh"].median_ns / found[name].median_ns for name in ("Arrow", "list", "file")}
    claim = [f"≥ {BATCH_CLAIM:g}", _met(times["Arrow"] >= BATCH_CLAIM)]
    return [
        [size, "append_batch of an Arrow column, times net-mesh", times["Arrow"], *claim],
        [size, "append_batch of a list, times net-mesh", times["list"], "", ""],
        [size, "plain file, the floor, times net-mesh", times["file"], "", ""],
    ]


def _met(holds: bool) -> str:
    return "yes" if holds else "no"
