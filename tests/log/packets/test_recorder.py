"""The recorder: never delays packets, counts what it lost, and writes to the disk soon."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbus.errors import ConfigError
from meshbus.log.packets import recorder as module
from meshbus.log.packets.policies import load_policies
from meshbus.log.packets.recorder import ARENA_ROWS, DRAIN_S, PacketRecorder
from meshbus.names.channel import ChannelName
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from tests.children import child
from tests.house.tree import ROOT
from tests.log.packets.making import NODE, POLICY, blank_headers, counters, numbered, open_recorder, read_rows
from tests.log.packets.test_store import Full


def test_a_full_buffer_drops_counts_and_continues(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path)
    recorder.take(**numbered(0, ARENA_ROWS - 10))
    recorder.take(**numbered(ARENA_ROWS - 10, 50))
    recorder.take(**numbered(ARENA_ROWS + 40, 5))
    stats = recorder.stats
    assert (stats.seen, stats.taken, stats.lost_full) == (ARENA_ROWS + 45, ARENA_ROWS, 45)
    recorder.drain()
    recorder.take(**numbered(-3 & 0xFFFF, 3))
    recorder.sync()
    assert counters(tmp_path) == [*range(ARENA_ROWS), *range(0xFFFD, 0x10000)]
    stats = recorder.stats
    assert stats.written == stats.taken == ARENA_ROWS + 3
    recorder.close()


def test_a_disk_that_refuses_is_counted_and_tried_again(tmp_path: Path) -> None:
    disk = Full()
    recorder = open_recorder(tmp_path, files=disk)
    recorder.take(**numbered(0, 5))
    recorder.drain()
    disk.left = 100
    recorder.take(**numbered(5, 7))
    recorder.drain()
    disk.left = 1 << 30
    recorder.take(**numbered(12, 3))
    recorder.drain()
    stats = recorder.stats
    assert (stats.taken, stats.written, stats.lost_disk) == (15, 8, 7)
    assert counters(tmp_path) == [*range(5), *range(12, 15)]
    recorder.close()


def test_policies_and_names_are_those_of_the_moment(tmp_path: Path) -> None:
    channel, other = ChannelName("sensors/lidar"), ChannelName("joined")
    headers = blank_headers(2)
    for number, name in enumerate((channel, other)):
        headers["stream_id"][number], headers["channel_hash"][number] = name.stream_id, name.wire_hash
    packets: dict[str, Any] = {"headers": headers, "reasons": np.zeros(2, np.uint8), "ts_ns": 1, "here": False}
    second = GatewayPolicy(local_subnet=9, channels=(ChannelPolicy("plans", Visibility.GLOBAL),))
    recorder = open_recorder(tmp_path)
    for policy, joined in ((POLICY, ()), (POLICY, (other,)), (second, (other,)), (second, ()), (POLICY, ())):
        recorder.set_policy(policy, joined)
        recorder.take(**packets)
    recorder.sync()
    recorder.close()
    rows = read_rows(tmp_path, ["channel", "policy_version", "chash64"])
    assert [(row["channel"], row["policy_version"]) for row in rows] == [
        (str(channel), 1), (None, 1),
        (str(channel), 1), ("joined", 1),
        (None, 2), ("joined", 2),
        (None, 2), (None, 2),
        (str(channel), 1), (None, 1),
    ]  # fmt: skip
    assert {row["chash64"] % 2**64 for row in rows if row["channel"] == "joined"} == {other.hash}
    assert load_policies(recorder.folder) == {1: POLICY, 2: second}
    again = open_recorder(tmp_path)
    again.set_policy(second, ())
    again.take(**packets)
    again.close()
    assert read_rows(tmp_path, ["policy_version"])[-1] == {"policy_version": 2}


def test_every_row_has_its_sampling_rate(tmp_path: Path) -> None:
    for sampling in (4, 3):
        recorder = open_recorder(tmp_path, sampling=sampling, seed=8)
        for first in range(0, 10_000, 1000):
            recorder.take(**numbered(first, 1000))
        recorder.close()
    rows = read_rows(tmp_path, ["sampling_rate", "counter"])
    for sampling in (4, 3):
        chosen = [row["counter"] for row in rows if row["sampling_rate"] == sampling]
        assert abs(sampling * len(chosen) - 10_000) < 1000
        assert chosen == sorted(set(chosen))
    with pytest.raises(ConfigError, match="record_sampling"):
        open_recorder(tmp_path, sampling=0)


def test_the_thread_writes_while_packets_pass(tmp_path: Path) -> None:
    """With many threads, rows are complete, and none is lost as long as there is room."""
    recorder = PacketRecorder(tmp_path, NODE)
    for first in range(0, 300_000, 500):
        while recorder._arena.rows > ARENA_ROWS - 1000:
            time.sleep(0.001)
        recorder.take(**numbered(first, 500))
    recorder.close()
    assert recorder.stats.lost_full == recorder.stats.lost_disk == 0
    assert counters(tmp_path) == list(range(300_000))


def test_nothing_but_time_is_needed_for_rows_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    monkeypatch.setattr(module, "SYNC_S", 0.0)
    recorder = PacketRecorder(tmp_path, NODE)
    monkeypatch.setattr(recorder._store.files, "fsync", lambda _: synced.set())
    recorder.take(**numbered(0, 3))
    assert synced.wait(40 * DRAIN_S)
    assert counters(tmp_path) == [0, 1, 2]
    recorder.close()


VICTIM = """
import sys
from tests.children import child
from tests.house.tree import ROOT
from tests.log.packets.making import NODE, numbered
from meshbus.log.packets.recorder import PacketRecorder
recorder = PacketRecorder(sys.argv[1], NODE)
first = 0
while True:
    recorder.take(**numbered(first, 200))
    first += 200
    if first % 20_000 == 0:
        recorder.sync()
        if first % 40_000 == 0:
            recorder.seal()
        print(first, flush=True)
"""


def test_a_killed_process_leaves_what_it_had_written(tmp_path: Path) -> None:
    """After kill -9 at any moment, no row is torn, twice or out of order, and what was synced is there."""
    for round_ in range(2):
        with child(
            [sys.executable, "-c", VICTIM, str(tmp_path / str(round_))], stdout=subprocess.PIPE, cwd=ROOT
        ) as victim:
            assert victim.stdout is not None
            promised = 0
            for _ in range(3 + round_):
                promised = int(victim.stdout.readline())
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            promised = max([promised, *map(int, victim.stdout.read().split())])
        found = counters(tmp_path / str(round_))
        assert len(found) >= promised
        assert found == list(range(len(found)))
        recorder = open_recorder(tmp_path / str(round_))
        recorder.take(**numbered(len(found), 10))
        recorder.seal()
        recorder.close()
        assert counters(tmp_path / str(round_)) == list(range(len(found) + 10))
