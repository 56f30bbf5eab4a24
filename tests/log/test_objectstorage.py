"""A log whose old segments move to a real S3-compatible server, which is stopped, slow and full meanwhile.

What a reader gets is compared with what was appended. Crashes between the steps are in tests/log/embedded/test_tier.py.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import LogConfig, Tiering
from meshbus.log.log import Redex, RedexFile
from meshbus.log.objectstore import delete_object, list_objects
from meshbus.log.reader import LogReader, read_split
from tests.log.making import CHANNEL, payloads
from tests.objectserver import ObjectServer, SlowProxy, object_server, serving
from tests.patience import PATIENCE_S

__all__ = ["object_server"]
pytestmark = pytest.mark.slow


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for threads of the log and for the server, which no clock of the test moves."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


class Run:
    """A log with its background threads, and what was appended to it."""

    def __init__(self, root: Path, uri: str) -> None:
        self.root = root
        self.redex = Redex(root)
        # Every sealed segment is due at once, because no local bytes are allowed; a file is still sealed by hand only.
        tier = Tiering(uri, local_bytes=1)
        self.log: RedexFile = self.redex.open(CHANNEL, LogConfig(tier=tier, seal_age_s=86_400))
        self.appended: list[bytes] = []
        self._random = random.Random(1)

    def add_segment(self, size: int = 1_000) -> None:
        # One event for each segment: a hot file above an eighth of local_bytes is sealed at the next append.
        events = [self._random.randbytes(size)]
        self.log.append_batch(events)
        self.appended += events
        self.log.seal()

    def places(self) -> list[str]:
        return [segment.place for segment in self.log.snapshot().segments]

    def all_moved(self) -> bool:
        return set(self.places()) == {"remote"} and self.log.next_seq == len(self.appended)

    def check(self) -> None:
        """Every kind of reader gets exactly what was appended, wherever it is."""
        assert payloads(self.log.read_range(0, len(self.appended))) == self.appended
        snapshot = LogReader(self.root, CHANNEL).snapshot()
        assert payloads(snapshot.events()) == self.appended
        assert payloads(self.log.tail(0).take()) == self.appended
        rows = [batch.column("payload") for split in snapshot.splits() for batch in read_split(split, ["payload"])]
        assert [row for column in rows for row in column.to_pylist()] == self.appended


@pytest.fixture
def run(object_server: ObjectServer, tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path, object_server.uri(f"run/{tmp_path.name}"))
    with run.redex:
        yield run


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ObjectServer]:
    """A server for one test, with little room."""
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server", volumes=3) as server:
        yield server


def test_segments_move_in_the_background_and_every_reader_follows(run: Run) -> None:
    for _ in range(3):
        run.add_segment()
    until(run.all_moved, "everything has moved")
    run.check()
    run.add_segment()
    run.check()
    run.log.append(b"hot")
    run.appended.append(b"hot")
    run.check()
    until(lambda: run.all_moved() and len(run.places()) == 5, "the hot event is sealed, and has moved")
    assert run.log.verify() == []
    segments = run.log.snapshot().segments
    assert run.log.stats.copied == len(segments) == 5
    assert run.log.stats.copied_bytes == sum(segment.bytes for segment in segments)


def test_large_segments_move_in_parts_and_columns_are_read_by_ranges(run: Run) -> None:
    run.add_segment(12 << 20)
    run.add_segment(10)
    until(run.all_moved, "everything has moved")
    run.check()
    batches = list(LogReader(run.root, CHANNEL).snapshot().batches(columns=["seq"]))
    assert [seq for batch in batches for seq in batch.column("seq").to_pylist()] == [0, 1]


def test_a_removed_object_is_an_error_that_names_it(run: Run) -> None:
    run.add_segment()
    run.add_segment()
    until(run.all_moved, "everything has moved")
    gone = run.log.snapshot().segments[0]
    assert gone.uri is not None
    delete_object(gone.uri)
    name = rf"s3://bucket/run/.*/{gone.path.name} at http://127.0.0.1:\d+ is gone from object storage; restore it from a copy"
    with pytest.raises(LogError, match=name) as caught:
        list(LogReader(run.root, CHANNEL).snapshot().events())
    assert caught.value.fault is LogFault.CORRUPT
    assert payloads(run.log.read_range(1, 2)) == run.appended[1:]


def test_a_server_that_stops_delays_what_moves_and_loses_nothing(own_server: ObjectServer, tmp_path: Path) -> None:
    run = Run(tmp_path / "logs", own_server.uri("stopped"))
    with run.redex:
        run.add_segment()
        until(run.all_moved, "everything has moved")
        own_server.stop()
        for _ in range(3):
            run.add_segment()
        until(lambda: "it does not answer" in run.log.stats.waits, "the log says that it waits")
        # The file for readers in other processes follows a moment later.
        reader = LogReader(run.root, CHANNEL)
        until(lambda: "it does not answer" in reader.snapshot().waits, "readers see that it waits")
        with pytest.raises(LogError, match=r"cannot read s3://.*it does not answer") as caught:
            list(run.log.read_range(0, 1))
        assert caught.value.fault is LogFault.UNREACHABLE
        assert payloads(run.log.read_range(1, 4)) == run.appended[1:], "what has no copy is still local"
        run.add_segment()
        assert run.places() == ["remote"] + ["local"] * 4
        own_server.start()
        until(run.all_moved, "everything has moved")
        until(lambda: run.log.stats.waits == "" == reader.snapshot().waits, "the log waits no more")
        run.check()


def test_a_full_server_delays_moves_until_there_is_room(own_server: ObjectServer, tmp_path: Path) -> None:
    run = Run(tmp_path / "logs", own_server.uri("full"))
    with run.redex:
        while not run.log.stats.waits:
            run.add_segment(700_000)
            assert len(run.appended) < 60, "the server never became full"
            until(lambda: run.all_moved() or run.log.stats.waits != "", "it moved, or says why not")
        assert "cannot write s3://" in run.log.stats.waits
        assert "check the server and its free space" in run.log.stats.waits
        for _ in range(3):
            run.add_segment()
        assert run.places()[-3:] == ["local"] * 3
        run.check()
        own_server.stop()
        own_server.start(volumes=100)
        until(run.all_moved, "everything has moved")
        run.check()
        uris = [segment.uri for segment in run.log.snapshot().segments]
        assert [uri for uri, _ in list_objects(own_server.uri("full"))] == uris


def test_a_slow_server_delays_no_append_and_no_seal(object_server: ObjectServer, tmp_path: Path) -> None:
    with closing(SlowProxy(object_server.port)) as proxy:
        run = Run(tmp_path, object_server.uri("slow", port=proxy.port))
        with run.redex:
            proxy.slow = True
            run.add_segment(400_000)
            until(lambda: proxy.passed > 20_000, "the upload has begun")
            for _ in range(10):
                run.add_segment()
            run.log.sync()
            assert run.log.stats.copied == 0, "all of that while the first upload went on"
            assert "remote" not in run.places()
            proxy.slow = False
            until(run.all_moved, "everything has moved")
            run.check()


def test_closing_does_not_wait_for_a_server_that_is_slow(object_server: ObjectServer, tmp_path: Path) -> None:
    with closing(SlowProxy(object_server.port)) as proxy:
        run = Run(tmp_path, object_server.uri("closing", port=proxy.port))
        with run.redex:
            proxy.slow = True
            run.add_segment(9 << 20)  # hours at this speed
            until(lambda: proxy.passed > 20_000, "the upload has begun")
        with Redex(tmp_path, background=False) as redex:
            log = redex.open(CHANNEL)
            assert payloads(log.read_range(0, 1)) == run.appended
        proxy.slow = False
        until(lambda: "meshbus-log-mover" not in {thread.name for thread in threading.enumerate()}, "the thread ended")
