"""The log of a channel as users see it; tests/log/test_model.py compares it with a list."""

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meshbus.errors import ChannelError, ConfigError, LogError
from meshbus.log import log as module
from meshbus.log.durability import NEVER, LogConfig, Retention, Tiering, every_n, interval
from meshbus.log.log import Redex
from tests.log.making import CHANNEL, NOW, Clock, open_log, payloads


def test_sequences_and_publish_numbers_continue_over_restarts(tmp_path: Path) -> None:
    for turn in range(3):
        with open_log(tmp_path) as log:
            assert log.append(b"a") == 3 * turn
            assert log.append_batch([b"b", b"c"]) == range(3 * turn + 1, 3 * turn + 3)
            if turn == 1:
                log.seal()
    with open_log(tmp_path) as log:
        events = list(log.read_range(0, 99))
        assert [event.seq for event in events] == [event.pub_seq for event in events] == list(range(9))
        assert len(log.log_id) == 16


def test_an_empty_batch_takes_no_sequence_and_no_room(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"x")
        assert log.append_batch([]) == range(1, 1)
        assert log.stats.appended == 1


def test_batches_are_taken_as_lists_arrays_and_arrow(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch([b"a", b"bc"])
        log.append_batch((np.array([1, 2, 2]), np.frombuffer(b"xyz", np.uint8)))
        log.append_batch(pa.array([b"d", b""]))
        assert payloads(log.read_range(0, 6)) == [b"a", b"bc", b"y", b"", b"d", b""]


def test_single_appends_take_columns_too(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(memoryview(b"x"), origin=7, ts_ns=5, headers={"a": b"1"})
        log.append(b"y", session_id=np.array([9], np.uint64), pub_seq=None)
        first, second = log.read_range(0, 2)
        assert (first.origin, first.ts_ns, first.headers) == (7, 5, {"a": b"1"})
        assert (second.pub_seq, second.ts_ns) == (None, NOW)
        with pytest.raises(ConfigError, match="colour"):
            log.append(b"z", colour=1)  # type: ignore[call-arg]
        assert log.next_seq == 2


def test_an_event_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_APPEND_BYTES", 10)
    with open_log(tmp_path) as log, pytest.raises(LogError, match="at most 10"):
        log.append(b"x" * 11)


@pytest.mark.parametrize(
    ("fsync", "unsynced_after"),
    [(NEVER, [1, 2, 3, 7]), (every_n(1), [0, 0, 0, 0]), (every_n(3), [1, 2, 0, 0]), (interval(1), [1, 2, 3, 7])],
)
def test_each_policy_syncs_as_documented(tmp_path: Path, fsync: object, unsynced_after: list[int]) -> None:
    clock = Clock()
    with open_log(tmp_path, clock=clock, fsync=fsync) as log:
        seen = []
        for count in (1, 1, 1, 4):
            log.append_batch([b"x"] * count)
            seen.append(log.next_seq - log.durable_seq)
        assert seen == unsynced_after
        clock.forward(0.5)
        log.keep()
        assert log.next_seq - log.durable_seq == unsynced_after[-1], "half the interval is not enough"
        clock.forward(0.5)
        log.keep()
        assert log.next_seq - log.durable_seq == (0 if fsync == interval(1) else unsynced_after[-1])
        log.sync()
        assert log.durable_seq == log.next_seq


def test_opening_again_returns_the_same_log_and_refuses_other_settings(tmp_path: Path) -> None:
    with Redex(tmp_path, background=False) as redex:
        log = redex.open(CHANNEL, fsync=NEVER, retention=Retention(max_events=9))
        assert redex.open(CHANNEL, LogConfig(fsync=NEVER, retention=Retention(max_events=9))) is log
        assert redex.open(CHANNEL) is log
        with pytest.raises(ConfigError, match="other settings"):
            redex.open(CHANNEL, LogConfig())
        log.close()
        again = redex.open(CHANNEL)
        assert again is not log
        assert again.append(b"x") == 0
    assert again.closed
    with pytest.raises(LogError, match="closed"):
        redex.open(CHANNEL)


def test_a_bad_channel_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with Redex(tmp_path / "root") as redex, pytest.raises(ChannelError):
        redex.open("Sensors")
    assert not (tmp_path / "root").exists()


def test_in_the_background_an_interval_syncs_and_size_seals(tmp_path: Path) -> None:
    with Redex(tmp_path, recorder=5) as redex:
        log = redex.open(CHANNEL, LogConfig(fsync=interval(0.005), seal_bytes=100), origin=6)
        log.append_batch([b"x" * 200])
        waiting = threading.Event()
        for _ in range(2_000):
            if log.durable_seq == 1 and log.stats.seals:
                break
            waiting.wait(0.005)
        assert (log.durable_seq, log.stats.seals) == (1, 1)
        (batch,) = log.read_batches(columns=["recorder", "origin"])
        assert batch.to_pylist() == [{"recorder": 5, "origin": 6}]


def test_in_the_background_old_segments_move_to_object_storage(tmp_path: Path) -> None:
    with Redex(tmp_path / "logs") as redex:
        log = redex.open(CHANNEL, LogConfig(tier=Tiering(f"file://{tmp_path}/store", after_s=0)))
        log.append(b"x")
        log.seal()
        waiting = threading.Event()
        for _ in range(2_000):
            if [segment.place for segment in log.snapshot().segments] == ["remote"]:
                break
            waiting.wait(0.005)
        assert [segment.place for segment in log.snapshot().segments] == ["remote"]
        assert payloads(log.read_range(0, 1)) == [b"x"]
    assert not any(thread.name.startswith("meshbus-log") for thread in threading.enumerate())


def test_a_log_without_object_storage_needs_no_thread_for_it(tmp_path: Path) -> None:
    with Redex(tmp_path) as redex:
        log = redex.open(CHANNEL)
        assert (log.tiers, log.tier()) == (False, 0)
        assert not any(thread.name == "meshbus-log-mover" for thread in threading.enumerate())


def test_a_forgotten_log_warns(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.warns(ResourceWarning, match="never closed"):
        log.__del__()
    log.close()
    assert repr(log) == "<RedexFile sensors/lidar [0, 0)>"
