"""Sealed segments: Parquet files that any Parquet reader understands, written once and never changed.

All row groups but the last have the same number of rows, so the group of a sequence is known without opening the file.
Every page has a checksum, which every read verifies: without it, a changed bit would become a changed event.

`write_segment` writes record batches with pyarrow: columns with few different values have dictionaries, sequences are
stored by their differences, and the rest is compressed. Most segments are written much faster, from hot files, by
log/embedded/sealing.py, and those of packets by log/packets/parquet.py; all are read here.

Segments are written under a temporary name; the caller renames. A reader finds a segment under its name or, if it was
replaced, where it is kept for running readers (log/folder.py); if it was moved, on object storage.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import Wanted, has_arrow, wanted
from meshbus.log.files import log_error
from meshbus.log.folder import aside, old_path, segment_name, segment_range
from meshbus.log.objectstore import StoredObject, explain, open_object, show_uri
from meshbus.log.schema import EVENTS, ON_DISK, VERSION_KEY

if TYPE_CHECKING:
    from meshbus.log.files import Files, Part

GROUP_BYTES = 16 << 20
"""Target size of a row group: large enough to compress and scan well, small enough for one task."""
_BUFFER = 1 << 20
"""Size of the write buffer: pyarrow writes many small pieces, and each system call costs."""
SYNC_STEP = 4 << 20
"""What a disk is asked to write at once: large enough for its full speed, and small enough that it starts soon and that
little is left to wait for at the end. A multiple of the block size: a block that is being written should not change."""
_AT_ONCE = 4
"""Row groups that are read together: enough for Arrow's threads, and about 64 MiB of memory."""
_FEWEST, _MOST = 1_024, 131_072
"""Limits of the rows in a row group: below, the overhead of a group dominates; above, one task gets too much."""

_COUNTING = ("seq", "pub_seq")
"""Columns that count up: differences take no space and a quarter of the time of compression."""
_PLAIN = {*_COUNTING, "payload", "ts", "ts_ns", "recv_ts", "recv_ts_ns", "headers"}
"""Columns whose values nearly all differ: a dictionary would only add cost."""
_ENCODING: Mapping[str, Any] = {
    "use_dictionary": [column.name for column in EVENTS if column.name not in _PLAIN],
    "column_encoding": dict.fromkeys(_COUNTING, "DELTA_BINARY_PACKED"),
}


class Segment(msgspec.Struct, frozen=True):
    """One sealed segment of a log, as its manifest stores it."""

    name: str
    first: int
    end: int
    """One past its last sequence."""
    bytes: int
    group_rows: int
    """Rows of each of its row groups; the last may have fewer."""
    written_ns: int
    """When its last row was written."""
    remote: StoredObject | msgspec.UnsetType = msgspec.UNSET
    """Its verified copy on object storage, if there is one; then the local file may be gone."""
    hot_bytes: int | msgspec.UnsetType = msgspec.UNSET
    """Size of the hot files that its rows were in, before compression; unset by older versions."""

    @property
    def content_bytes(self) -> int:
        """About how many bytes reading it yields."""
        return self.bytes if self.hot_bytes is msgspec.UNSET else max(self.hot_bytes, self.bytes)


class Sink(io.RawIOBase):
    """A handle of log/files.py as a Python file object, which pyarrow can write to."""

    def __init__(self, files: Files, handle: int) -> None:
        self._files = files
        self._handle = handle
        self._begun = self._ended = 0
        """How far writing to the disk was started, and how far it was waited for."""
        self.size = 0
        """Bytes written so far."""

    def writable(self) -> bool:
        """Return whether data can be written; pyarrow asks."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self.size

    def write(self, data: Any) -> int:
        """Write all of a buffer."""
        return self.put([memoryview(data).cast("B")])

    def put(self, parts: Sequence[Part]) -> int:
        """Write buffers one after the other and return the number of bytes."""
        before = self.size
        self.size = self._files.write(self._handle, parts, before)
        return self.size - before

    def begin_sync(self) -> None:
        """Start writing to the disk what is new, as far as it is whole steps, while more is being encoded.

        What was started the last time is waited for: in the queue of a disk, a whole segment would delay the syncs of
        everybody else for as long as it takes to write.
        """
        size = (self.size - self._begun) // SYNC_STEP * SYNC_STEP
        if size:
            self._files.begin_sync(self._handle, self._begun, size)
            if self._ended < self._begun:
                self._files.end_sync(self._handle, self._ended, self._begun - self._ended)
            self._ended, self._begun = self._begun, self._begun + size


@contextmanager
def new_segment(files: Files, path: Path) -> Iterator[Sink]:
    """Create a segment under a temporary name, and sync it at the end; if anything fails, nothing is left of it."""
    place = aside(path)
    files.remove(place)
    handle = files.create(place)
    try:
        yield Sink(files, handle)
        files.fsync(handle)
    # Also after KeyboardInterrupt: leave no incomplete file behind.
    except BaseException:
        files.remove(place)
        raise
    finally:
        files.close(handle)


def group_rows(rows: int, size: int) -> int:
    """Return how many rows a row group gets if there are `rows` rows of `size` bytes in all."""
    # By the average size of a row; the limits below keep extreme averages usable.
    fitting = GROUP_BYTES * max(rows, 1) // max(size, 1)
    return max(_FEWEST, min(_MOST, fitting))


def write_segment(
    files: Files,
    folder: Path,
    batches: Iterable[Any],
    *,
    first: int,
    end: int,
    per_group: int,
    written_ns: int,
    hot_bytes: int | msgspec.UnsetType = msgspec.UNSET,
    compress: bool = True,
) -> Segment:
    """Write record batches of a range of events as a segment under a temporary name, sync it, and describe it.

    The caller renames `aside(folder / segment.name)`. Needs memory for about one row group. Without `compress`, payloads
    are stored as they are.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name, schema = segment_name(first, end), wanted().schema
    with (
        new_segment(files, folder / name) as sink,
        io.BufferedWriter(sink, _BUFFER) as buffer,
        pq.ParquetWriter(
            buffer, schema, write_page_checksum=True, compression=_compression(compress), **_ENCODING
        ) as writer,
    ):
        for group in _groups(batches, per_group):
            writer.write_table(pa.Table.from_batches(group, schema), row_group_size=per_group)
    return Segment(name, first, end, sink.size, per_group, written_ns, hot_bytes=hot_bytes)


