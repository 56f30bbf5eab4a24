"""Pages of a log on disk: equal to a list, whatever is sealed, compacted or expired; and served under 30 % loss."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbus.engine.base.notices import HistoryEnded, HistoryFault, HistoryGap
from meshbus.engine.channels.history_server import Page
from meshbus.errors import LogError, LogFault
from meshbus.log.durability import LogConfig, Retention
from meshbus.log.log import Redex, RedexFile
from meshbus.node.logs.logpager import Pager
from tests.engine.archive import Archive, numbers, passing, read, until
from tests.engine.badnet import BAD
from tests.engine.fleet import CHANNEL, numbered, pair


class DiskLog:
    """The log of a channel on disk, as an archive wants it."""

    def __init__(self, file: RedexFile) -> None:
        self.file = file
        self._pager = Pager(file)

    @property
    def end(self) -> int:
        return self.file.next_seq

    def append(self, events: Sequence[bytes]) -> None:
        self.file.append_batch(list(events))

    def page(self, next_seq: int, max_bytes: int) -> Page:
        return self._pager.read(next_seq, self.end, max_bytes)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., RedexFile]]:
    opened: list[Redex] = []

    def open_log(**retention: int) -> RedexFile:
        redex = Redex(tmp_path / str(len(opened)), background=False)
        opened.append(redex)
        return redex.open(CHANNEL, LogConfig(retention=Retention(**retention), grace_s=0.0))

    yield open_log
    for redex in opened:
        redex.close()


def payloads(page: Page) -> list[bytes]:
    edges = page.offsets.tolist()
    return [page.data[left:right].tobytes() for left, right in pairwise(edges)]


def whole(log: RedexFile, max_bytes: int, start: int = 0) -> list[bytes]:
    """Read page by page."""
    pager, got = Pager(log), list[bytes]()
    at = start
    while at < log.next_seq:
        page = pager.read(at, log.next_seq, max_bytes)
        assert page.first_seq == at
        assert len(page) == len(page.times) >= 1
        assert sum(map(len, payloads(page)[:-1])) < max_bytes or len(page) == 1
        got += payloads(page)
        at += len(page)
    return got


@pytest.mark.parametrize("arrow", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 100, 1 << 20])
def test_the_pages_together_are_the_log(
    make: Callable[..., RedexFile], monkeypatch: pytest.MonkeyPatch, arrow: bool, max_bytes: int
) -> None:
    log = make()
    events = [bytes([n % 256]) * (n % 23) for n in range(300)]
    log.append_batch(events[:100])
    if arrow:
        log.seal()
    else:
        monkeypatch.setattr("meshbus.node.logs.logpager.has_arrow", lambda: False)
    log.append_batch(events[100:200])
    for event in events[200:]:
        log.append(event)
    assert whole(log, max_bytes) == events
    assert whole(log, max_bytes, start=150) == events[150:]


def test_a_page_ends_where_it_may_be_read_to(make: Callable[..., RedexFile]) -> None:
    log = make()
    log.append_batch(numbered(100))
    pager = Pager(log)
    assert payloads(pager.read(90, 95, 1 << 20)) == numbered(5, first=90)
    for start in (95, 99, 200):
        page = pager.read(start, 95, 1 << 20)
        assert (len(page), page.first_seq, page.end, page.first_available) == (0, start, 95, 0)


def test_times_are_those_of_the_log(make: Callable[..., RedexFile]) -> None:
    log = make()
    log.append_batch([b"a", b"b", b"c"], ts_ns=[5, 6, 7])
    log.seal()
    assert Pager(log).read(1, 3, 100).times.tolist() == [6, 7]


def test_a_row_group_is_decoded_once_for_all_its_pages(
    make: Callable[..., RedexFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make()
    log.append_batch(numbered(5000))
    log.seal()
    decoded = 0
    real = RedexFile.read_batches

    def counting(self: RedexFile, *arguments: object) -> object:
        nonlocal decoded
        decoded += 1
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RedexFile, "read_batches", counting)
    assert whole(log, 800) == numbered(5000)
    assert decoded <= 5000 // 1024 + 1


def test_a_page_of_expired_events_starts_at_the_first_available(make: Callable[..., RedexFile]) -> None:
    log = make(max_events=50)
    for first in range(0, 200, 50):
        log.append_batch(numbered(50, first=first))
        log.seal()
    pager = Pager(log)
    assert payloads(pager.read(0, 200, 100))[0] == numbered(1)[0]
    log.expire()
    page = pager.read(20, 200, 1 << 20)
    assert (page.first_seq, page.first_available) == (150, 150)
    assert payloads(page) == numbered(50, first=150)


def test_a_log_that_expires_during_every_attempt_is_an_error(
    make: Callable[..., RedexFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make()
    log.append_batch(numbered(3))

    def gone(*_: object) -> None:
        raise LogError(LogFault.RANGE_GONE, "gone again")

    monkeypatch.setattr(RedexFile, "read_batches", gone)
    with pytest.raises(LogError, match="expires faster"):
        Pager(log).read(0, 3, 100)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["append", "one", "seal", "compact", "expire", "read"]), min_size=1, max_size=25),
    st.integers(1, 4000),
)
def test_pages_equal_a_list_after_any_order_of_operations(
    tmp_path_factory: pytest.TempPathFactory, work: list[str], max_bytes: int
) -> None:
    with Redex(tmp_path_factory.mktemp("log"), background=False) as redex:
        log = redex.open(CHANNEL, LogConfig(retention=Retention(max_events=60), grace_s=0.0))
        pager, model = Pager(log), list[bytes]()
        for step in [*work, "read"]:
            match step:
                case "append":
                    model += (new := numbered(17, 40, first=len(model)))
                    log.append_batch(new)
                case "one":
                    model += (new := numbered(1, 40, first=len(model)))
                    log.append(new[0])
                case "read":
                    at = log.first_seq
                    while at < len(model):
                        page = pager.read(at, len(model), max_bytes)
                        assert payloads(page) == model[at : at + len(page)]
                        at += len(page)
                case _:
                    getattr(log, step)()


class Reading(NamedTuple):
    """How a reader of a log at work fared."""

    missing: int
    """Events that retention took before it could read them."""
    refused: bool
    """Its start was gone when it asked."""


def read_while_it_works(file: RedexFile, seed: int) -> Reading:
    """Read over a network that loses 30 %, while the publisher appends, seals, compacts and retains."""
    chance = random.Random(seed)
    net, publisher, reader = pair(seed, left={"max_payload": 1500})
    archive = Archive(publisher, DiskLog(file))
    end = 0

    def grow() -> None:
        nonlocal end
        count = chance.randrange(1, 90)
        archive.append(numbered(count, 300, first=end))
        end += count

    def tidy() -> None:
        file.seal()
        file.expire()

    for step in (grow, grow, tidy, grow, tidy, grow, grow):
        step()
    net.path = BAD
    since = chance.randrange(end)
    read(reader, publisher, since)
    for _ in range(30):
        passing(net, archive, chance.choice((0.0, 0.01, 0.1)))
        chance.choice((grow, grow, grow, tidy, file.compact))()
    until(net, archive, lambda: bool(reader.happened(HistoryEnded)) or last(numbers(reader)) == end - 1)
    passing(net, archive, 1.0)
    assert (file.stats.expired > 0) == (file.config.retention.max_events is not None)
    assert file.stats.seals > 1
    if reader.happened(HistoryEnded):
        (ended,) = reader.happened(HistoryEnded)
        assert ended.fault is HistoryFault.RANGE_GONE
        assert since < ended.first_available
        assert reader.received == 0
        return Reading(0, refused=True)
    missing = {n for gap in reader.happened(HistoryGap) for n in range(gap.expected, gap.first_available)}
    got = numbers(reader)
    assert got == sorted(set(got))
    assert sorted([*missing, *got]) == list(range(since, end))
    assert reader.payloads() == [numbered(1, 300, first=n)[0] for n in got]
    return Reading(len(missing), refused=False)


def test_a_log_that_is_written_is_read_over_a_lossy_network(
    make: Callable[..., RedexFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbus.engine.channels.history_client.WANTED_BYTES", 8192)
    kept = [read_while_it_works(make(), seed) for seed in range(0, 20, 2)]
    assert set(kept) == {(0, False)}
    retained = [read_while_it_works(make(max_events=100), seed) for seed in range(1, 20, 2)]
    assert any(reading.refused for reading in retained)
    assert any(reading.missing for reading in retained)


def last(found: list[int]) -> int | None:
    return found[-1] if found else None
