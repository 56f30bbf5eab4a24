"""A file beside a log is replaced as a whole, by one writer at a time."""

from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.files import Files
from meshbus.log.sidefile import FORMAT, Content, SideFile


class Words(Content, frozen=True):
    words: tuple[str, ...]


FILE = SideFile("words", Words, "words")


def add(folder: Path, word: str) -> bool:
    def change(content: Words | None) -> Words | None:
        known = () if content is None else content.words
        return None if word in known else Words(FORMAT, (*known, word))

    return FILE.change(folder, change)


def test_what_was_stored_is_read(tmp_path: Path) -> None:
    assert FILE.read(tmp_path) is None
    assert add(tmp_path, "one")
    assert add(tmp_path, "two")
    assert not add(tmp_path, "one")
    assert FILE.read(tmp_path) == Words(FORMAT, ("one", "two"))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", LogFault.CORRUPT),
        (b"\xff", LogFault.CORRUPT),
        (b'{"version":1}', LogFault.CORRUPT),
        (b'{"version":2}', LogFault.NEWER),
    ],
)
def test_a_damaged_or_newer_file_is_an_error(tmp_path: Path, content: bytes, fault: LogFault) -> None:
    (tmp_path / "_words.json").write_bytes(content)
    with pytest.raises(LogError) as caught:
        add(tmp_path, "one")
    assert caught.value.fault is fault


def test_two_writers_do_not_lose_an_entry(tmp_path: Path) -> None:
    held = Files().lock(tmp_path / "_words.lock")
    with pytest.raises(LogError, match="another process is declaring words"):
        add(tmp_path, "one")
    Files().close(held)
    assert add(tmp_path, "one")


def test_what_is_half_written_is_not_read(tmp_path: Path) -> None:
    add(tmp_path, "one")
    (tmp_path / "_words.json.aside").write_bytes(b"{")
    assert FILE.read(tmp_path) == Words(FORMAT, ("one",))
    assert add(tmp_path, "two")
    assert FILE.read(tmp_path) == Words(FORMAT, ("one", "two"))


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"cannot write .*lost"):
        add(tmp_path / "lost", "one")
