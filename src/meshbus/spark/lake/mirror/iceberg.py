"""The copy of an Iceberg table: commits by PyIceberg, found by its place alone.

The layout is that of the table itself (spark/lake/formats/icebergfolder.py): a commit writes the next metadata file, and
then the hint by which readers find it. PyIceberg reaches storage through the client of log/objectstore.py, so waits are
bounded. pyarrow offers no conditional requests: two writers would both succeed, and the later one would win. The lock of
the tables and the id of their owner prevent two. Requires meshbus[iceberg].
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from meshbus.log.objectstore import delete_object, join_uri, list_names
from meshbus.spark.lake.formats.icebergcommit import (
    BATCH,
    commit_files,
    data_file,
    files_of,
    iceberg_catalogs,
    needed_metadata,
    writable_table,
)
from meshbus.spark.lake.mirror.target import KEEP, check_owner
from meshbus.spark.lake.tableschema import TableSpec

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from meshbus.spark.lake.formats.icebergfolder import VersionedCatalog

_OWNER = "meshbus.mirror"
"""Property with the id of the tables that this is the copy of."""


class IcebergTarget:
    """The copy of a table in the format `iceberg`."""

    def __init__(self, uri: str, spec: TableSpec, owner: str) -> None:
        """Raise PipelineError if PyIceberg is not installed."""
        self._uri, self._spec, self._owner = uri, spec, owner
        self._root = location_of(uri)
        self._catalog = _catalog(uri, self._root)
        self._table: Table | None = None
        self._files: dict[str, DataFile] | None = None

    def names(self) -> frozenset[str]:
        """Return the files of the newest snapshot."""
        return frozenset(self._present())

    def _present(self) -> dict[str, DataFile]:
        if self._files is None:
            self._table, found = None, []
            if self._catalog.exists():
                table = self._table = self._catalog.current(None)
                check_owner(self._uri, table.properties.get(_OWNER), self._owner)
                snapshot = table.current_snapshot()
                found = [] if snapshot is None else files_of(table, snapshot)
            self._files = {file.file_path.removeprefix(f"{self._root}/"): file for file in found}
        return self._files

    def commit(self, added: Mapping[str, Path], removed: Collection[str], batches: Mapping[str, int]) -> bool:
        """Commit to the version that was read last."""
        held = dict(self._present())
        table = self._table = writable_table(self._catalog, self._table, self._spec, {_OWNER: self._owner})
        gone = [held.pop(name) for name in removed]
        made = {name: data_file(f"{self._root}/{name}", path, table.schema()) for name, path in added.items()}
        last = {f"{BATCH}{query}": str(batch) for query, batch in batches.items()}
        new = {name: batch for name, batch in last.items() if table.properties.get(name) != batch}
        if gone or made or new:
            commit_files(table, gone, made.values(), new)
            self._files = held | made
        return bool(gone or made or new)

    def clean(self, unused: Mapping[str, datetime], now: datetime) -> dict[str, datetime]:
        """Delete what is known to be unused for a day: objects do not tell when they left the table."""
        if self._table is None:
            return {}
        needed = {location.removeprefix(f"{self._root}/") for location in needed_metadata(self._table)}
        idle = [name for name, _ in list_names(self._uri) if not _versioned(name)]
        found = {name: unused.get(name, now) for name in idle if name not in needed and name not in self._present()}
        for name in [name for name, since in found.items() if now - since >= KEEP]:
            delete_object(join_uri(self._uri, *name.split("/")))
            del found[name]
        return found

    def forget(self) -> None:
        """Read the metadata anew the next time."""
        self._table = self._files = None


def location_of(uri: str) -> str:
    """Return the location of a table as Iceberg has it: the URI without its options."""
    return urlunsplit(urlsplit(uri)._replace(query=""))


def _versioned(name: str) -> bool:
    """Return whether an object is a version of the metadata or the hint, which PyIceberg and commits take care of."""
    return name.startswith("metadata/v")


def _catalog(uri: str, location: str) -> VersionedCatalog:
    iceberg_catalogs()  # says what to install
    from meshbus.spark.lake.mirror.icebergcatalog import StorageCatalog

    return StorageCatalog(uri, location)
