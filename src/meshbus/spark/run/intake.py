"""Reads what nodes knew of each other (log/census.py) into bronze.census, on the driver and without a query.

A census has few rows, and each says in which log it is and where. So the table itself shows what was read: nothing else
is remembered, and a run that was killed continues where its last part ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshbus.log.census import CensusReader, list_censuses
from meshbus.spark.run.rowsfile import RowsFile

if TYPE_CHECKING:
    from meshbus.spark.lake.tablestore import Store

TABLE = "bronze.census"
_QUERY = "census"


class CensusIntake:
    """The censuses of some directories that nodes log to."""

    def __init__(self, store: Store, logs: Sequence[str]) -> None:
        self._store = store
        self._logs = logs
        self._readers: dict[tuple[str, int], CensusReader] = {}
        self._next: dict[bytes, int] | None = None
        """The next position to read, by log id; None until the table was looked at."""

    def take(self) -> int:
        """Add the rows that are new, and return their number. Raises LogError if a census cannot be read."""
        import pyarrow as pa

        known = self._next if self._next is not None else _read_so_far(self._store)
        found = [reader.read(known) for reader in self._find()]
        rows = pa.concat_tables(found) if found else None
        if rows is not None and len(rows):
            table = self._store.table(TABLE)
            staged, batch = table.stage(), table.last(_QUERY) + 1
            with RowsFile(staged / "part.parquet") as file:
                file.write(rows)
            table.commit(_QUERY, batch, batch, staged)
            known = _advanced(known, rows)
        self._next = known
        return 0 if rows is None else len(rows)

    def _find(self) -> list[CensusReader]:
        for path in self._logs:
            for recorder, channel in list_censuses(path).items():
                if (path, recorder) not in self._readers:
                    self._readers[path, recorder] = CensusReader(path, channel)
        return list(self._readers.values())


def _read_so_far(store: Store) -> dict[bytes, int]:
    import pyarrow.parquet as pq

    known: dict[bytes, int] = {}
    for path in store.paths(TABLE):
        known = _advanced(known, pq.ParquetFile(path).read(columns=["log_id", "seq"]))
    return known


def _advanced(known: dict[bytes, int], rows: Any) -> dict[bytes, int]:
    """Return positions advanced by the rows of a table."""
    ends = rows.group_by("log_id").aggregate([("seq", "max")]).to_pylist()
    return known | {row["log_id"]: max(row["seq_max"] + 1, known.get(row["log_id"], 0)) for row in ends}
