"""A Parquet file of rows that come piece by piece; created with the first of them, so that no file is empty."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class RowsFile:
    """Writes Arrow tables to one Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: Any = None

    @property
    def is_empty(self) -> bool:
        """Whether no row was written."""
        return self._writer is None

    def write(self, rows: Any) -> None:
        """Write the rows of a table, if it has any, as a row group."""
        import pyarrow.parquet as pq

        if not len(rows):
            return
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self.path, rows.schema, compression="zstd", write_page_checksum=True)
        self._writer.write_table(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the file; what was written is on the disk when this returns."""
        if self._writer is None:
            return
        self._writer.close()
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
