"""Events as a node logs them when it receives them, and the logs that are filled with them.

Each of four channels has four publishers, which number their events. A batch is what a node takes from its socket at once:
packets of one publisher with a hundred events each, which share the time of their publication. Receipts are spread over
time at a rate of about 10^9 events a day, so the number of hours and minutes grows with the number of events. Payloads are
random, or JSON of a declared form.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import processor_seconds
from meshbus.log.log import Redex, RedexFile
from meshbus.spark.lake.codec import Codec, Declaration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.columns import Columns

CHANNELS = tuple(f"plant/line{number}/state" for number in range(4))
PUBLISHERS = 4
"""Publishers of each channel."""
PACKET_EVENTS = 100
BATCH_EVENTS = 160 * PACKET_EVENTS
"""Events of one append: a mebibyte of payloads of 64 bytes, about what a node appends at full speed."""
RAW_BYTES = 64
EVENTS_PER_S = 10_000
"""Events per second of the time in which they were received: 0.86 · 10^9 a day."""
BEGIN_NS = 1_794_780_000_000_000_000
"""When the first event was received."""
_SESSION, _SUBNETS, _RECORDER = 0x5E55_1011, (0x03070000, 0x03000000), 77
_LATENCY_NS = 400_000
"""Mean time from publication to receipt; drawn for each packet, exponentially distributed."""
_POLL_S = 0.005
SEAL_TIMEOUT_S = 900.0
_WRITE_BYTES, _FILE_BYTES = 1 << 20, 64 << 20
"""What is written at once, and the size of a file, as in sealing."""

JSON = b'{"sensor":"s-####","reading":@#######,"temp":@#.###,"pressure":@###.##,"state":"running","line":@#,"ok":true}'
"""A payload: `#` is a random digit, `@` one that is not zero."""
JSON_SCHEMA = "sensor STRING NOT NULL, reading BIGINT, temp DOUBLE, pressure DOUBLE, state STRING, line INT, ok BOOLEAN"


class Load(msgspec.Struct, frozen=True):
    """A number of events of one kind."""

    events: int
    json: bool = False
    received: bool = True
    """Whether rows are those of received events; if not, those of the publisher's own log, which have no latency."""
    raw_bytes: int = RAW_BYTES
    """Size of a payload that is not JSON."""

    @property
    def kind(self) -> str:
        """What the payloads are."""
        return "JSON" if self.json else "raw"

    @property
    def event_bytes(self) -> int:
        """Bytes of one payload."""
        return len(JSON) if self.json else self.raw_bytes

    @property
    def declarations(self) -> tuple[Declaration, ...]:
        """What a pipeline is told about the payloads."""
        return (Declaration(prefix="", codec=Codec.JSON, schema=JSON_SCHEMA),) if self.json else ()


class Batch(NamedTuple):
    """The arguments of one append."""

    channel: str
    payloads: Any
    """An Arrow array."""
    columns: Columns


def batches(load: Load, *, seed: int = 1) -> Iterator[Batch]:
    """Yield all events of a load, in the order of their receipt; channels and publishers take turns."""
    rng = np.random.default_rng(seed)
    sources = [(channel, origin) for origin in range(PUBLISHERS) for channel in range(len(CHANNELS))]
    sent = dict.fromkeys(sources, 0)
    for number, start in enumerate(range(0, load.events, BATCH_EVENTS)):
        count = min(BATCH_EVENTS, load.events - start)
        source = sources[number % len(sources)]
        yield Batch(
            CHANNELS[source[0]],
            _payloads(load, count, rng),
            _columns(source, sent[source], start, count, rng, received=load.received),
        )
        sent[source] += count


