"""Reading a record in another process: no row twice and none missing, whatever the writer does."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.packets import reader as module
from meshbus.log.packets.reader import PacketReader, list_recorders, read_split
from meshbus.log.packets.store import GROUP_ROWS, Bounds
from tests.log.packets.making import NODE, counters, numbered, open_recorder


def test_what_is_sealed_and_what_is_hot_are_read_as_one(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path)
    for first in range(0, 40, 10):
        recorder.take(**numbered(first, 10))
        if first == 10:
            recorder.seal()
    recorder.drain()
    assert counters(tmp_path) == list(range(40))
    snapshot = PacketReader(tmp_path, NODE).snapshot()
    assert (snapshot.first, snapshot.end, [part.sealed for part in snapshot.parts]) == (0, 40, [True, False])
    for start, stop in ((None, 5), (15, None), (15, 25), (25, 100), (40, 50), (7, 7)):
        found = [row["counter"] for batch in snapshot.batches(start, stop, ["counter"]) for row in batch.to_pylist()]
        assert found == list(range(start or 0, min(40 if stop is None else stop, 40)))
    assert list_recorders(tmp_path) == [NODE]
    recorder.close()


def test_splits_are_plain_and_stay_good_when_their_file_is_sealed(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path)
    recorder.take(**numbered(0, 30_000))
    recorder.drain()
    recorder.take(**numbered(30_000, 20_000))
    recorder.drain()
    snapshot = PacketReader(tmp_path, NODE).snapshot()
    splits = pickle.loads(pickle.dumps(json.loads(json.dumps(snapshot.splits(100, 49_900)))))
    recorder.seal()
    recorder.take(**numbered(50_000, 30_000))
    recorder.seal()
    batches = [batch for split in splits for batch in read_split(split, ["counter", "channel"], dictionaries=False)]
    assert [row["counter"] for batch in batches for row in batch.to_pylist()] == list(range(100, 49_900))
    assert str(batches[0].schema.field("channel").type) == "string"
    recorder.close()


def test_sealed_files_are_split_at_row_groups(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path)
    for first in range(0, 3 * GROUP_ROWS, 60_000):
        recorder.take(**numbered(first, min(60_000, 3 * GROUP_ROWS - first)))
        recorder.drain()
    recorder.seal()
    splits = PacketReader(tmp_path, NODE).snapshot().splits(rows=GROUP_ROWS)
    assert [(split["first"], split["end"]) for split in splits] == [
        (group * GROUP_ROWS, (group + 1) * GROUP_ROWS) for group in range(3)
    ]
    found = [value for split in splits for batch in read_split(split, ["counter"]) for value in batch[0].to_pylist()]
    assert found == list(range(3 * GROUP_ROWS))
    recorder.close()


def test_a_hot_file_that_is_sealed_between_two_looks_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer seals after the hot files were listed and before the sealed ones were: the worst moment."""
    recorder = open_recorder(tmp_path)
    recorder.take(**numbered(0, 10))
    recorder.drain()
    real = module._hot_part

    def sealed_meanwhile(first: int, path: Path) -> module.Part | None:
        part = real(first, path)
        monkeypatch.setattr(module, "_hot_part", real)
        recorder.seal()
        return part

    monkeypatch.setattr(module, "_hot_part", sealed_meanwhile)
    assert counters(tmp_path) == list(range(10))
    recorder.close()


def test_rows_that_expire_below_a_reader_are_left_out(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path, bounds=Bounds(max_age_s=0.0))
    recorder.take(**numbered(0, 10))
    recorder.drain()
    snapshot = PacketReader(tmp_path, NODE).snapshot()
    recorder.seal()
    assert list(snapshot.batches()) == []
    assert [batch for split in snapshot.splits() for batch in read_split(split)] == []
    assert recorder.stats.expired == 0, "nobody has asked since"
    recorder.keep()
    assert recorder.stats.expired == 10
    recorder.close()


def test_a_missing_record_is_an_error(tmp_path: Path) -> None:
    assert list_recorders(tmp_path) == []
    with pytest.raises(LogError, match="set record_packets") as caught:
        PacketReader(tmp_path, NODE).snapshot()
    assert caught.value.fault is LogFault.UNKNOWN
    recorder = open_recorder(tmp_path)
    assert PacketReader(tmp_path, NODE).snapshot().parts == ()
    with pytest.raises(ConfigError, match="unknown column colour"):
        list(PacketReader(tmp_path, NODE).snapshot().batches(columns=["colour"]))
    recorder.close()
