"""Judge and count recorded packets inside a worker, on files and arrays, without Spark.

A task is a list of row groups of Parquet files. Only the columns that verdicts and counts depend on are read, in batches
and by one thread, because Spark assigns one core to a task. Verdicts are counted in one hash table per task, so the
output of a worker does not grow with its rows. Columns that only samples need are read only for row groups with samples.

spark/replay/replay.py chooses the files and adds up the counts; spark/replay/kernelgateway.py judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshbus import jit
from meshbus.log.schema import signed, unsigned
from meshbus.policy.reason import Reason
from meshbus.policy.verdict import VERDICTS
from meshbus.spark.io.inputs import stored
from meshbus.spark.replay.kernelgateway import COLUMNS, Judge, numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

SAMPLES = 20
"""Packets sampled per pair of recorded and proposed verdict: enough to see a pattern, few enough to print."""
READ = (*COLUMNS, "channel", "sampling_rate", "payload_len")
"""Columns that are read of every row group."""
COUNTED = (
    "sample BOOLEAN, channel STRING, src INT, dst INT, reason SMALLINT, proposed SMALLINT, packets BIGINT, bytes BIGINT,"
    " ts TIMESTAMP, origin BIGINT, stream_id BIGINT, packet_seq BIGINT"
)
"""Columns of a task's output. Rows are counts, or samples, which have the last four columns instead of packets and bytes."""

