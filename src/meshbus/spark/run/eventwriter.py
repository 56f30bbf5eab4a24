"""Write a batch of events: bronze.events as it was logged, silver.runs, and each new event to silver.events.

A sealed file becomes a file of bronze.events as it is. It also becomes a file of silver.events if all of its rows are new
events of a channel with raw payloads; otherwise the new rows are written once more. Those of a channel with a declared
codec are decoded: ordinary text and JSON by spark/run/quickdecode.py, everything else by Spark.

silver.events is committed last: it marks the batch as complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from meshbus.log.schema import EVENTS, arrow_schema
from meshbus.spark.lake import duplicates, silver
from meshbus.spark.lake.codec import Codec, Declaration, Stored, codec_of, declared_for
from meshbus.spark.lake.decode import decode_rows
from meshbus.spark.lake.duplicates import KnownEvents
from meshbus.spark.lake.stretches import runs_of
from meshbus.spark.run.pieces import Piece, pieces_of, put_file
from meshbus.spark.run.quickdecode import QuickDecoder, quick_form
from meshbus.spark.run.rowsfile import RowsFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from meshbus.spark.lake.tablestore import Store
    from meshbus.spark.run.ingest import Range

TABLES = ("bronze.events", "silver.runs", "silver.quarantine", "silver.events")
"""In the order of their commits."""


class _Folders(NamedTuple):
    """Where the files of a batch are put before they are committed."""

    bronze: Path
    runs: Path
    quarantine: Path
    silver: Path
    undecoded: Path
    """New events of channels with a codec that Spark decodes."""


class Known:
    """The events in silver, shared by all queries that write them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: KnownEvents | None = None

    @contextmanager
    def during_batch(self) -> Iterator[KnownEvents]:
        """Yield what is known, for a batch that adds to it; what a failed batch added is forgotten."""
        held = self._held if self._held is not None else self._load()
        self._held = None
        held.places.begin(file.path for file in self._store.table("silver.events").files())
        yield held
        self._held = held

    def _load(self) -> KnownEvents:
        import pyarrow.parquet as pq

        silver = self._store.table("silver.events")
        # Ranges of a batch that is not complete are from a crash: its events are not in silver.
        files = [file for file in self._store.table("silver.runs").files() if file.last <= silver.last(file.query)]
        return KnownEvents(row for file in files for row in pq.ParquetFile(file.path).read().to_pylist())


class EventWriter:
    """The tables of one query over logs of events."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        query: str,
        known: Known,
        declared: Callable[[], Sequence[Declaration | Stored]] = tuple,
    ) -> None:
        """Prepare to write; `declared` returns what is known about payloads, and is called for each batch."""
        self._spark, self._store, self._query, self._known, self._declared = spark, store, query, known, declared

    def last(self) -> int:
        """Return the last complete batch, or -1."""
        return self._store.table(TABLES[-1]).last(self._query)

    def write(self, batch: int, taken: list[Range]) -> None:
        """Write a batch."""
        tables = [self._store.table(name) for name in TABLES]
        declared = self._declared()
        undecoded = tables[-1].stage()
        bronze, runs, quarantine, kept = (table.stage() for table in tables)
        folders = _Folders(bronze, runs, quarantine, kept, undecoded)
        try:
            with self._known.during_batch() as known:
                found = _write_pieces(folders, taken, known, declared)
                with RowsFile(runs / "part.parquet") as file:
                    file.write(found)
                if any(undecoded.iterdir()):
                    self._decode(folders, declared)
                for table, staged in zip(tables, folders, strict=False):
                    table.commit(self._query, batch, batch, staged)
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _decode(self, folders: _Folders, declared: Sequence[Declaration | Stored]) -> None:
        """Decode rows with Spark; the second look at rows that cannot be decoded is rare."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        rows = self._store.read_files(self._spark, "bronze.events", [str(folders.undecoded)])
        decoded = decode_rows(rows, declared)
        seen = Observation()
        refused = F.count_if(F.col("problem").isNotNull()).alias("refused")
        self._store.write_files(silver.accepted(decoded.observe(seen, refused)), folders.silver)
        if seen.get["refused"]:
            self._store.write_files(silver.refused(decoded), folders.quarantine)


def _write_pieces(
    folders: _Folders, taken: list[Range], known: KnownEvents, declared: Sequence[Declaration | Stored]
) -> Any:
    """Put the rows of a batch into the folders, and return their ranges as rows of silver.runs."""
    import pyarrow as pa

    found = []
    with (
        RowsFile(folders.bronze / "rows.parquet") as bronze,
        RowsFile(folders.silver / "rows.parquet") as kept,
        RowsFile(folders.undecoded / "rows.parquet") as undecoded,
        QuickDecoder(folders.silver, folders.undecoded) as quick,
    ):
        for one, piece in _in_order(taken):
            whose = str(one.seen.whose), bytes.fromhex(one.seen.extent.log_id)
            rules = declared_for(declared, *whose, piece.first, piece.end)
            plain = all(codec_of(rule) is Codec.RAW for rule in rules)
            rest, folder = (kept, folders.silver) if plain else (undecoded, folders.undecoded)
            form = quick_form(rules)
            name = f"{one.seen.extent.log_id}-{piece.first:020d}.parquet"
            rows = _read(one, piece, None if piece.file is None else duplicates.COLUMNS)
            fresh = known.fresh(whose[0], one.seen.numbering, rows)
            if piece.file is None:
                bronze.write(rows)
                new = rows.filter(pa.array(fresh))
                rest.write(new if form is None else quick.decode(new, form))
            else:
                put_file(piece.file, folders.bronze, name)
                if form is not None:
                    quick.decode_file(name, partial(_batches, one, piece), form, fresh)
                elif fresh.all():
                    put_file(piece.file, folder, name)
                elif fresh.any():
                    rest.write(_read(one, piece, None).filter(pa.array(fresh)))
            # A copy of what was read repeats nothing and is late for nothing.
            repeated = known.read_before(one.seen.numbering, rows)
            first = rows.filter(pa.array(~repeated)) if repeated.any() else rows
            runs = runs_of(whose[0], one.seen.numbering, first, known.highest, fresh[~repeated])
            known.add(runs.to_pylist())
            found.append(runs)
    return pa.concat_tables(found)


def _in_order(taken: list[Range]) -> Iterator[tuple[Range, Piece]]:
    """Yield pieces of the logs of publishers first: if a batch has an event several times, their row of it is kept."""
    for one in sorted(taken, key=lambda one: (not one.name.startswith("published:"), one.name)):
        for piece in pieces_of(one.seen, one.first, one.end):
            yield one, piece


def _read(one: Range, piece: Piece, columns: Sequence[str] | None) -> Any:
    """Return some columns of the rows of a piece, or all."""
    import pyarrow as pa

    return pa.concat_tables(_batches(one, piece, columns))


def _batches(one: Range, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield some columns of the rows of a piece, or all, as tables of some row groups."""
    import pyarrow as pa

    schema = arrow_schema(EVENTS, dictionaries=False)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns], schema.metadata)
    for batch in one.seen.rows.batches(piece.first, piece.end, columns):
        yield pa.Table.from_batches([batch]).cast(schema)