def _compression(payloads: bool) -> dict[str, str]:
    """Return the compression of each column."""
    plain = _COUNTING if payloads else (*_COUNTING, "payload")
    return {column.name: "none" if column.name in plain else "zstd" for column in EVENTS}


def _groups(batches: Iterable[Any], per_group: int) -> Iterator[list[Any]]:
    """Regroup a stream of batches into lists with exactly `per_group` rows each."""
    held: list[Any] = []
    rows = 0
    for whole in batches:
        batch = whole
        while rows + len(batch) >= per_group:
            cut = per_group - rows
            yield [*held, batch.slice(0, cut)]
            batch, held, rows = batch.slice(cut), [], 0
        if len(batch):
            held.append(batch)
            rows += len(batch)
    if held:
        yield held


def describe_segment(path: Path, log_id: bytes) -> Segment | None:
    """Return what a manifest says about a segment, from the file itself.

    Returns None if it is no whole segment of this log, or without pyarrow.
    """
    if not has_arrow():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    span = segment_range(path.name)
    try:
        with pq.ParquetFile(path) as file:
            group, rows = file.read_row_group(0, columns=["log_id"]), file.metadata.num_rows
        known = path.stat()
        whose = group["log_id"][0].as_py()
    except (pa.ArrowException, OSError, IndexError, KeyError) as error:
        if isinstance(error, OSError) and error.errno:  # of the system: it says nothing about the segment
            raise
        return None
    if span is None or whose != log_id or rows != span[1] - span[0]:
        return None
    return Segment(path.name, *span, known.st_size, len(group), known.st_mtime_ns)


def segment_path(folder: Path, name: str) -> Path:
    """Return the path of a segment, also of one that was replaced; raises FileNotFoundError if it is gone."""
    path = folder / name
    if path.exists():
        return path
    old = old_path(folder, name)
    if old.exists():
        return old
    raise FileNotFoundError(f"{path} is gone")


def read_segment(folder: Path, segment: Segment, want: Wanted, start: int, stop: int) -> Iterator[Any]:
    """Yield the rows of a range of a segment as record batches, a few row groups at a time.

    Raises FileNotFoundError if the segment is gone, and LogError if it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    start, stop = max(start, segment.first), min(stop, segment.end)
    if start >= stop:
        return
    path, source = _find(folder, segment)
    remote = isinstance(path, str)
    try:
        with source, pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=remote) as file:
            _check_version(path, file.schema_arrow.metadata or {})
            # A whole but different file under this name would shift all sequences.
            if file.metadata.num_rows != segment.end - segment.first:
                raise _damaged(path, f"it has {file.metadata.num_rows} rows")
            at = (start - segment.first) // segment.group_rows
            last = (stop - 1 - segment.first) // segment.group_rows + 1
            for group in range(at, last, _AT_ONCE):
                groups = list(range(group, min(group + _AT_ONCE, last)))
                table = file.read_row_groups(groups, columns=list(want.names))
                yield from _cut(table, segment.first + group * segment.group_rows, start, stop, want)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, IndexError, KeyError, ValueError) as error:
        unreachable = None
        if isinstance(path, str):
            unreachable = explain(path, "read", error)
        elif isinstance(error, OSError) and error.errno:  # of the system: it says nothing about the segment
            unreachable = log_error(error, path, "cannot read")
        raise unreachable or _damaged(path, " ".join(str(error).split())) from None


def _find(folder: Path, segment: Segment) -> tuple[Path | str, Any]:
    """Return where a segment is, the local file first, and what pyarrow reads it from.

    Raises FileNotFoundError if it is gone, and LogError if it cannot be opened.
    """
    try:
        path = segment_path(folder, segment.name)
    except FileNotFoundError:
        if segment.remote is msgspec.UNSET:
            raise
        return segment.remote.uri, open_object(segment.remote.uri)
    return path, _mapped(path)


def _mapped(path: Path) -> Any:
    import pyarrow as pa

    try:
        return pa.memory_map(str(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        # pyarrow gives a map that failed no error number, so here and not where damage is found.
        raise log_error(error, path, "cannot read") from error


def _check_version(path: Path | str, metadata: dict[bytes, bytes]) -> None:
    version = metadata.get(VERSION_KEY.encode(), b"").decode()
    if not version.isdecimal():
        raise _damaged(path, "it was not written by meshbus")
    if problem := ON_DISK[0].problem(int(version)):
        raise LogError(LogFault.NEWER, f"{path}: {problem}")


def _cut(table: Any, low: int, start: int, stop: int, want: Wanted) -> Iterator[Any]:
    begin, end = max(start - low, 0), min(stop - low, table.num_rows)
    part = table.slice(begin, end - begin)
    # The caller may want plain strings instead of dictionaries, or another order of columns.
    if part.schema != want.schema:
        part = part.select(list(want.names)).cast(want.schema)
    yield from part.to_batches()


def _damaged(path: Path | str, why: str) -> LogError:
    where = show_uri(path) if isinstance(path, str) else path
    return LogError(
        LogFault.CORRUPT, f"{where} is damaged: {why}; restore it from a copy; the other segments are readable"
    )
