"""Logs for tests: a simulated clock, no background thread, and the expected content."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meshbus.log.durability import LogConfig
from meshbus.log.embedded.log import EmbeddedLog
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.embedded.writer import Writer
from meshbus.log.files import Files
from meshbus.log.log import Redex, RedexFile
from meshbus.log.reader import LogReader

CHANNEL = "sensors/lidar"
NOW = 1_700_000_000_000_000_000


class Clock:
    """A clock in nanoseconds since 1970 that only the test moves."""

    def __init__(self) -> None:
        self.now = NOW
        self.ticks = 1_000.0

    def __call__(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.ticks

    def forward(self, seconds: float) -> None:
        self.now += round(seconds * 1_000_000_000)
        self.ticks += seconds

    def set_by_hand(self, seconds: float) -> None:
        """Change the wall clock; no time passes."""
        self.now += round(seconds * 1_000_000_000)


def open_log(root: Path, *, files: Files | None = None, clock: Clock | None = None, **settings: Any) -> RedexFile:
    """Open the only channel of a test; closing the log is enough, because its Redex holds nothing else."""
    clock = clock or Clock()
    redex = Redex(root, files=files, clock=clock, monotonic=clock.monotonic, background=False)
    return redex.open(CHANNEL, LogConfig(**settings))


def writer_of(log: RedexFile) -> Writer:
    """The writer of an embedded log."""
    assert isinstance(log._backend, EmbeddedLog)
    return log._backend._writer


def in_files(source: RedexFile | LogReader) -> Snapshot:
    """The snapshot of an embedded log, with its manifest and its hot files."""
    snapshot = source.snapshot()
    assert isinstance(snapshot, Snapshot)
    return snapshot


def kill(log: RedexFile) -> None:
    """Release a log as the end of a process does: nothing is synced."""
    writer = writer_of(log)
    writer.closed = True
    for handle in (*(debt.handle for debt in writer._debts), writer._handle, writer._lock_handle):
        writer.files.close(handle)


def payloads(events: Iterable[Any]) -> list[bytes]:
    return [event.payload for event in events]


def numbered(first: int, count: int) -> list[bytes]:
    """Return payloads that contain their own numbers, of different lengths."""
    return [b"%d" % number + b"." * (number % 7) for number in range(first, first + count)]
