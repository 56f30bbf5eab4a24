"""The catalog of one Iceberg table on object storage, in the layout of spark/lake/formats/icebergfolder.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO

from meshbus.log.objectstore import join_uri, list_names, locate, read_object, size_of, write_object
from meshbus.spark.lake.formats.icebergfolder import HINT, VersionedCatalog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table.metadata import TableMetadata


class StorageCatalog(VersionedCatalog):
    """The catalog of a table at a URI of log/objectstore.py, which may have options, and a location, which has none."""

    def __init__(self, uri: str, location: str) -> None:
        super().__init__(location)
        self._uri = uri

    def _load_io(self) -> PyArrowFileIO:
        io, (system, _) = PyArrowFileIO(), locate(self._uri)
        io.fs_by_scheme = lambda *_: system
        return io

    def _hint(self) -> bytes:
        return read_object(join_uri(self._uri, "metadata", HINT)) or b""

    def _names(self) -> Iterable[str]:
        return [name for name, _ in list_names(join_uri(self._uri, "metadata"))]

    def _has(self, version: int) -> bool:
        return size_of(self._object(version)) is not None

    def _object(self, version: int) -> str:
        return join_uri(self._uri, "metadata", f"v{version}.metadata.json")

    def _publish(self, version: int, metadata: TableMetadata) -> None:
        if self._has(version):
            raise CommitFailedException(f"{self._object(version)} has been written by another process")
        write_object(self._object(version), metadata.model_dump_json().encode())
        write_object(join_uri(self._uri, "metadata", HINT), str(version).encode())
