"""Reading and writing a ledger (compute/ledger.py): a replicated channel with the checkpoints of daemons.

A node reads the whole ledger and remembers, for each daemon, whose it is and the last checkpoint that counted. What it writes
it reads back before it relies on it: the place in the log decides, not the answer to the write. A write whose outcome is not
known is made again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from meshbus.compute.ledger import Entry, Kind, Ledger, decode_entry, encode_entry, split_checkpoint
from meshbus.errors import MalformedPacket, MeshError
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.daemons.daemoninput import InputReader
from meshbus.node.driving.tasks import TaskOwner
from meshbus.wire.messages.checkpoint import moves_in
from meshbus.wire.messages.snapshot import decode_snapshot

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
        takeover_s: float,
    ) -> None:
        """Begin to read; `read` opens the log from its first event, `is_alive` says whether a node can be reached."""
        self._own = own
        self._publisher = publisher
        self.is_alive = is_alive
        """Whether a node can be reached."""
        self._takeover_s = takeover_s
        self._ledgers: dict[int, Ledger] = {}
        self._next = 0
        """Everything before this place was read."""
        self._news = asyncio.Event()
        self._grown = asyncio.Event()
        self._number = time.time_ns()
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

    def owns(self, origin: int) -> bool:
        """Return whether the daemon may run on this node, as far as was read."""
        return self.of(origin).node == self._own

    async def begin(self, origin: int, moves: int) -> bool:
        """Become the owner of a daemon whose record is here, after so many moves; return False if it may not go on from it.

        A daemon that has just moved here is passed on by its source. If that does not happen, because the source has died,
        or if it belongs to nobody, this node claims it. A record that is not newer than the ledger is an old one: the daemon
        went on elsewhere, and whoever takes it over then begins from the ledger.
        """
        await self._append([Entry(Kind.CLAIM, 0, 0, self._own)])  # for nobody: what is before it was read then
        since = time.monotonic()
        while not self.owns(origin):
            other = self.of(origin).node
            waited = time.monotonic() - since >= self._takeover_s
            if other is None or (waited and not self.is_alive(other) and moves > self._moves_in(origin)):
                await self.claim(origin)
            elif waited:
                return False
            else:
                await self._wait(RETRY_S)
        return True

    async def claim(self, origin: int, node: int | None = None) -> bool:
        """Claim a daemon, for this node or for another, and return whether the claim holds."""
        term = self.of(origin).term + 1
        wanted = self._own if node is None else node
        await self._append([Entry(Kind.CLAIM, origin, term, wanted)])
        return (self.of(origin).term, self.of(origin).node) == (term, wanted)

    async def pass_on(self, origin: int, node: int) -> None:
        """Make another node the owner of a daemon that this node has handed over."""
        while self.owns(origin) and not await self.claim(origin, node):
            await self._wait(RETRY_S)

    async def write(self, origin: int, snapshot: bytes) -> bool:
        """Add a checkpoint; return False if the daemon belongs to another node now. Outputs may be published if True."""
        while self.owns(origin):
            self._number += 1
            which = self.of(origin).term, self._number
            await self._append(list(split_checkpoint(origin, which[0], self._own, self._number, snapshot)))
            if self.of(origin).counted == which:
                return True
        return False

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _moves_in(self, origin: int) -> int:
        """Return how often a daemon had moved at its last checkpoint that counted; -1 if there is none."""
        snapshot = self.of(origin).snapshot
        return -1 if snapshot is None else moves_in(decode_snapshot(snapshot).state)

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
