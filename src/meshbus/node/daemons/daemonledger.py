"""Reading and writing a ledger (compute/ledger.py): a replicated channel with the checkpoints of daemons.

A node reads the whole ledger and remembers, for each daemon, whose it is and the last checkpoint that counted. What it writes
it reads back before it relies on it: the place in the log decides, not the answer to the write. A write whose outcome is not
known is made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from meshbus.compute.ledger import Entry, Kind, Ledger, decode_entry, encode_entry, split_checkpoint
from meshbus.errors import MalformedPacket, MeshError
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.daemons.daemoninput import InputReader
from meshbus.node.driving.tasks import TaskOwner

RETRY_S = 0.2
"""Pause before a write that failed is made again."""
AT_ONCE = 256
"""Entries of one append."""

_logger = logging.getLogger("meshbus.node")


class DaemonLedger:
    """One ledger, as one node reads and writes it."""

    def __init__(
        self,
        own: int,
        publisher: ChannelPublisher,
        read: Callable[[Callable[[], None]], InputReader],
        is_alive: Callable[[int], bool],
    ) -> None:
        """Begin to read; `read` opens the log from its first event, `is_alive` says whether a node can be reached."""
        self._own = own
        self._publisher = publisher
        self.is_alive = is_alive
        """Whether a node can be reached."""
        self._ledgers: dict[int, Ledger] = {}
        self._next = 0
        """Everything before this place was read."""
        self._news = asyncio.Event()
        self._grown = asyncio.Event()
        self._number = 0
        """Of the last checkpoint: it grows within a term, and each term belongs to one life of this node."""
        self._tasks = TaskOwner("a ledger of daemons", _logger)
        self._reader = read(self._grown.set)
        self._tasks.start(self._follow())

    async def close(self) -> None:
        """Stop reading."""
        await self._tasks.close()
        await self._reader.close()
        await self._publisher.close()

    def of(self, origin: int) -> Ledger:
        """Return what the ledger says about a daemon, as far as it was read."""
        return self._ledgers.setdefault(origin, Ledger(origin))

    def has(self, origin: int, term: int) -> bool:
        """Return whether the daemon may run on this node in a term, as far as was read."""
        return self.of(origin).holds(term, self._own)

    async def begin(self, origin: int, term: int) -> int | None:
        """Claim a daemon whose record on this node was written in a term, and return the new term.

        Returns None if the record is an old one: the daemon went on elsewhere. Nobody is asked: a record that is not old
        has everything that was published, and whoever ran the daemon has handed it over, or has died, or is this node.
        """
        await self._append([Entry(Kind.CLAIM, 0, 0, self._own)])  # for nobody: what is before it was read then
        ledger = self.of(origin)
        while not ledger.supersedes(term):
            claim = ledger.claim(self._own)
            await self._append([claim])
            if self.has(origin, claim.term) and not ledger.supersedes(term):
                return claim.term
        return None

    async def take_over(self, origin: int) -> bool:
        """Claim a daemon whose node seems to be gone, and return whether the claim holds."""
        claim = self.of(origin).claim(self._own)
        await self._append([claim])
        return self.has(origin, claim.term)

    async def pass_on(self, origin: int, term: int, node: int) -> None:
        """Make another node the owner of a daemon that this node ran in a term and has handed over.

        It holds only if nobody has claimed the daemon since: the daemon may be anywhere by then, also here again.
        """
        await self._append([Entry(Kind.CLAIM, origin, term + 1, node)])

    async def write(self, origin: int, term: int, snapshot: bytes) -> bool:
        """Add a checkpoint; return False if the daemon belongs to another node now. Outputs may be published if True."""
        while self.has(origin, term):
            self._number += 1
            which = term, self._number
            await self._append(list(split_checkpoint(origin, term, self._own, self._number, snapshot)))
            if self.of(origin).counted == which:
                return True
        return False

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    async def _append(self, entries: Sequence[Entry]) -> None:
        """Append entries, and return when the log was read beyond them; they may be there more than once."""
        end = 0
        for start in range(0, len(entries), AT_ONCE):
            end = await self._append_some([encode_entry(entry) for entry in entries[start : start + AT_ONCE]])
        while self._next < end:
            await self._wait(RETRY_S)

    async def _append_some(self, payloads: list[bytes]) -> int:
        """Append until it is known to have worked, and return the place after it."""
        while True:
            try:
                report = await self._publisher.publish_batch(payloads)
            except MeshError as error:
                _logger.info("a ledger of daemons cannot be written: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            assert report.log_seq is not None
            return report.log_seq + len(payloads)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                self._news.clear()
                await self._news.wait()

    async def _follow(self) -> None:
        while True:
            self._grown.clear()
            for first, payloads in self._reader.ready():
                for payload in payloads:
                    # Others may publish on the channel; what is no entry is not for us.
                    with suppress(MalformedPacket):
                        entry = decode_entry(payload)
                        self.of(entry.origin).read(entry)
                self._next = first + len(payloads)
            self._reader.taken(self._next)
            self._news.set()
            await self._grown.wait()
