"""The public way to read logs; the embedded files are tests/log/embedded/test_reader.py, the contract test_backend.py."""

from pathlib import Path

import pytest

from meshbus.errors import LogError
from meshbus.log.reader import LogReader, find_channels, list_channels
from tests.log.making import CHANNEL, open_log


def test_a_reader_knows_its_folder(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    reader = LogReader(str(tmp_path), CHANNEL)
    assert [reader.folder] == list(tmp_path.iterdir())
    assert reader.snapshot().channel == reader.channel == CHANNEL
    assert reader.verify() == []


def test_listing_stops_at_an_unreadable_log_and_finding_continues(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "_manifest.json").write_text("{}")
    with pytest.raises(LogError, match="bad"):
        list_channels(tmp_path)
    entries, problems = find_channels(tmp_path)
    assert ([entry.channel for entry in entries], len(problems)) == ([CHANNEL], 1)