_TASK_ROWS = 1 << 20
"""Approximate rows per task: a fraction of a second of work, so that tasks balance over the cores."""
BATCH_ROWS = 1 << 16
"""Rows judged at a time; bounds the memory of a task."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = np.iinfo(np.int64)
_SHOWN = ("channel", "src", "dst", "origin", "stream_id")
_SHOWN_TOO = ("ts_ns", "packet_seq")
"""Columns of samples: those in READ, and those read in addition."""
# Row of the hash table of counts (open addressing); kind 0 marks a free row.
_ROW_WORDS = 4
_SUBNETS, _KIND, _PACKETS, _BYTES = range(_ROW_WORDS)
"""Columns of a row: source << 32 | destination; (channel + 1) << 16 | recorded << 8 | proposed; and the two counts."""
_FEWEST_ROWS = 1 << 10
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SPREAD_SHIFT = np.uint64(32)


class Chosen(NamedTuple):
    """Which packets are judged: of one recorder, from `start` until before `end`; None is no restriction."""

    recorder: int | None = None
    start: datetime | None = None
    end: datetime | None = None

    def bounds(self) -> list[Bound]:
        """Return the restrictions as ranges of column values."""
        found = []
        if self.recorder is not None:
            found.append(Bound("recorder", stored(self.recorder), stored(self.recorder)))
        if self.start is not None or self.end is not None:
            low = _INT64.min if self.start is None else _ns(self.start)
            high = _INT64.max if self.end is None else _ns(self.end) - 1
            found.append(Bound("ts_ns", low, high))
        return found


class Bound(NamedTuple):
    """Range of the allowed values of a column, inclusive."""

    column: str
    low: int
    high: int


def _ns(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


class Piece(NamedTuple):
    """Some row groups of a file."""

    path: str
    groups: tuple[int, ...]


def plan(files: Iterable[Path], chosen: Chosen) -> list[list[Piece]]:
    """Divide files into tasks of about _TASK_ROWS rows, skipping row groups without chosen rows."""
    import pyarrow.parquet as pq

    bounds = chosen.bounds()
    tasks: list[list[Piece]] = []
    room = 0
    for file in files:
        metadata = pq.read_metadata(file)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            # Rows are nearly in time order, so most row groups lie outside a short time span.
            if not all(_may_hold(group, bound) for bound in bounds):
                continue
            if room <= 0:
                tasks.append([])
                room = _TASK_ROWS
            pieces = tasks[-1]
            # Neighboring row groups of one file are one piece, which is opened once.
            before = pieces.pop().groups if pieces and pieces[-1].path == str(file) else ()
            pieces.append(Piece(str(file), (*before, number)))
            room -= group.num_rows
    return tasks


def _may_hold(group: Any, bound: Bound) -> bool:
    """Return whether a row group may have rows within a bound, by the statistics in its file."""
    columns = (group.column(place) for place in range(group.num_columns))
    found = next((column.statistics for column in columns if column.path_in_schema == bound.column), None)
    # Without statistics nothing can be excluded.
    if found is None or not found.has_min_max:
        return True
    return bool(found.max >= bound.low and found.min <= bound.high)


def judge_task(task: Iterable[Piece], judge: Judge, chosen: Chosen) -> Iterator[Any]:
    """Judge the packets of a task, and yield record batches of COUNTED: samples first, the counts last."""
    import pyarrow.parquet as pq

    tally, chooser, bounds = Tally(), _SampleChooser(), chosen.bounds()
    columns = [*READ, *(bound.column for bound in bounds)]
    for path, groups in task:
        with pq.ParquetFile(path, memory_map=True, read_dictionary=["channel"]) as file:
            for group in groups:
                at, shown = 0, _SampledRows([], [])
                for batch in file.iter_batches(BATCH_ROWS, [group], columns, use_threads=False):
                    judged = judge_rows(batch, judge, bounds)
                    tally.add(batch, judged)
                    shown.add(at, batch, chooser.choose(judged), judged)
                    at += len(batch)
                if shown.places:
                    yield _samples(file, group, shown)
    yield tally.to_batch()


class Judged(NamedTuple):
    """Verdicts on the rows of a batch."""

    recorded: NDArray[np.int16]
    proposed: NDArray[np.uint8]
    meant: NDArray[np.bool_]
    """Mask of the rows to count: chosen, judged by a gateway, and with recorded subnets."""


def judge_rows(batch: Any, judge: Judge, bounds: Iterable[Bound]) -> Judged:
    """Judge a batch with READ and the columns of the bounds."""
    proposed, meant = judge.judge_batch(batch)
    if batch.column("src").null_count:  # subnets were not looked at, so no policy would decide otherwise
        meant &= batch.column("src").is_valid().to_numpy(zero_copy_only=False)
    for bound in bounds:
        found = numbers(batch.column(bound.column))
        meant &= (found >= bound.low) & (found <= bound.high)
    recorded = numbers(batch.column("reason"))
    # CROWDED: the gateway forwarded the packet, and it was dropped afterwards for lack of room.
    return Judged(np.where(recorded == Reason.CROWDED.code, 0, recorded), proposed, meant)


# ── counts ──────────────────────────────────────────────────────────────────────────────────


class Tally:
    """Packets and bytes by channel, subnets, and recorded and proposed verdict."""

    def __init__(self) -> None:
        self._channels: dict[str | None, int] = {}
        self._table = _table(_FEWEST_ROWS)

    def add(self, batch: Any, judged: Judged) -> None:
        """Count the rows of a batch with READ for which `judged.meant` is set."""
        columns = (
            self._codes(batch.column("channel")),
            unsigned(numbers(batch.column("src"))),
            unsigned(numbers(batch.column("dst"))),
            *judged,
            numbers(batch.column("sampling_rate")),
            numbers(batch.column("payload_len")),
        )
        done = 0
        while done < len(batch):
            # At most half full: open addressing degrades quickly beyond that.
            room = len(self._table) // 2 - int(np.count_nonzero(self._table[:, _KIND]))
            done = count.run(*columns, self._table, done, room)
            if done < len(batch):
                larger = _table(4 * len(self._table))
                move.run(self._table, larger)
                self._table = larger

    def _codes(self, channel: Any) -> NDArray[np.int32]:
        """Return the channels of a dictionary column as numbers that are valid for the whole tally."""
        # The extra entry stands for null; the dictionary differs from batch to batch.
        names = [*channel.dictionary.to_pylist(), None]
        numbered = [self._channels.setdefault(name, len(self._channels)) for name in names]
        codes: NDArray[np.int32] = np.array(numbered, np.int32)[numbers(channel.indices, len(names) - 1)]
        return codes

    def to_batch(self) -> Any:
        """Return the counts as a record batch of COUNTED."""
        import pyarrow as pa

        rows = self._table[self._table[:, _KIND] != 0]
        kinds = rows[:, _KIND]
        names = list(self._channels)
        subnets = {"src": rows[:, _SUBNETS] >> np.uint64(32), "dst": rows[:, _SUBNETS]}
        return _counted(
            len(rows),
            sample=False,
            channel=pa.array([names[code] for code in ((kinds >> np.uint64(16)) - np.uint64(1)).tolist()], pa.string()),
            **{name: signed(found.astype(np.uint32)) for name, found in subnets.items()},
            reason=(kinds >> np.uint64(8) & np.uint64(0xFF)).astype(np.int16),
            proposed=(kinds & np.uint64(0xFF)).astype(np.int16),
            packets=rows[:, _PACKETS].astype(np.int64),
            bytes=rows[:, _BYTES].astype(np.int64),
        )


def _table(rows: int) -> Words:
    return np.zeros((rows, _ROW_WORDS), np.uint64)


@jit.helper
def _row_of(table: Any, subnets: Any, kind: Any) -> Any:
    """Return the row of a key, or the free row where it belongs."""
    mask = np.uint64(len(table) - 1)
    row = ((subnets ^ kind * _SPREAD) * _SPREAD >> _SPREAD_SHIFT) & mask
    while table[row, _KIND] != 0 and (table[row, _KIND] != kind or table[row, _SUBNETS] != subnets):
        row = (row + np.uint64(1)) & mask
    return row


def _move_reference(table: Words, larger: Words) -> None:
    with np.errstate(over="ignore"):
        for row in table[table[:, _KIND] != 0]:
            larger[_row_of(larger, row[_SUBNETS], row[_KIND])] = row


@jit.kernel(_move_reference)
def move(table: Words, larger: Words) -> None:
    """Copy the counts of a table into a larger, empty one."""
    for i in range(len(table)):
        if table[i, _KIND] != 0:
            row = _row_of(larger, table[i, _SUBNETS], table[i, _KIND])
            for k in range(_ROW_WORDS):
                larger[row, k] = table[i, k]


def _count_reference(
    channel: NDArray[np.int32],
    src: NDArray[np.uint32],
    dst: NDArray[np.uint32],
    reason: NDArray[np.int16],
    proposed: NDArray[np.uint8],
    meant: NDArray[np.bool_],
    rate: NDArray[np.int32],
    size: NDArray[np.int32],
    table: Words,
    start: int,
    room: int,
) -> int:
    ours = np.flatnonzero(meant[start:]) + start
    keys = np.zeros((len(ours), 2), np.uint64)
    keys[:, _SUBNETS] = src[ours].astype(np.uint64) << np.uint64(32) | dst[ours]
    keys[:, _KIND] = (channel[ours] + 1).astype(np.uint64) << np.uint64(16)
    keys[:, _KIND] |= reason[ours].astype(np.uint64) << np.uint64(8) | proposed[ours]
    found, place = np.unique(keys, axis=0, return_inverse=True)
    # A sampled packet stands for as many as the sampling rate says.
    packets = rate[ours].astype(np.int64)
    totals = np.zeros((len(found), 2), np.uint64)
    np.add.at(totals, place, np.stack([packets, packets * size[ours]], axis=1).astype(np.uint64))
    with np.errstate(over="ignore"):
        rows = [_row_of(table, *key) for key in found]
        if sum(table[row, _KIND] == 0 for row in rows) > room:
            return start
        for key, total in zip(found, totals, strict=True):
            row = _row_of(table, *key)
            table[row, :_PACKETS] = key
            table[row, _PACKETS:] += total
    return len(meant)


@jit.kernel(_count_reference)
def count(
    channel: NDArray[np.int32],
    src: NDArray[np.uint32],
    dst: NDArray[np.uint32],
    reason: NDArray[np.int16],
    proposed: NDArray[np.uint8],
    meant: NDArray[np.bool_],
    rate: NDArray[np.int32],
    size: NDArray[np.int32],
    table: Words,
    start: int,
    room: int,
) -> int:
    """Count rows from `start` on, adding at most `room` new keys; returns the first row that was not counted."""
    for i in range(start, len(meant)):
        if not meant[i]:
            continue
        subnets = np.uint64(src[i]) << np.uint64(32) | np.uint64(dst[i])
        kind = (
            np.uint64(channel[i] + 1) << np.uint64(16) | np.uint64(reason[i]) << np.uint64(8) | np.uint64(proposed[i])
        )
        row = _row_of(table, subnets, kind)
        if table[row, _KIND] == 0:
            if room == 0:
                return i
            room -= 1
            table[row, _SUBNETS] = subnets
            table[row, _KIND] = kind
        table[row, _PACKETS] += np.uint64(rate[i])
        table[row, _BYTES] += np.uint64(rate[i]) * np.uint64(size[i])
    return len(meant)


# ── samples ─────────────────────────────────────────────────────────────────────────────────


class _SampledRows(NamedTuple):
    """Sampled rows of a row group."""

    places: list[int]
    parts: list[Any]
    """One table per batch, with the recorded and the proposed verdict."""

    def add(self, at: int, batch: Any, places: NDArray[np.intp], judged: Judged) -> None:
        """Add rows of a batch, which begins at row `at` of the row group."""
        import pyarrow as pa

        if len(places):
            self.places.extend((at + places).tolist())
            rows = pa.table(batch.select(_SHOWN).take(pa.array(places)))
            for name, column in (("reason", judged.recorded), ("proposed", judged.proposed.astype(np.int16))):
                rows = rows.append_column(name, pa.array(column[places]))
            self.parts.append(rows)


class _SampleChooser:
    """Selects the first packets of each pair of different verdicts as samples."""

    def __init__(self) -> None:
        # Pairs of equal verdicts get no samples: nothing would change for them.
        recorded, proposed = np.divmod(np.arange(VERDICTS * VERDICTS), VERDICTS)
        self._left = np.where(recorded != proposed, SAMPLES, 0)

    def choose(self, judged: Judged) -> NDArray[np.intp]:
        """Return the positions of the rows to sample."""
        recorded, proposed, meant = judged
        kinds = np.where(meant, recorded, 0).astype(np.uint8) * np.uint8(VERDICTS) + proposed
        candidates = np.flatnonzero((self._left > 0)[kinds] & meant)
        found = []
        for kind in np.unique(kinds[candidates]):
            places = candidates[kinds[candidates] == kind][: self._left[kind]]
            self._left[kind] -= len(places)
            found.append(places)
        return np.sort(np.concatenate(found)) if found else candidates


def _samples(file: Any, group: int, shown: _SampledRows) -> Any:
    """Read the remaining columns of the sampled rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at, parts = 0, []
    for batch in file.iter_batches(BATCH_ROWS, [group], list(_SHOWN_TOO), use_threads=False):
        mine = [place - at for place in shown.places if at <= place < at + len(batch)]
        parts.append(batch.take(pa.array(mine, pa.int64())))
        at += len(batch)
        if at > shown.places[-1]:
            break
    known, read = pa.concat_tables(shown.parts), pa.Table.from_batches(parts)
    columns = {name: rows.column(name).combine_chunks() for rows in (known, read) for name in rows.column_names}
    columns["ts"] = pc.divide(columns.pop("ts_ns"), 1000).cast(pa.timestamp("us", "UTC"))
    return _counted(len(known), sample=True, **columns)


def _counted(rows: int, *, sample: bool, **known: Any) -> Any:
    """Return a record batch of COUNTED, with nulls in the columns that are not given."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("sample", pa.bool_()), ("channel", pa.string()), ("src", pa.int32()), ("dst", pa.int32()),
            ("reason", pa.int16()), ("proposed", pa.int16()), ("packets", pa.int64()), ("bytes", pa.int64()),
            ("ts", pa.timestamp("us", "UTC")), ("origin", pa.int64()), ("stream_id", pa.int64()),
            ("packet_seq", pa.int64()),
        ]
    )  # fmt: skip
    known["sample"] = np.full(rows, sample)
    arrays = [
        pa.array(known[field.name]).cast(field.type) if field.name in known else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
