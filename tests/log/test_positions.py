"""Which rows of a log have positions in a replicated one is beside the log, and two meshes never share an id."""

from pathlib import Path

import pytest

from meshbus.errors import LogError
from meshbus.log.positions import LOG_ID_BYTES, Mark, add_mark, read_marks, replicated_log_id

ONE, TWO = "01" * 16, "02" * 16
SENDER, OTHER = f"{5:016x}", f"{6:016x}"


def test_the_id_follows_from_the_mesh_key_and_the_channel() -> None:
    found = replicated_log_id(bytes(32), "alarms")
    assert found == replicated_log_id(bytes(32), "alarms")
    assert len(found) == LOG_ID_BYTES
    others = replicated_log_id(bytes(31) + b"1", "alarms"), replicated_log_id(bytes(32), "alarms/fire")
    assert len({found, *others}) == 3


def test_a_mark_is_stored_once(tmp_path: Path) -> None:
    assert read_marks(tmp_path) == ()
    assert add_mark(tmp_path, Mark(ONE, SENDER, 10))
    assert add_mark(tmp_path, Mark(ONE, SENDER, 20)), "it is so already"
    assert add_mark(tmp_path, Mark(TWO, SENDER, 30))
    assert add_mark(tmp_path, Mark(ONE, OTHER))
    assert read_marks(tmp_path) == (Mark(ONE, OTHER), Mark(ONE, SENDER, 10), Mark(TWO, SENDER, 30))


def test_a_mark_before_an_earlier_one_is_added(tmp_path: Path) -> None:
    add_mark(tmp_path, Mark(ONE, SENDER, 10))
    add_mark(tmp_path, Mark(ONE, SENDER, 5))
    assert [mark.first for mark in read_marks(tmp_path)] == [5, 10]


def test_the_marks_of_a_log_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.log.positions.MAX_MARKS", 2)
    assert add_mark(tmp_path, Mark(ONE, SENDER))
    assert add_mark(tmp_path, Mark(ONE, OTHER))
    assert not add_mark(tmp_path, Mark(ONE, f"{7:016x}"))
    assert add_mark(tmp_path, Mark(ONE, SENDER)), "what is marked stays so"
    assert len(read_marks(tmp_path)) == 2


def test_a_damaged_file_is_an_error_and_not_a_log_without_marks(tmp_path: Path) -> None:
    (tmp_path / "_positions.json").write_bytes(b"{")
    with pytest.raises(LogError, match="declare the positions again"):
        read_marks(tmp_path)
