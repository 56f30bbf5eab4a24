"""Inputs of the data source: logs of channels and packet records, as named ranges of numbered rows.

    <path>/<slug>-<hash>/                 log of a channel, rows numbered by sequence (log/reader.py); named by its channel
    <path>/published/<slug>-<hash>/       the same below a node's log_dir; named `published:<channel>`
    <path>/received/<slug>-<hash>/        the same; named `received:<channel>`
    <path>/_packets/<16 hex>/             packet record of a node (log/packets/reader.py); named by the node id in hex

Sealed files and the hot tail are read as one range, without a lock and without disturbing the writer. Splits are plain
dicts; a worker finds their rows even if they were sealed or compacted in the meantime. Offsets are in spark/io/offsets.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from meshbus.errors import LogError, LogFault
from meshbus.log.packets import reader as packets
from meshbus.log.packets.policies import load_policies
from meshbus.log.packets.row import ROW_BYTES
from meshbus.log.packets.store import folder_of
from meshbus.log.positions import Mark, read_marks
from meshbus.log.reader import LogReader, list_channels, read_split
from meshbus.log.schema import EVENTS, PACKETS, Table, arrow_schema, signed
from meshbus.log.schemas import read_versions
from meshbus.spark.io.offsets import Extent, Gap
from meshbus.spark.lake.codec import Stored, stored_in
from meshbus.spark.lake.numbering import Numbering

if TYPE_CHECKING:
    from meshbus.log.backend import Snapshot
    from meshbus.log.status import SegmentFile
    from meshbus.policy.gatewaypolicy import GatewayPolicy
    from meshbus.spark.io.typed import Typed

_KINDS: Final = ("published", "received")
"""Directories of logs below the log_dir of a node."""
TABLES: Final = {table.name: table for table in (EVENTS, PACKETS)}
"""What the option `table` of the data source chooses from."""


class Rows(Protocol):
    """A snapshot of the rows of one log or record."""

    @property
    def first(self) -> int:
        """Number of the first row."""

    @property
    def end(self) -> int:
        """One past the number of the last row."""

    @property
    def segments(self) -> Sequence[SegmentFile]:
        """The sealed files in order."""

    def batches(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows of a range as record batches."""

    def splits(self, start: int, stop: int | None, *, rows: int) -> list[dict[str, Any]]:
        """Divide a range into splits of about `rows` rows."""


class Seen(msgspec.Struct, frozen=True):
    """A snapshot of one log or record, with its extent."""

    whose: str | int
    """The channel of a log, or the recorder of a record as tables store it (bit-cast)."""
    rows: Rows
    extent: Extent
    time: str = "recv_ts_ns"
    """The column with the time at which a row was recorded."""
    shared: bool = False
    """Whether it is the replica of a member of a replicated channel."""
    marks: tuple[Mark, ...] = ()
    """Positions in replicated logs that rows of the log have."""

    @property
    def numbering(self) -> Numbering:
        """What the numbers of a log are."""
        return Numbering(bytes.fromhex(self.extent.log_id), self.shared, self.marks)


class Input(Protocol):
    """All logs, or all records, below a path."""

    def look(self) -> dict[str, Seen]:
        """Return a snapshot of each by name; raises LogError if the path is not a directory or cannot be read."""

    def gap_error(self, gap: Gap) -> LogError:
        """Return the error for rows that are gone before they were read."""


def match_channels(patterns: str) -> Callable[[str], bool]:
    """Return whether a channel matches one of some comma-separated patterns, as a function; `*` also matches slashes."""
    chosen = [pattern.strip() for pattern in patterns.split(",")]
    return lambda channel: any(fnmatchcase(channel, pattern) for pattern in chosen)


class Logs:
    """The logs of the channels for which `wants` returns True."""

    def __init__(self, path: str, wants: Callable[[str], bool]) -> None:
        self._root, self._wants = Path(path), wants
        self._readers: dict[str, LogReader] = {}

    def look(self) -> dict[str, Seen]:
        """Return a snapshot of each log by name."""
        found = {}
        for prefix, root in self._roots():
            for entry in list_channels(root):
                if self._wants(entry.channel):
                    name = prefix + entry.channel
                    # A reader is kept because it caches the manifest between polls.
                    reader = self._readers.setdefault(name, LogReader(root, entry.channel))
                    snapshot = reader.snapshot()
                    # Marks are stored before the events that they are about, so they are read after those.
                    marks, shared = read_marks(reader.folder), snapshot.replica is not None
                    found[name] = Seen(entry.channel, snapshot, _extent_of_log(snapshot), shared=shared, marks=marks)
        return found

    def folders(self) -> dict[Path, str]:
        """Return the folders of the logs with their channels."""
        return {
            LogReader(root, entry.channel).folder: str(entry.channel)
            for _, root in self._roots()
            for entry in list_channels(root)
            if self._wants(entry.channel)
        }

    def gap_error(self, gap: Gap) -> LogError:
        """Return the error for sequences that expired, or for a log that is gone."""
        if gap.channel not in self.look():
            return _gone(f"channel {gap.channel!r} is gone from {self._root}; sequences", gap)
        return _overtaken(f"channel {gap.channel!r}: sequences", gap)

    def _roots(self) -> Iterator[tuple[str, Path]]:
        yield "", self._root
        for name in _KINDS:
            if (self._root / name).is_dir():
                yield f"{name}:", self._root / name


