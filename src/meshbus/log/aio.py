"""The asynchronous twin of a log: the same operations for an event loop, which none of them holds up.

What only copies memory into the system's cache is done in place, because a thread would cost more than it saves: a
write takes microseconds. What may wait for a disk goes to a thread: the sync that a policy asks for (several appends
that wait at the same time share one), sealing, closing, and reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Unpack

from meshbus.log.columns import Columns, Events
from meshbus.log.embedded.verify import Finding
from meshbus.log.event import LogEvent
from meshbus.log.log import RedexFile
from meshbus.log.tail import MAX_EVENTS, Tail

_CHUNK = 4_096
"""Events that are read in one visit to a thread."""


class AsyncRedexFile:
    """One log, for an event loop; wraps the blocking one, which can be used beside it."""

    def __init__(self, log: RedexFile) -> None:
        self.log = log

    async def append(self, payload: bytes | memoryview, **columns: Unpack[Columns]) -> int:
        """Append one event; the promise of the policy holds when this returns."""
        seq = self.log.write(payload, **columns)
        await self._commit()
        return seq

    async def append_batch(self, events: Events, **columns: Unpack[Columns]) -> range:
        """Append events in one piece; the promise of the policy holds when this returns."""
        seqs = self.log.write_batch(events, **columns)
        await self._commit()
        return seqs

    async def read_range(self, start: int, stop: int) -> AsyncIterator[LogEvent]:
        """Give the events of a range one by one."""
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
        """Give a range as `pyarrow.RecordBatch`es."""
        batches = self.log.read_batches(start, stop, columns)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    async def tail(self, since: int | None = None, *, max_events: int = MAX_EVENTS) -> AsyncIterator[LogEvent]:
        """Follow the log: history, then what is appended, without gap or duplicate; ends when it is closed."""
        tail = self.log.tail(since)
        loop, more = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            if not more.is_set():
                with suppress(RuntimeError):  # the loop is closed: nobody follows any more
                    loop.call_soon_threadsafe(more.set)

        stop = self.log.listen(told)
        try:
            while True:
                more.clear()
                last = self.log.closed  # asked before taking: what was appended until then is still given
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
        """Make Parquet of everything that is hot."""
        return await asyncio.to_thread(self.log.seal)

    async def verify(self) -> list[Finding]:
        """Check every file of the log."""
        return await asyncio.to_thread(self.log.verify)

    async def close(self) -> None:
        """Sync, end the tails and let the next writer in."""
        await asyncio.to_thread(self.log.close)

    async def _commit(self) -> None:
        if self.log.owes_sync:
            await asyncio.to_thread(self.log.sync)
