"""A file of rows has all that was written, with checksums, and there is none without rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from meshbus.spark.run.rowsfile import RowsFile


def test_it_has_what_was_written_and_exists_only_then(tmp_path: Path) -> None:
    with RowsFile(tmp_path / "deep" / "rows.parquet") as file:
        file.write(pa.table({"n": pa.array([], pa.int64())}))
        assert file.is_empty
    assert list(tmp_path.iterdir()) == []
    with file:
        for first in (0, 3):
            file.write(pa.table({"n": [first, first + 1, first + 2]}))
    read = pq.ParquetFile(file.path, page_checksum_verification=True)
    assert read.read()["n"].to_pylist() == list(range(6))
    assert read.metadata.num_row_groups == 2
