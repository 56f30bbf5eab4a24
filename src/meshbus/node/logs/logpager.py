"""Reads a log page by page, as the engine needs it for a peer: columns of payloads and times, no object per event.

Sealed events are stored in row groups of many pages, so the row group that was decoded last is kept until all of it was
read. A page is a copy: it does not change while the log is sealed, compacted or expired. Who may read is decided in the
engine, and when to read in node/logs/pageserver.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.engine.channels.history_server import Page
from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import from_binary, has_arrow
from meshbus.log.log import RedexFile
from meshbus.log.tail import Tail
from meshbus.wire.frames import columns_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]

_COLUMNS = ("payload", "ts_ns")
_TRIES = 8
"""How often the start of a page may expire while it is read. Retention seldom overtakes one read; if it overtakes so many
in a row, the log is of no use to a reader."""


class Pager:
    """Reads the log of one channel; safe to use from several threads."""

    def __init__(self, log: RedexFile) -> None:
        self._log = log
        self._kept: tuple[int, Any] | None = None
        """The row group that was decoded last, with its first sequence number."""

    def read(self, start: int, stop: int, max_bytes: int) -> Page:
        """Read from a sequence number on, or from the first event that is left, up to `stop` (excluded).

        Return payloads of about `max_bytes`, and at least one event if there is one. Raises LogError if the log cannot
        be read.
        """
        for _ in range(_TRIES):
            first = self._log.first_seq
            begin = max(start, first)
            if begin >= stop:
                return Page(begin, *columns_of([]), np.empty(0, np.int64), first, stop)
            try:
                return Page(begin, *self._columns(begin, stop, max_bytes), first, stop)
            except LogError as error:
                if error.fault is not LogFault.RANGE_GONE:
                    raise
        raise LogError(LogFault.RANGE_GONE, f"the log of {self._log.channel!r} expires faster than it can be read")

    # A node gives every event that it publishes a time; one that another program appended without has 0 on the wire.
    def _columns(self, begin: int, stop: int, max_bytes: int) -> Columns:
        if not has_arrow():  # without pyarrow nothing was ever sealed
            events = Tail(self._log, begin).take(stop - begin, max_bytes)
            times = np.fromiter((event.ts_ns or 0 for event in events), np.int64, len(events))
            return *columns_of([event.payload for event in events]), times
        kept = self._kept
        if kept is None or not kept[0] <= begin < kept[0] + len(kept[1]):
            kept = begin, next(self._log.read_batches(begin, None, _COLUMNS))
        first, batch = kept
        rows = batch.slice(begin - first, stop - begin)
        offsets, data = from_binary(rows.column("payload"))
        edges = np.asarray(offsets)
        count = max(int(np.searchsorted(edges, edges[0] + max_bytes)), 1)
        edges = edges[: min(count, len(rows)) + 1]
        used_up = begin + len(edges) - 1 >= first + len(batch)
        self._kept = None if used_up else kept
        payloads = np.frombuffer(data, np.uint8)[edges[0] : edges[-1]].copy()
        return edges - edges[0], payloads, rows.column("ts_ns").fill_null(0).to_numpy()[: len(edges) - 1].copy()
