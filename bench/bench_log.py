"""Claim: the log appends batches several times as fast as net-mesh's log, reads as fast as plain Parquet, and keeps up.

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
orders equally often. The table of reads measures both among five others; do not take ratios from it. Sealing is measured
with random payloads, which are not worth compressing, and in processor time; the disk has to be as fast. An append beside
a seal shares a processor with it if the machine has no other to spare.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
SINGLE_CLAIM = 1.0
SCAN_CLAIM = 1.5
SEAL_EVENTS, SEAL_BYTES = 3e6, 0.8e9
"""Goals of sealing per second: events of 64 B, and bytes of payloads of 1 KiB."""
SEAL_SECONDS = 0.1
"""About how long one seal takes."""


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
    claims = [_single_claim(size, seconds, rounds, appends) for size in SIZES]
    claims += [row for size in SIZES for row in _batch_claims(size, seconds, rounds, appends)]
    sealed = {size: seals(size, appends) for size in SIZES}
    for size, each in sealed.items():
        claims += _seal_claims(size, each)
        claims.append(_claim(size, "append while a thread seals, times append alone", beside_seals(size, appends)))
    reading: list[list[Cell]] = []
    for size in SIZES:
        timings, ratios = reads(size, seconds, rounds, scans)
        reading.append([size, *(timings[name].median_ns for name in READS)])
        claims.append(_claim(size, "scan of sealed data, times pyarrow alone", ratios, at_most=SCAN_CLAIM))
    return [
        Table("Append one event: wall-clock µs", ["bytes", "fsync", *ONE], singles),
        Table("Append a batch of 1 MiB: wall-clock ns per event", ["bytes", "fsync", *MANY], batches),
        Table(f"Read {READ_EVENTS} events: wall-clock ns per event", ["bytes", *READS], reading),
        Table(
            "Seal a hot file of 64 MiB to Parquet",
            ["bytes", "events/s", "MB/s", "cpu ns", "least cpu ns", "MB per cpu s", "pyarrow cpu ns"],
            [_seal_row(size, found) for size, found in sealed.items()],
            [
                "ns per event, medians; cpu: processor time of all threads, which a busy machine changes less",
                "pyarrow: write_table of the same rows, which are in memory; with snappy, without checksums and fsync",
            ],
        ),
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


def seals(size: int, rounds: int) -> dict[str, list[Spent]]:
    """Seal hot files of the default size, and write the same rows with pyarrow alone, in turn."""
    count = LogConfig().seal_bytes // size // READ_BATCH * READ_BATCH
    edges = np.arange(0, (READ_BATCH + 1) * size, size)
    data = np.frombuffer(os.urandom(count * size), np.uint8).reshape(-1, READ_BATCH * size)
    found: dict[str, list[Spent]] = {"seal": [], "pyarrow": []}
    with tempfile.TemporaryDirectory(prefix="bench-log-") as name, Redex(name, background=False) as redex:
        log = redex.open("bench/log", LogConfig(fsync=NEVER, seal_bytes=HUGE))
        for turn in range(rounds + 1):
            for part in data:
                log.append_batch((edges, part))
            log.sync()
            sealing = spent(log.seal, count)
            table = pa.Table.from_batches(log.read_batches(count * turn))
            writing = spent(partial(pq.write_table, table, f"{name}/alone.parquet"), count)
            if turn:  # the first compiles
                found["seal"].append(sealing)
                found["pyarrow"].append(writing)
    return found


class Spent(NamedTuple):
    """Nanoseconds per event."""

    wall: float
    cpu: float


def spent(call: Callable[[], object], count: int) -> Spent:
    """Call once; return wall-clock time and the processor time of all threads, per event."""
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    call()
    return Spent((time.perf_counter_ns() - wall) / count, (time.process_time_ns() - cpu) / count)


def _seal_row(size: int, found: dict[str, list[Spent]]) -> list[Cell]:
    wall, cpu = (statistics.median(getattr(each, clock) for each in found["seal"]) for clock in Spent._fields)
    best = min(each.cpu for each in found["seal"])
    peer = statistics.median(each.cpu for each in found["pyarrow"])
    return [size, 1e9 / wall, size * 1e3 / wall, cpu, best, size * 1e3 / best, peer]


def _seal_claims(size: int, found: dict[str, list[Spent]]) -> Iterator[list[Cell]]:
    pairs = zip(found["seal"], found["pyarrow"], strict=True)
    yield _claim(size, "seal, times pyarrow's write_table, processor time", [peer.cpu / own.cpu for own, peer in pairs])
    # In units of the goal, so that 1 is the goal at both sizes.
    goal = 1e9 / SEAL_EVENTS if size == SIZES[0] else size * 1e9 / SEAL_BYTES
    rates = [goal / own.cpu for own in found["seal"]]
    yield _claim(size, "seal per processor second, times the goal", rates, at_least=1.0)


def beside_seals(size: int, repeats: int) -> list[float]:
    """Return how many times as long an append takes while another thread seals another log of this process."""
    ratios = []
    event, edges = os.urandom(size), np.arange(0, (READ_BATCH + 1) * size, size)
    data = np.frombuffer(os.urandom(READ_BATCH * size), np.uint8)
    with tempfile.TemporaryDirectory(prefix="bench-log-") as name, Redex(name, background=False) as redex:
        log, other = (redex.open(channel, LogConfig(fsync=NEVER, seal_bytes=HUGE)) for channel in ("a/log", "b/log"))
        for turn in range(repeats + 1):
            for _ in range(LogConfig().seal_bytes // len(data)):
                other.append_batch((edges, data))
            thread = threading.Thread(target=other.seal)
            thread.start()
            beside = _append_ns(log, event, thread.is_alive)
            thread.join()
            until = time.perf_counter() + SEAL_SECONDS
            alone = _append_ns(log, event, partial(_before, until))
            ratios += [beside / alone] if turn else []
    return ratios


def _before(until: float) -> bool:
    return time.perf_counter() < until


def _append_ns(log: RedexFile, event: bytes, going_on: Callable[[], bool]) -> float:
    """Append single events while a condition holds; return the time that one takes."""
    start, count = time.perf_counter_ns(), 0
    while going_on():
        log.append(event)
        count += 1
    return (time.perf_counter_ns() - start) / max(count, 1)


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


def _single_claim(size: int, seconds: float, rounds: int, repeats: int) -> list[Cell]:
    """Repeat the comparison of single appends, with new files each time."""
    ratios = []
    for _ in range(repeats):
        with contenders(size, "never") as (one, _many):
            found = compare({name: one[name] for name in ("net-mesh", "meshbus")}, seconds=seconds, rounds=rounds)
        ratios.append(found["meshbus"].median_ns / found["net-mesh"].median_ns)
    return _claim(size, "append of one event, time of net-mesh's", ratios, at_most=SINGLE_CLAIM)


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
