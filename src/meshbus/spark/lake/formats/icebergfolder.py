"""An Iceberg table that is found by its directory alone, without a catalog service or database.

    <table>/metadata/v12.metadata.json     the table as it is since its twelfth commit
    <table>/metadata/version-hint.text     12

This is the layout of Iceberg's Hadoop catalog, so Spark reads the tables with `type = hadoop` and the root of the tables as
warehouse, and PyIceberg, polars and DuckDB by the path of a table. A commit is made by creating the next metadata file, which
fails if it exists; the hint only says where to begin to look. So a writer that dies before the hint is written has
committed, and readers of the hint see the state before, which is whole.
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier

HINT: Final = "version-hint.text"


class QuickTransaction(Transaction):
    """A transaction that computes its metadata once per change; PyIceberg copies all of it at each of twenty uses."""

    _computed: tuple[object, object, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """Return the metadata with all changes so far, which must not be modified."""
        base, updates = self._table.metadata, self._updates
        if self._computed is None or self._computed[0] is not base or self._computed[1] is not updates:
            self._computed = base, updates, super().table_metadata
        return self._computed[2]


class VersionedCatalog(NoopCatalog, ABC):
    """The catalog of one table, which is all that PyIceberg needs to commit to it; subclasses know its storage."""

    def __init__(self, location: str) -> None:
        """`location` is the directory of the table without a slash at the end, such as `file:///…` or `s3://…`."""
        *_, layer, name = location.split("/")
        super().__init__(name)
        self._root = location
        self._identifier = layer, name

    @abstractmethod
    def _load_io(self) -> FileIO:
        """Return what reads and writes files of metadata."""

    @abstractmethod
    def _hint(self) -> bytes:
        """Return the content of the hint, or nothing if it does not exist."""

    @abstractmethod
    def _names(self) -> Iterable[str]:
        """Return the names of all files of metadata."""

    @abstractmethod
    def _has(self, version: int) -> bool:
        """Return whether a version exists."""

    @abstractmethod
    def _publish(self, version: int, metadata: TableMetadata) -> None:
        """Create the metadata file of a version, then the hint; raises CommitFailedException if the file exists."""

    def exists(self) -> bool:
        """Return whether the table has been created."""
        return self._version() > 0

    def create(self, schema: Schema, properties: Mapping[str, str]) -> Table:
        """Create the table without rows."""
        metadata = new_table_metadata(
            schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, self._root, dict(properties)
        )
        self._publish(1, metadata)
        return self.load_table(self._identifier)

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return the table as it is now; raises NoSuchTableError if it does not exist."""
        if not (version := self._version()):
            raise NoSuchTableError(f"{self._root} has no Iceberg table")
        location = self._location(version)
        io = self._load_io()
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(self.identifier_to_tuple(identifier), metadata, location, io, self)

    def current(self, table: Table | None) -> Table:
        """Return the table as it is now, which may be the given one."""
        known = table is not None and table.metadata_location == self._location(self._version())
        return table if table is not None and known else self.load_table(self._identifier)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Apply updates to the newest version; raises CommitFailedException if another writer was faster."""
        version = self._version()
        base = self.current(table)
        for requirement in requirements:
            requirement.validate(base.metadata)
        metadata = update_table_metadata(base.metadata, updates, metadata_location=base.metadata_location)
        self._publish(version + 1, metadata)
        answer = {"metadata": metadata, "metadata-location": self._location(version + 1)}
        return CommitTableResponse.model_validate(answer)

    def _version(self) -> int:
        """Return the number of the newest version; 0 if there is none."""
        try:
            version = int(self._hint())
        except ValueError:
            names = (name.partition(".")[0] for name in self._names() if name.endswith(".metadata.json"))
            version = max((int(name[1:]) for name in names if name[:1] == "v" and name[1:].isdecimal()), default=0)
        while self._has(version + 1):
            version += 1
        return version

    def _location(self, version: int) -> str:
        return f"{self._root}/metadata/v{version}.metadata.json"


class FolderCatalog(VersionedCatalog):
    """The catalog of a table in a local directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"file://{folder}")
        self._folder = folder

    def _load_io(self) -> FileIO:
        return load_file_io(location=self._root)

    def _hint(self) -> bytes:
        path = self._folder / "metadata" / HINT
        return path.read_bytes() if path.exists() else b""

    def _names(self) -> Iterable[str]:
        return [path.name for path in (self._folder / "metadata").glob("v*")]

    def _has(self, version: int) -> bool:
        return self._path(version).exists()

    def _path(self, version: int) -> Path:
        return self._folder / "metadata" / f"v{version}.metadata.json"

    def _publish(self, version: int, metadata: TableMetadata) -> None:
        path = self._path(version)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{uuid.uuid4().hex}.tmp")
        aside.write_text(metadata.model_dump_json(), encoding="utf-8")
        try:
            os.link(aside, path)  # unlike a rename, it fails if another writer has made this version
        except FileExistsError:
            raise CommitFailedException(f"{path} has been written by another process") from None
        finally:
            aside.unlink()
        hint = path.with_name(f"{uuid.uuid4().hex}.tmp")
        hint.write_text(str(version), encoding="utf-8")
        hint.replace(path.with_name(HINT))