class Records:
    """The packet records of all nodes below a path."""

    def __init__(self, path: str) -> None:
        self._root = Path(path)

    def look(self) -> dict[str, Seen]:
        """Return a snapshot of each record by the node id of its recorder in hex."""
        if not self._root.is_dir():
            raise LogError(LogFault.UNKNOWN, f"{self._root} is not a directory of logs; check the path")
        found = {}
        for recorder in packets.list_recorders(self._root):
            reader, name = packets.PacketReader(self._root, recorder), f"{recorder:016x}"
            snapshot = reader.snapshot()
            found[name] = Seen(
                stored(recorder), snapshot, Extent(snapshot.first, snapshot.end, name, ROW_BYTES), "ts_ns"
            )
        return found

    def gap_error(self, gap: Gap) -> LogError:
        """Return the error for rows that expired, or for a record that is gone."""
        if int(gap.channel, 16) not in packets.list_recorders(self._root):
            return _gone(f"the packet record of {gap.channel} is gone from {self._root}; rows", gap)
        return _overtaken(f"packet record of {gap.channel}: rows", gap)


def stored(number: int) -> int:
    """Return a 64-bit id as tables store it, bit-cast to a signed number."""
    return int(signed(np.array([number], np.uint64))[0])


def recorded_policies(path: str) -> dict[tuple[int, int], GatewayPolicy]:
    """Return the recorded policies of a directory, by recorder (as tables store it) and policy version."""
    return {
        (stored(recorder), version): policy
        for recorder in packets.list_recorders(path)
        for version, policy in load_policies(folder_of(Path(path), recorder)).items()
    }


def stored_schemas(path: str) -> tuple[Stored, ...]:
    """Return the schemas that are stored beside the logs below a path, for decode_rows of spark/lake/decode.py."""
    folders = Logs(path, lambda _: True).folders()
    return tuple(
        stored
        for folder, channel in folders.items()
        if read_versions(folder)
        for stored in stored_in(folder, channel, LogReader(folder.parent, channel).snapshot().log_id)
    )


def pack(splits: Iterable[dict[str, Any]], rows: int) -> list[list[dict[str, Any]]]:
    """Group consecutive splits into tasks of about `rows` rows, because each task has a fixed cost."""
    packed: list[list[dict[str, Any]]] = []
    room = 0
    for split in splits:
        size = split["end"] - split["first"]
        if not packed or size > room:
            packed.append([])
            room = rows
        packed[-1].append(split)
        room -= size
    return packed


class Comparison(msgspec.Struct, frozen=True):
    """A condition on a time column that is applied before rows are passed to Spark."""

    column: str
    kind: str
    value: Any


def read_rows(
    splits: Iterable[Mapping[str, Any]],
    table: Table,
    conditions: Sequence[Comparison] = (),
    typed: Typed | None = None,
) -> Iterator[Any]:
    """Yield record batches of the rows of splits, in the types that Spark takes: no dictionaries, no fixed-size binary.

    The columns of `typed` follow those of the table.
    """
    import pyarrow as pa

    read = packets.read_split if table.name == PACKETS.name else read_split
    schema = pa.schema([_plain(field) for field in arrow_schema(table, dictionaries=False)])
    # Conditions may be on columns that were not requested, and so may be what typed columns are made of.
    needed = () if typed is None else ("seq", "payload")
    names = dict.fromkeys([*schema.names, *(condition.column for condition in conditions), *needed])
    more = None if typed is None else typed.columns()
    # Spark compares the types with its schema, nulls included.
    whole = schema if typed is None else pa.schema([*schema, *typed.arrow_fields()])
    for split in splits:
        for read_batch in read(split, list(names), dictionaries=False):
            batch = _meeting(read_batch, conditions)
            if len(batch):
                arrays = [batch.column(field.name).cast(field.type) for field in schema]
                added = [] if more is None else more.of(batch, split)
                yield pa.RecordBatch.from_arrays([*arrays, *added], schema=whole)


def _meeting(batch: Any, conditions: Sequence[Comparison]) -> Any:
    """Return the rows of a batch that meet all conditions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for condition in conditions:
        column = batch.column(condition.column)
        batch = batch.filter(getattr(pc, condition.kind)(column, pa.scalar(condition.value, column.type)))
    return batch


def _plain(field: Any) -> Any:
    import pyarrow as pa

    return field.with_type(pa.binary()) if pa.types.is_fixed_size_binary(field.type) else field


def _extent_of_log(snapshot: Snapshot) -> Extent:
    rows = snapshot.end - snapshot.first
    return Extent(snapshot.first, snapshot.end, snapshot.log_id.hex(), snapshot.stored_bytes / rows if rows else 0.0)


def _gone(what: str, gap: Gap) -> LogError:
    return LogError(
        LogFault.UNKNOWN,
        f"{what} {gap.first} to {gap.end - 1} were not read; restore it, or set failOnGap to false to continue without it",
    )


def _overtaken(what: str, gap: Gap) -> LogError:
    return LogError(
        LogFault.RANGE_GONE,
        f"{what} {gap.first} to {gap.end - 1} expired before they were read, the first available is {gap.end};"
        " set failOnGap to false to continue there, and increase the retention",
        first_available=gap.end,
    )
