"""Which batches a replicated log has, so that a leader appends each record once, however often it is handed over.

Writer, batch and place are in the headers of every record of a batch, and so on all replicas (log/once.py has the names
and the rule). What was written since the start is remembered; for a writer that was not heard since, the log is searched
once, backward. It is the leader's own log that decides: it has everything that is committed, and what it appended itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.errors import LocalProtocolError
from meshbus.log.once import BATCH, PLACE, WRITER
from meshbus.node.replicas.replicadisk import ReplicaDisk
from meshbus.policy.bound import Bound, By
from meshbus.wire.column import ByteColumn
from meshbus.wire.record import unpack_record, with_headers
from meshbus.wire.recordcolumn import have_headers

MAX_WRITERS = 4096
"""Writers whose last batch is remembered; one that was forgotten costs a search of the log."""

BOUNDS = (
    Bound(
        name="replica_writers",
        what="writers of a replicated channel whose last batch is remembered",
        by=By.PEER,
        per_node=None,
        per={"channel": MAX_WRITERS},
        full="the one that wrote longest ago goes",
        cost="constant; a search of the log for a writer that was forgotten",
        counter="none: the log has what was forgotten",
    ),
)
_LOOK_BACK = 1_024
"""Records that are read at a time while searching backward."""
_READ_BYTES = 16 << 20


class _Key(NamedTuple):
    """A record of a batch; later ones compare as greater."""

    batch: int
    place: int


class Writers:
    """The last record of each writer in one replicated log."""

    def __init__(self, disk: ReplicaDisk) -> None:
        self._disk = disk
        self._last: BoundedMap[bytes, _Key | None] = BoundedMap(MAX_WRITERS)

    def stored(self, records: Sequence[bytes]) -> None:
        """Record what was written at the end of the log."""
        if isinstance(records, ByteColumn) and not have_headers(records):
            return
        for record in with_headers(records):
            if (found := _key_of(record)) is not None:
                self._last.put(*found)

    def forget(self) -> None:
        """Drop what is remembered: the end of the log was set aside."""
        self._last = BoundedMap(MAX_WRITERS)

    async def records_done(self, records: Sequence[bytes]) -> int:
        """Return how many of these records, which are of one batch and in order, the log has.

        Raises LocalProtocolError if they are not.
        """
        found = [key for record in records if (key := _key_of(record)) is not None]
        if len(found) < len(records) or len({writer for writer, _ in found}) > 1:
            raise LocalProtocolError("the records of a batch need the headers of one writer; use publish_once")
        if not found:
            return 0
        writer = found[0][0]
        if writer not in self._last:
            last = await asyncio.to_thread(self._search, writer)
            if writer not in self._last:  # what was written while the thread read is newer
                self._last.put(writer, last)
        last = self._last.get(writer)
        return 0 if last is None else sum(key <= last for _, key in found)

    def _search(self, writer: bytes) -> _Key | None:
        log = self._disk.log
        end, first = log.tail, log.first_retained
        while end > first:
            start = max(end - _LOOK_BACK, first)
            place, newest = start, None
            while place < end:
                events = log.read_events(place, end - place, _READ_BYTES)
                if not events:
                    break
                for event in events:
                    found = _key_in(event.headers or {})
                    if found is not None and found[0] == writer:
                        newest = found[1]
                place += len(events)
            if newest is not None:
                return newest
            end = start
        return None


def _key_of(record: bytes) -> tuple[bytes, _Key] | None:
    return _key_in(unpack_record(record).headers or {})


def _key_in(headers: Mapping[str, bytes]) -> tuple[bytes, _Key] | None:
    try:
        return headers[WRITER], _Key(int(headers[BATCH]), int(headers[PLACE]))
    except (KeyError, ValueError):
        return None
