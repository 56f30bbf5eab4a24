"""A publisher with a log in memory: what a node keeps on disk, as far as the engine is concerned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from meshbus.engine.base.notices import HistoryWanted
from meshbus.engine.channels.history_server import Page
from meshbus.names.channel import ChannelName
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.frames import columns_of
from meshbus.wire.messages.history import ErrorCode
from tests.engine.fleet import CHANNEL


class Log(Protocol):
    """What can be read page by page."""

    @property
    def end(self) -> int: ...
    def append(self, events: Sequence[bytes]) -> None: ...
    def page(self, next_seq: int, max_bytes: int) -> Page: ...


class ListLog:
    """A log that is a list; expired events leave it from the front."""

    def __init__(self, events: Sequence[bytes] = ()) -> None:
        self.first = 0
        self._events = list(events)

    @property
    def end(self) -> int:
        return self.first + len(self._events)

    def append(self, events: Sequence[bytes]) -> None:
        self._events += events

    def expire(self, until: int) -> None:
        del self._events[: max(until - self.first, 0)]
        self.first = max(self.first, until)

    def page(self, next_seq: int, max_bytes: int) -> Page:
        start = max(next_seq, self.first)
        chosen: list[bytes] = []
        for event in self._events[start - self.first :]:
            chosen.append(event)
            if sum(map(len, chosen)) >= max_bytes:
                break
        times = np.arange(start, start + len(chosen), dtype=np.int64) * 10
        return Page(start, *columns_of(chosen), times, self.first, self.end)


class Archive:
    """Answers what an engine wants of its logs."""

    def __init__(self, node: FakeNode, log: Log, channel: str = CHANNEL) -> None:
        self.node = node
        self.log = log
        self.channel = ChannelName(channel)
        self.pages: list[HistoryWanted] = []
        self._seen = 0

    def append(self, events: Sequence[bytes]) -> None:
        """Append, and let those who follow have it."""
        self.log.append(events)
        with self.node.turn() as (engine, now, out):
            engine.history.grew(self.channel, self.log.end, now, out)

    def serve(self) -> None:
        """Deliver the pages that were asked for."""
        while self._seen < len(self.node.control):
            _, event = self.node.control[self._seen]
            self._seen += 1
            if not isinstance(event, HistoryWanted):
                continue
            self.pages.append(event)
            with self.node.turn() as (engine, now, out):
                who = event.node_id, event.request
                if event.channel == self.channel:
                    engine.history.page(*who, self.log.page(event.next_seq, event.max_bytes), now, out)
                else:
                    engine.history.refuse(*who, ErrorCode.UNKNOWN_CHANNEL, now, out)


def until(net: FakeNet, archive: Archive, condition: Callable[[], bool], timeout_s: float = 600.0) -> None:
    """Run the archive until a condition holds."""

    def served() -> bool:
        archive.serve()
        return condition()

    net.run_until(served, timeout_s)


def passing(net: FakeNet, archive: Archive, for_s: float) -> None:
    """Run the archive for some time."""
    end = net.clock.now + for_s
    while net.clock.now < end:
        archive.serve()
        net.run(until=min(net.clock.now + 0.01, end))
    archive.serve()


def read(reader: FakeNode, publisher: FakeNode, since: int = 0, channel: str = CHANNEL, **options: Any) -> int:
    """Begin to read; options as for Replays.open."""
    with reader.turn() as (engine, now, out):
        peer = engine.peers.require(publisher.node_id)
        return engine.replays.open(peer, ChannelName(channel), since, now, out, **options)


def numbers(reader: FakeNode) -> list[int]:
    """Return the publish numbers of all events that came."""
    return [number for batch in reader.events for number in range(batch.pub_seq, batch.pub_seq + len(batch))]  # type: ignore[operator,arg-type]
