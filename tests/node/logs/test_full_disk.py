"""A node on a real file system with little room: a tmpfs of a few megabytes, which only root can mount."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.reader import LogReader
from meshbus.names.channel import ChannelName
from meshbus.node.node import Node
from tests.node.test_node import QUICK

CHANNEL = "plant/temperature"
SIZE_MB = 6


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of a few megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a tmpfs needs root and the program 'mount'")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this system does not allow to mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def fill(place: Path) -> None:
    """Write a file until there is no room for more."""
    with suppress(OSError), place.open("wb", buffering=0) as file:
        while file.write(bytes(65_536)) == 65_536:
            pass


async def test_a_node_on_a_full_disk_refuses_says_why_and_goes_on_when_there_is_room(small: Path) -> None:
    channels = [{"name": CHANNEL, "log": "published", "log_retain_bytes": 64 << 20}]
    ballast = small / "ballast"
    async with Node.open(**QUICK, log_dir=small / "logs", channels=channels, record_packets=True) as node:
        publisher = node.publisher(CHANNEL)
        await publisher.publish_batch([b"first"] * 10)
        fill(ballast)
        accepted, refused = 10, None
        while refused is None:
            try:
                await publisher.publish(bytes(4000))
                accepted += 1
            except LogError as error:
                refused = error
        assert refused.fault is LogFault.NO_SPACE
        # While it is full, reading goes on, and what was refused is not there.
        assert _count(small) == accepted
        # The cause goes away: the same node goes on, without a restart, and nothing is lost or doubled.
        ballast.unlink()
        for number in range(50):
            await publisher.publish(number.to_bytes(8, "little"))
        assert _count(small) == accepted + 50
        assert node.counters.get("exception", {}) == {}
    assert _count(small) == accepted + 50


def _count(small: Path) -> int:
    snapshot = LogReader(small / "logs" / "published", ChannelName(CHANNEL)).snapshot()
    return sum(1 for _ in snapshot.events())