def _columns(
    source: tuple[int, int], first: int, start: int, count: int, rng: np.random.Generator, *, received: bool
) -> Columns:
    """Return what a node writes about the events of one batch (node/logs/logs.py)."""
    channel, publisher = source
    origin = 0xA000 + channel * PUBLISHERS + publisher
    recv_ns = BEGIN_NS + start * 1_000_000_000 // EVENTS_PER_S
    packets = -(-count // PACKET_EVENTS)
    published = recv_ns - rng.exponential(_LATENCY_NS, packets).astype(np.int64)
    of_packet = np.arange(count) // PACKET_EVENTS
    columns: Columns = {
        "pub_seq": first,
        "origin": origin,
        "ts_ns": published[of_packet],
        "recv_ts_ns": recv_ns,
        "src": _SUBNETS[0],
        "dst": _SUBNETS[1],
        "ttl": 16,
    }
    if received:
        columns |= {
            "session_id": _SESSION + publisher,
            "stream_id": 0x100 + channel,
            "packet_seq": first // PACKET_EVENTS + of_packet,
            "event_index": np.arange(count) % PACKET_EVENTS,
            "hops": 1,
        }
    return columns


def _payloads(load: Load, count: int, rng: np.random.Generator) -> Any:
    """Return an Arrow array of payloads of equal length."""
    size = load.event_bytes
    data = _json(count, rng) if load.json else np.frombuffer(rng.bytes(count * size), np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _json(count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return documents one after the other, with random digits in their places."""
    form = np.frombuffer(JSON, np.uint8)
    rows = np.tile(form, (count, 1))
    for mark, least in ((b"#", 0), (b"@", 1)):
        places = np.flatnonzero(form == mark[0])
        rows[:, places] = ord("0") + rng.integers(least, 10, (count, len(places)), np.uint8)
    return rows.reshape(-1)


class Stopwatch:
    """Adds up the wall-clock and processor seconds of the `with` blocks that it is used for."""

    def __init__(self, processor: Callable[[], float] = time.process_time) -> None:
        self.seconds = self.cpu_s = 0.0
        self._processor = processor
        self._began = (0.0, 0.0)

    def __enter__(self) -> Self:
        self._began = self._processor(), time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        cpu_s, seconds = self._began
        self.seconds += time.perf_counter() - seconds
        self.cpu_s += self._processor() - cpu_s


class Filled(NamedTuple):
    """Logs that were filled and sealed, and how long that took."""

    paths: list[str]
    """The sealed Parquet files."""
    append: Stopwatch
    seal: Stopwatch


def fill(root: Path, load: Load) -> Filled:
    """Fill the received logs of a node and seal them in turns, in this thread; raises RuntimeError if rows are missing.

    A hot file is sealed as soon as it is complete, as by a background thread that keeps up. So neither appending nor
    sealing waits for the other, and each is measured alone.
    """
    append, seal = Stopwatch(), Stopwatch(processor_seconds)
    with Redex(root / "received", recorder=_RECORDER, background=False) as redex:
        logs = {channel: redex.open(channel) for channel in CHANNELS}
        for batch in batches(load):
            log = logs[batch.channel]
            with append:
                log.append_batch(batch.payloads, **batch.columns)
            if _hot_bytes(log) >= log.config.file_bytes:
                with seal:
                    log.keep()
                    _wait([log], lambda log: not log.stats.unsealed)
        with seal:
            for log in logs.values():
                log.seal()
        return Filled(_sealed(logs.values(), load), append, seal)


def append_alone(root: Path, load: Load) -> Stopwatch:
    """Append everything at once, as `fill_behind` does, but let nobody seal it; return how long that took."""
    prepared, append = list(batches(load)), Stopwatch()
    with Redex(root / "received", recorder=_RECORDER, background=False) as redex:
        logs = {channel: redex.open(channel) for channel in CHANNELS}
        with append:
            for batch in prepared:
                logs[batch.channel].append_batch(batch.payloads, **batch.columns)
    return append


def fill_behind(root: Path, load: Load) -> Filled:
    """Append everything at once, and wait until the background thread has sealed it.

    Sealing is timed from the first append to the last segment, because both run at the same time. What the thread leaves
    in hot files that are not complete is sealed at the end.
    """
    prepared = list(batches(load))
    append, seal = Stopwatch(), Stopwatch(processor_seconds)
    with Redex(root / "received", recorder=_RECORDER) as redex:
        logs = {channel: redex.open(channel) for channel in CHANNELS}
        with seal:
            with append:
                for batch in prepared:
                    logs[batch.channel].append_batch(batch.payloads, **batch.columns)
            _wait(logs.values(), lambda log: _hot_bytes(log) < log.config.file_bytes)
            for log in logs.values():
                log.seal()
        return Filled(_sealed(logs.values(), load), append, seal)


def write_plainly(path: Path, size: int) -> float:
    """Return the seconds that the disk needs for so many bytes, without anything of ours: in files, one after the other."""
    part = np.random.default_rng(1).bytes(_WRITE_BYTES)
    began = time.perf_counter()
    for start in range(0, size, _FILE_BYTES):
        with path.open("wb", buffering=0) as file:
            for _ in range(start, min(start + _FILE_BYTES, size), len(part)):
                file.write(part)
            os.fdatasync(file.fileno())
        path.unlink()
    return time.perf_counter() - began


def write_by_arrow(path: Path, load: Load) -> float:
    """Return the seconds that pyarrow needs to write and sync the payloads alone, uncompressed, in files of the same size.

    They are in memory already, and no column is beside them.
    """
    rows = max(_FILE_BYTES // load.event_bytes, 1)
    column = _payloads(load, rows, np.random.default_rng(1))
    table, began = pa.table({"payload": column}), time.perf_counter()
    for start in range(0, load.events, rows):
        pq.write_table(
            table.slice(0, min(rows, load.events - start)), path, compression="none", use_dictionary=False,
            write_statistics=False, write_page_checksum=True,
        )  # fmt: skip
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
        path.unlink()
    return time.perf_counter() - began


def _hot_bytes(log: RedexFile) -> float:
    """Return about how many bytes of a log are not sealed."""
    stats, snapshot = log.stats, log.snapshot()
    return (snapshot.end - snapshot.sealed_end) * stats.appended_bytes / max(stats.appended, 1)


def _sealed(logs: Iterable[RedexFile], load: Load) -> list[str]:
    """Return the files of logs; raises RuntimeError unless they have exactly the rows of a load, all of them sealed."""
    segments = [segment for log in logs for segment in log.snapshot().segments]
    rows = sum(pq.read_metadata(segment.path).num_rows for segment in segments)
    expect("sealed rows", rows, load.events)
    return [str(segment.path) for segment in segments]


def expect(what: str, found: int, expected: int) -> None:
    """Raise RuntimeError unless a count is right: a figure for wrong results is worth nothing."""
    if found != expected:
        raise RuntimeError(f"{what}: found {found}, expected {expected}; the measurement is void")


def _wait(logs: Iterable[RedexFile], done: Callable[[RedexFile], bool]) -> None:
    until = time.monotonic() + SEAL_TIMEOUT_S
    while not all(map(done, logs)):
        if time.monotonic() > until:
            raise RuntimeError(f"sealing did not end within {SEAL_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
