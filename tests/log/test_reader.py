"""The public way to read logs; the embedded files are tests/log/embedded/test_reader.py, the contract test_backend.py."""

from pathlib import Path

import pytest

from meshbus.errors import LogError
from meshbus.log.reader import LogReader, find_channels, find_roots, list_channels
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


def test_the_folders_of_logs_are_found_at_any_level(tmp_path: Path) -> None:
    assert find_roots(tmp_path) == []
    assert find_roots(tmp_path / "nowhere") == []
    roots = [tmp_path / "base" / "received", tmp_path / "robot" / "published"]
    for root in roots:
        open_log(root).close()
    (tmp_path / "tables" / "events").mkdir(parents=True)
    (tmp_path / "tables" / "events" / "_manifest.json").write_text("{}", "utf-8")
    assert find_roots(tmp_path) == roots
    assert find_roots(tmp_path / "base") == roots[:1]
    (log,) = roots[0].iterdir()
    assert find_roots(log) == roots[:1]
