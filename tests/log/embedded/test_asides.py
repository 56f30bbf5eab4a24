"""Side files: what was set aside is read back with its epochs, also from the middle of blocks; damage is an error."""

import errno
import os
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.asides import aside_status, list_asides, read_aside
from meshbus.log.status import ReplicaStatus
from tests.log.making import numbered, payloads
from tests.log.replicas import open_replica


def set_aside(root: Path) -> Path:
    """Set aside what is in parts of several blocks and files, and return the folder of the log."""
    with open_replica(root, seal_bytes=300) as log:
        log.append(1, 0, numbered(0, 10), origin=7)
        log.append(2, 10, numbered(10, 10))
        log.set_aside(15)
        log.append(3, 15, numbered(15, 10), headers={"a": b"1"})
        log.append(4, 25, numbered(25, 3))
        log.set_aside(5)
        log.append(5, 5, [b"another"])
        log.sync()
    (folder,) = root.iterdir()
    return folder


def test_events_are_read_back_with_their_epochs(tmp_path: Path) -> None:
    folder = set_aside(tmp_path)
    first, second = sorted(list_asides(folder), key=lambda one: -one.first)
    assert (first.first, first.end) == (15, 20)
    assert payloads(read_aside(first.path)) == numbered(15, 5)
    assert [first.epoch_at(seq) for seq in (15, 19)] == [2, 2]
    events = list(read_aside(second.path))
    assert [event.seq for event in events] == list(range(5, 28))
    assert payloads(events) == numbered(5, 23)
    assert [second.epoch_at(seq) for seq in (5, 9, 10, 14, 15, 24, 25)] == [1, 1, 2, 2, 3, 3, 4]
    assert events[0].origin == 7
    assert events[12].headers == {"a": b"1"}


def test_what_side_files_amount_to_is_told(tmp_path: Path) -> None:
    folder = set_aside(tmp_path)
    assert aside_status(folder, ((1, 2),)) == ReplicaStatus(((1, 2),), 5 + 23)
    (folder / "_aside" / "damaged-0").mkdir()
    (folder / "_aside" / "damaged-0" / "x.hot.damaged").touch()
    assert aside_status(folder, ()).damaged_files == 1


def test_a_log_without_side_files_has_none(tmp_path: Path) -> None:
    assert list_asides(tmp_path) == []


def test_damage_is_an_error_and_never_another_event(tmp_path: Path) -> None:
    folder = set_aside(tmp_path)
    for path in sorted(folder.glob("_aside/*.hot")):
        whole, right = path.read_bytes(), payloads(read_aside(path))
        for place in range(0, len(whole), 3):
            changed = bytearray(whole)
            changed[place] ^= 16
            path.write_bytes(changed)
            with pytest.raises(LogError) as caught:
                assert payloads(read_aside(path)) != right, f"nothing noticed the change at {place}"
            assert caught.value.fault is LogFault.CORRUPT
        path.write_bytes(whole)


def test_a_hot_file_is_no_side_file(tmp_path: Path) -> None:
    folder = set_aside(tmp_path)
    (path,) = list(folder.glob("_hot/*+2.hot"))
    with pytest.raises(LogError, match="says nothing"):
        list(read_aside(path.rename(folder / "_aside" / "x.hot")))


def test_a_side_file_that_cannot_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = set_aside(tmp_path)
    one = list_asides(folder)[0]

    def refuse(_: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    for read in (lambda: list(read_aside(one.path)), lambda: list_asides(folder)):
        with pytest.raises(LogError, match="Input/output error") as caught:
            read()
        assert caught.value.fault is LogFault.FAILED
