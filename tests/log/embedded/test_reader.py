"""Reading without the writer: no lock, no gap and no row twice while the log changes."""

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import NEVER, LogConfig, Retention
from meshbus.log.log import Redex
from meshbus.log.reader import LogReader, list_channels, read_split
from tests.log.making import CHANNEL, in_files, numbered, open_log, payloads


def test_channels_are_listed_by_name_and_other_things_passed_over(tmp_path: Path) -> None:
    with Redex(tmp_path, background=False) as redex:
        for name in ("b", "a/c"):
            redex.open(name).append(b"x")
    (tmp_path / "unrelated").mkdir()
    (tmp_path / "file").touch()
    assert [entry.channel for entry in list_channels(tmp_path)] == ["a/c", "b"]
    assert list_channels(tmp_path / "unrelated") == []


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_a_path_that_is_not_a_folder_of_logs_is_an_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="not a folder of logs"):
        list_channels(tmp_path / place)
    with pytest.raises(LogError, match="no log of sensors/lidar") as caught:
        LogReader(tmp_path / place, CHANNEL).snapshot()
    assert caught.value.fault is LogFault.UNKNOWN


def test_a_reader_sees_what_the_writer_has_written_and_nothing_half(tmp_path: Path) -> None:
    with open_log(tmp_path, fsync=NEVER) as log:
        reader = LogReader(tmp_path, CHANNEL)
        assert reader.snapshot().end == 0
        log.append_batch(numbered(0, 5))
        assert payloads(reader.snapshot().events()) == numbered(0, 5)
        (path,) = tmp_path.glob("*/_hot/*.hot")
        with path.open("ab") as file:
            file.write(b"MBBK half a block")
        assert payloads(reader.snapshot().events()) == numbered(0, 5)


def test_a_folder_of_another_channel_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    (folder,) = tmp_path.iterdir()
    reader = LogReader(tmp_path, "other")
    folder.rename(reader.folder)
    with pytest.raises(LogError, match="is the log of sensors/lidar"):
        reader.snapshot()


def test_damage_is_reported_after_what_can_be_read(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 3))
        log.append_batch(numbered(3, 3))
        log.sync()
        log.append(b"later")
        place = in_files(log).hot[0].place_of(1)
    (path,) = tmp_path.glob("*/_hot/*.hot")
    content = bytearray(path.read_bytes())
    content[place + 70] ^= 1
    path.write_bytes(content)
    snapshot = LogReader(tmp_path, CHANNEL).snapshot()
    assert payloads(snapshot.events(0, 3)) == numbered(0, 3)
    events = snapshot.events()
    assert payloads(next(events) for _ in range(3)) == numbered(0, 3)
    with pytest.raises(LogError, match="were synced and are damaged"):
        next(events)


def test_a_split_of_a_replaced_log_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"x")
        (split,) = log.snapshot().splits()
    (folder,) = tmp_path.iterdir()
    folder.rename(tmp_path / "away")
    with open_log(tmp_path) as log:
        log.append(b"y")
        log.seal()
    with pytest.raises(LogError, match="plan the splits again"):
        list(read_split(split))


def test_a_damaged_split_is_an_error(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"x")
        (split,) = log.snapshot().splits()
    (path,) = tmp_path.glob("*/_hot/*.hot")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogError, match="is damaged"):
        list(read_split(split))


READ_SPLITS = """
import pickle, sys
from meshbus.log.reader import read_split
splits = pickle.load(sys.stdin.buffer)
print([seq for split in splits for batch in read_split(split, ["seq"]) for seq in batch.column("seq").to_pylist()])
"""


def test_splits_are_read_in_another_process(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 50))
        log.seal()
        log.append_batch(numbered(50, 50))
        splits = LogReader(tmp_path, CHANNEL).snapshot().splits(rows=20)
        command = [sys.executable, "-c", READ_SPLITS]
        answer = subprocess.run(command, input=pickle.dumps(splits), capture_output=True, check=True)
    assert json.loads(answer.stdout) == list(range(100))


def test_no_row_is_missing_or_twice_while_everything_happens(tmp_path: Path) -> None:
    """Readers take snapshots as fast as they can while a writer appends, seals, compacts and expires."""
    retention = Retention(max_events=50)
    stop, problems, looks = threading.Event(), list[str](), [0]

    def read() -> None:
        reader = LogReader(tmp_path, CHANNEL)
        while not stop.is_set():
            snapshot = reader.snapshot()
            try:
                seen = [(event.seq, event.payload) for event in snapshot.events()]
            except LogError as error:
                if error.fault is not LogFault.RANGE_GONE:
                    problems.append(str(error))
                continue
            looks[0] += 1
            first, end = snapshot.first, snapshot.end
            if seen != list(zip(range(first, end), numbered(first, end - first), strict=True)):
                problems.append(f"{first} to {end}: {seen[:3]} … {seen[-3:]}")

    config = LogConfig(fsync=NEVER, seal_bytes=200_000, retention=retention, grace_s=0)
    with Redex(tmp_path, background=False) as redex:
        log = redex.open(CHANNEL, config)
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(200):
            log.append_batch(numbered(log.next_seq, turn % 9))
            log.append(numbered(log.next_seq, 1)[0])
            if turn % 5 == 0:
                log.seal()
            if turn % 10 == 0:
                log.expire()
            if turn % 40 == 25:
                log.compact()
        stop.set()
        for thread in threads:
            thread.join()
        assert log.stats.seals > 20
        assert log.stats.compactions
        assert log.stats.expired
    assert not problems, problems[:3]
    assert looks[0] > 5
