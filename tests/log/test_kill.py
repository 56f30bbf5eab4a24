"""Kill -9 at random points of a busy writer: every acknowledged event is there once, under every policy."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from meshbus.log.durability import Tiering
from meshbus.log.objectstore import list_objects
from meshbus.log.reader import LogReader
from tests.children import child
from tests.house.tree import ROOT
from tests.log.killed import LOCAL_BYTES
from tests.log.making import CHANNEL, numbered, open_log
from tests.objectserver import ObjectServer, object_server

__all__ = ["object_server"]


def kill_often(root: Path, rounds: int, seed: int, *uri: str, longest_s: float = 0.12) -> int:
    """Kill the writer several times, check the log after each, and return how many events are in it."""
    rng = random.Random(seed)
    command = [sys.executable, "-m", "tests.log.killed", str(root), *uri]
    acknowledged = 0
    with child(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number in range(rounds):
            writer.stdin.write(f"{number} {rng.uniform(0, longest_s):.4f}\n")
            writer.stdin.flush()
            acknowledged = int(writer.stdout.readline())
            check(root, acknowledged, f"round {number}")
        writer.stdin.close()
    return acknowledged


def check(root: Path, acknowledged: int, where: str) -> None:
    snapshot = LogReader(root, CHANNEL).snapshot()
    seen = list(snapshot.events())
    assert [event.seq for event in seen] == list(range(snapshot.first, snapshot.end)), where
    assert [event.payload for event in seen] == numbered(snapshot.first, len(seen)), where
    assert snapshot.end >= acknowledged, f"{where}: {acknowledged} were acknowledged, {snapshot.end} are there"
    assert not snapshot.damage, where


@pytest.mark.slow
def test_twenty_deaths(tmp_path: Path) -> None:
    acknowledged = kill_often(tmp_path / "root", 20, seed=4)
    assert acknowledged > 100
    with open_log(tmp_path / "root") as log:
        assert log.next_seq >= acknowledged
        assert log.verify() == []


def check_moved(root: Path, uri: str) -> None:
    """Open the log again and finish what was begun: every object belongs to a segment, and everything is readable."""
    with open_log(root, tier=Tiering(uri, local_bytes=LOCAL_BYTES), grace_s=0) as log:
        log.keep()
        log.tier()
        assert log.verify() == []
        named = [segment.uri for segment in log.snapshot().segments if segment.uri is not None]
        assert [place for place, _ in list_objects(uri)] == named
        assert named, "some had moved"


@pytest.mark.slow
def test_deaths_while_segments_move(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/objects"
    assert kill_often(tmp_path / "root", 8, 6, uri, longest_s=1.0)
    check_moved(tmp_path / "root", uri)


@pytest.mark.soak
def test_a_hundred_deaths_while_segments_move_to_a_server(object_server: ObjectServer, tmp_path: Path) -> None:
    uri = object_server.uri("deaths")
    assert kill_often(tmp_path / "root", 100, 7, uri, longest_s=2.0)
    check_moved(tmp_path / "root", uri)


@pytest.mark.soak
def test_five_hundred_deaths(tmp_path: Path) -> None:
    assert kill_often(tmp_path / "root", 500, seed=5)
    with open_log(tmp_path / "root") as log:
        assert log.verify() == []
