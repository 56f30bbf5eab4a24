"""Verifying: every kind of damage is found and named, and a good log has none."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded import verify as module
from meshbus.log.embedded.verify import verify_log
from meshbus.log.folder import segment_name
from meshbus.log.reader import LogReader
from meshbus.log.status import Finding
from tests.log.making import CHANNEL, in_files, numbered, open_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        log.seal()
        log.append_batch(numbered(5, 5))
        log.append_batch(numbered(10, 5))
        assert log.verify() == []
    return tmp_path


def findings(root: Path) -> list[Finding]:
    return verify_log(in_files(LogReader(root, CHANNEL)))


def test_a_good_log_has_no_findings(root: Path) -> None:
    assert findings(root) == []


def test_a_damaged_a_missing_and_a_foreign_segment_are_named(root: Path) -> None:
    (path,) = root.glob("*/*.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    (finding,) = findings(root)
    assert (finding.file, finding.first, finding.end) == (path.name, 0, 5)
    assert "is damaged" in finding.problem
    path.unlink()
    (finding,) = findings(root)
    assert "is gone" in finding.problem
    path.write_bytes(content)
    (path.parent / segment_name(90, 95)).write_bytes(content)
    (path.parent / "export.parquet").write_bytes(content)
    assert {finding.file for finding in findings(root)} == {segment_name(90, 95), "export.parquet"}


def test_rows_that_do_not_match_the_file_name_are_found(root: Path) -> None:
    (path,) = root.glob("*/*.parquet")
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 4).set_column(1, table.schema.field(1), [[9, 8, 7, 6]]), path)
    (finding,) = findings(root)
    assert "4 rows" in finding.problem
    pq.write_table(table.set_column(1, table.schema.field(1), [[9, 8, 7, 6, 5]]), path)
    (finding,) = findings(root)
    assert "sequences" in finding.problem
    pq.write_table(table.set_column(2, table.schema.field(2), pa.array([bytes(16)] * 5, pa.binary(16))), path)
    (finding,) = findings(root)
    assert "another log" in finding.problem


def test_a_block_that_rots_below_an_open_log_is_named(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        log.append_batch(numbered(5, 5))
        place = in_files(log).hot[0].place_of(1)
        (path,) = tmp_path.glob("*/_hot/*.hot")
        content = bytearray(path.read_bytes())
        content[place + 70] ^= 1
        path.write_bytes(content)
        (finding,) = log.verify()
        assert (finding.file, finding.first, finding.end) == (path.name, 5, 10)


def test_damage_that_a_reader_stops_at_is_a_finding(root: Path) -> None:
    with open_log(root) as log:
        log.append(b"the blocks before this one are synced")
    (path,) = root.glob("*/_hot/*.hot")
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    (finding,) = findings(root)
    assert "were synced and are damaged" in finding.problem


def test_without_pyarrow_segments_are_not_called_good(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_arrow", lambda: False)
    (finding,) = findings(root)
    assert "without pyarrow" in finding.problem


def test_a_disk_that_does_not_let_it_be_read_is_an_error_and_no_finding(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Memory mapping file failed: Input/output error")

    monkeypatch.setattr(pa, "memory_map", refuse)
    with pytest.raises(LogError) as caught:
        findings(root)
    assert caught.value.fault is LogFault.FAILED
