"""Which rows of a log are events that silver does not have yet, told from numbers alone.

Two rows are the same event if publisher, channel and publish number are equal (across nodes), if log and position are
equal (across replicas and their subscribers), or, for rows without a publish number, if their place in a session's stream
is equal (spark.md §3). Ranges in silver.runs are exact: every number in one is in silver or in quarantine. So the first two need
no look at any row, however much there is. Places are compared with the row groups of silver whose statistics admit
them (`Places`), which are none unless something was logged twice.

Rows are Arrow tables of consecutive rows of one log, with COLUMNS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshbus.spark.lake import stretches
from meshbus.spark.lake.intervals import Intervals
from meshbus.spark.lake.numbering import Numbering, any_of
from meshbus.spark.lake.stretches import BY_LOG, BY_PUBLISHER, BY_STREAM, WHOSE, Run, counts_up, groups_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLACE = ("recorder", "session_id", "stream_id", "packet_seq", "event_index")
"""The columns that together identify an event without a publish number."""
_BOUNDED = ("session_id", "packet_seq")
"""Those of them whose statistics tell where a place may be."""
COLUMNS = tuple(dict.fromkeys((*stretches.COLUMNS, *PLACE)))
"""The columns of bronze.events that are needed here."""


class _Group(NamedTuple):
    """Rows with places, as they are in a row group or in an earlier piece of the same batch."""

    sessions: tuple[int, int]
    packets: tuple[int, int]
    read: Any
    """Returns an Arrow table with the columns of PLACE and `pub_seq`."""


class Places:
    """Where in silver there are rows with places, by the statistics of row groups."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        """Of files."""
        self._files: set[str] = set()
        self._batch: list[_Group] = []

    def begin(self, files: Iterable[str]) -> None:
        """Begin a batch: note the row groups of the files of silver. Those that are noted already cost nothing."""
        import pyarrow.parquet as pq

        present = set(files)
        self._batch = []
        if not self._files <= present:  # compacted or expired since
            self._groups, self._files = [], set()
        for path in sorted(present - self._files):
            file = pq.ParquetFile(path)
            names = {file.schema.column(place).path: place for place in range(len(file.schema))}
            for group in range(file.metadata.num_row_groups):
                chunks = file.metadata.row_group(group)
                sessions, packets = (_bounds(chunks.column(names[name])) for name in _BOUNDED)
                if sessions is not None and packets is not None:
                    self._groups.append(_Group(sessions, packets, _reader(path, group)))
        self._files = present

    def add(self, rows: Any) -> None:
        """Note rows of the batch, which are not in a file yet."""
        import pyarrow.compute as pc

        if len(rows):
            sessions, packets = (pc.min_max(rows[name]).as_py() for name in _BOUNDED)
            self._batch.append(_Group(tuple(sessions.values()), tuple(packets.values()), lambda: rows))

    def near(self, rows: Any) -> list[Any]:
        """Return tables of rows that may have the same places as some of the given ones."""
        import pyarrow.compute as pc

        sessions, packets = (pc.min_max(rows[name]).as_py() for name in _BOUNDED)
        return [
            group.read()
            for group in (*self._groups, *self._batch)
            if group.sessions[0] <= sessions["max"] and sessions["min"] <= group.sessions[1]
            if group.packets[0] <= packets["max"] and packets["min"] <= group.packets[1]
        ]


def _bounds(chunk: Any) -> tuple[int, int] | None:
    held = chunk.statistics
    return (held.min, held.max) if held is not None and held.has_min_max else None


def _reader(path: str, group: int) -> Any:
    import pyarrow.parquet as pq

    return lambda: pq.ParquetFile(path).read_row_group(group, columns=[*PLACE, "pub_seq"])


class KnownEvents:
    """The events that silver and quarantine have, as ranges of their numbers."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.highest: dict[tuple[object, ...], int] = {}
        """The highest number of each owner of numbers, by the values of WHOSE."""
        self.places = Places()
        self._published: dict[tuple[object, object], Intervals] = {}
        """By channel and origin, in whichever log they are."""
        self._logged: dict[object, Intervals] = {}
        """By log id."""
        self.add(runs)

    def add(self, runs: Iterable[Run]) -> None:
        """Add the ranges of a batch."""
        published: dict[tuple[object, object], list[tuple[int, int]]] = {}
        logged: dict[object, list[tuple[int, int]]] = {}
        for run in runs:
            both = (run["first"], run["last"])
            if run["kind"] == BY_PUBLISHER:
                published.setdefault((run["channel"], run["origin"]), []).append(both)
            elif run["kind"] == BY_LOG:
                logged.setdefault(run["log_id"], []).append(both)
            if run["kind"] in {BY_PUBLISHER, BY_STREAM}:  # positions in a log are never late
                whose = tuple(run.get(name) for name in WHOSE)  # a file of an earlier version has no session
                self.highest[whose] = max(run["last"], self.highest.get(whose, run["last"]))
        _extend(self._published, published)
        _extend(self._logged, logged)

    def fresh(self, channel: str, log: Numbering, rows: Any) -> NDArray[np.bool_]:
        """Return which rows of a piece of a log are events that are neither known nor earlier in the piece."""
        keep = np.ones(len(rows), np.bool_)
        if not len(rows):
            return keep
        keep &= ~self.read_before(log, rows)
        positioned = log.positioned(rows)
        for log_id, chosen in positioned:
            positions = rows["pub_seq"].to_numpy()[chosen]
            keep[chosen] &= ~(_repeated(positions) | _known_of(self._logged.get(log_id), positions))
        self._drop_published(channel, rows, any_of(positioned, len(rows)), keep)
        self._drop_placed(rows, keep)
        return keep

    def read_before(self, log: Numbering, rows: Any) -> NDArray[np.bool_]:
        """Return which rows of a piece of a log were read from another copy of the log, such as a replica."""
        seq = rows["seq"].to_numpy()
        before = np.zeros(len(seq), np.bool_)
        for log_id in log.ids:
            before |= _known_of(self._logged.get(log_id), seq)
        return before

    def _drop_published(self, channel: str, rows: Any, positioned: NDArray[np.bool_], keep: NDArray[np.bool_]) -> None:
        import pyarrow.compute as pc

        places = np.flatnonzero(pc.is_valid(rows["pub_seq"]).to_numpy() & ~positioned)
        if not len(places):
            return
        numbered = rows if len(places) == len(rows) else rows.take(places)
        groups, owners = groups_of(numbered, ["origin"])
        for group, owner in zip(groups, owners, strict=True):
            numbers = numbered["pub_seq"].to_numpy()[group]
            drop = _repeated(numbers) | _known_of(self._published.get((channel, owner["origin"])), numbers)
            keep[places[group][drop]] = False

    def _drop_placed(self, rows: Any, keep: NDArray[np.bool_]) -> None:
        import pyarrow as pa

        placed = _placed(rows) if rows["pub_seq"].null_count else rows.slice(0, 0)
        if not len(placed):
            return
        # The first row of each place stays, unless it is in silver.
        firsts = placed.group_by(list(PLACE), use_threads=False).aggregate([("_row", "min")])
        near = [table for table in map(_placed, self.places.near(placed)) if len(table)]
        if near:
            firsts = firsts.join(pa.concat_tables(near).select(PLACE), list(PLACE), join_type="left anti")
        keep[np.setdiff1d(placed["_row"].to_numpy(), firsts["_row_min"].to_numpy(), assume_unique=True)] = False
        self.places.add(placed)


def _extend(sets: dict[Any, Intervals], found: Mapping[Any, list[tuple[int, int]]]) -> None:
    for key, ranges in found.items():
        sets.setdefault(key, Intervals()).add(ranges)


def _known_of(known: Intervals | None, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which numbers are known; most often none is near."""
    if known is None or not len(numbers) or not known.overlaps(int(numbers.min()), int(numbers.max())):
        return np.zeros(len(numbers), np.bool_)
    return known.contains(numbers)


def _repeated(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which numbers occurred before."""
    repeated = np.zeros(len(numbers), np.bool_)
    if not counts_up(numbers):
        _, firsts = np.unique(numbers, return_index=True)
        repeated[:] = True
        repeated[firsts] = False
    return repeated


def _placed(rows: Any) -> Any:
    """Return the rows without a number that have a place, with their positions in the table as `_row`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = pc.is_null(rows["pub_seq"])
    for name in PLACE:
        chosen = pc.and_(chosen, pc.is_valid(rows[name]))
    numbered = rows.select([*PLACE, "pub_seq"]).append_column("_row", pa.array(np.arange(len(rows))))
    return numbered.filter(chosen)
