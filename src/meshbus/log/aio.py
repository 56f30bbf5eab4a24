"""The asynchronous version of a log: the same operations for an event loop, none of which blocks it.

A write copies memory into the system's cache, which takes microseconds, so it happens in place: a thread would cost
more. Operations that may wait for a disk run in a thread: the sync that the policy requires (concurrent appends share
one), sealing, closing and reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Unpack

from meshbus.log.columns import Columns, Events
from meshbus.log.event import LogEvent
from meshbus.log.log import RedexFile
from meshbus.log.status import Finding
from meshbus.log.tail import MAX_EVENTS, Tail

_CHUNK = 4_096
"""Events that are read per call in a thread: enough to make the cost of the call negligible."""


class AsyncRedexFile:
    """One log for an event loop; wraps a `RedexFile`, which may be used at the same time."""

    def __init__(self, log: RedexFile) -> None:
        self.log = log

    async def append(self, payload: bytes | memoryview, **columns: Unpack[Columns]) -> int:
        """Append one event and return its sequence, once it is as durable as the policy requires."""
        seq = self.log.write(payload, **columns)
        await self._commit()
        return seq

    async def append_batch(self, events: Events, **columns: Unpack[Columns]) -> range:
        """Append events, all or none, and return their sequences, once they are as durable as the policy requires."""
        seqs = self.log.write_batch(events, **columns)
        await self._commit()
        return seqs

    async def read_range(self, start: int, stop: int) -> AsyncIterator[LogEvent]:
        """Yield the events of a range."""
        # In chunks: one call in a thread per event would be slow.
        tail = Tail(self.log, start)
        while tail.next_seq < stop:
            events = await asyncio.to_thread(tail.take, min(_CHUNK, stop - tail.next_seq))
            if not events:
                return
            for event in events:
                yield event

    async def read_batches(
        self, start: int | None = None, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> AsyncIterator[Any]:
        """Yield a range as `pyarrow.RecordBatch`es."""
        batches = self.log.read_batches(start, stop, columns)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    async def tail(self, since: int | None = None, *, max_events: int = MAX_EVENTS) -> AsyncIterator[LogEvent]:
        """Follow the log: stored events, then new ones, without gaps or duplicates, until it is closed."""
        tail = self.log.tail(since)
        loop, more = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not more.is_set():
                with suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(more.set)

        stop = self.log.listen(wake)
        try:
            while True:
                # Cleared before taking: an append between the two sets it again, so no wake-up is lost.
                more.clear()
                last = self.log.closed  # read before taking, so that the last events before `close` are not missed
                events = await asyncio.to_thread(tail.take, max_events)
                for event in events:
                    yield event
                if not events and last:
                    return
                if not events:
                    await more.wait()
        finally:
            stop()

    async def sync(self) -> None:
        """Wait until everything appended so far is on the disk."""
        await asyncio.to_thread(self.log.sync)

    async def seal(self) -> int:
        """Seal everything appended so far and return the number of events sealed."""
        return await asyncio.to_thread(self.log.seal)

    async def verify(self) -> list[Finding]:
        """Read everything, check it, and return the problems."""
        return await asyncio.to_thread(self.log.verify)

    async def close(self) -> None:
        """Sync, end the tails and release the lock."""
        await asyncio.to_thread(self.log.close)

    async def _commit(self) -> None:
        if self.log.owes_sync:
            await asyncio.to_thread(self.log.sync)
