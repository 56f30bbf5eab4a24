"""A range of a log is divided into whole files and the rows between them."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from meshbus.log.durability import LogConfig
from meshbus.log.log import Redex
from meshbus.spark.io.inputs import Logs, Seen
from meshbus.spark.run.pieces import pieces_of, put_file


def make(folder: Path) -> Seen:
    with Redex(folder, background=False) as redex:
        log = redex.open("a", LogConfig())
        for count in (5, 7):
            log.append_batch([b"x"] * count)
            log.seal()
        log.append_batch([b"x"] * 3)
    return Logs(str(folder), lambda _: True).look()["a"]


def spans(seen: Seen, first: int, end: int) -> list[tuple[int, int, bool]]:
    return [(piece.first, piece.end, piece.file is not None) for piece in pieces_of(seen, first, end)]


def test_whole_files_and_rows_make_up_a_range(tmp_path: Path) -> None:
    seen = make(tmp_path)
    assert spans(seen, 0, 15) == [(0, 5, True), (5, 12, True), (12, 15, False)]
    assert spans(seen, 2, 12) == [(2, 5, False), (5, 12, True)]
    assert spans(seen, 0, 8) == [(0, 5, True), (5, 8, False)]
    assert spans(seen, 13, 14) == [(13, 14, False)]
    assert spans(seen, 5, 5) == []


def test_a_file_that_is_gone_is_read_as_rows(tmp_path: Path) -> None:
    seen = make(tmp_path)
    seen.rows.segments[0].path.unlink()
    assert spans(seen, 0, 12) == [(0, 5, False), (5, 12, True)]


def test_a_file_is_linked_or_where_that_is_impossible_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "segment"
    source.write_bytes(b"content")
    put_file(source, tmp_path / "table", "one")
    assert (tmp_path / "table" / "one").samefile(source)

    def elsewhere(*_: Any) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", elsewhere)
    put_file(source, tmp_path / "table", "two")
    assert (tmp_path / "table" / "two").read_bytes() == b"content"
    assert not (tmp_path / "table" / "two").samefile(source)
    monkeypatch.undo()
    with pytest.raises(FileExistsError):
        put_file(source, tmp_path / "table", "one")
