"""Writers see readers, readers do not see each other, and a directory without locks is no obstacle."""

from pathlib import Path

from meshbus.spark.lake.readers import idle, reading


def test_a_writer_knows_whether_somebody_reads(tmp_path: Path) -> None:
    root = tmp_path / "tables"
    with idle(root) as free:
        assert free
    with reading(root), reading(root), idle(root) as free:
        assert not free
    with idle(root) as free:
        assert free


def test_a_reader_that_cannot_lock_reads_anyway(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with reading(tmp_path / "file" / "tables"):
        pass
