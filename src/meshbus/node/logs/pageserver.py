"""Serves pages of this node's logs to the peers that read its history.

The engine decides who may read and asks for one page at a time (engine/channels/history_server.py); here pages are read
from disk, in threads and a few at a time. The logs belong to the node (node/logs/logs.py). The other side, subscriptions
that start in another node's log, is node/channels/historyreader.py.
"""

from __future__ import annotations

import asyncio
import logging

from meshbus.engine.base.notices import HistoryWanted
from meshbus.engine.channels.history_server import Page
from meshbus.errors import LogError
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.logs.logs import Logs
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.seldom import SeldomWarning
from meshbus.wire.messages.history import ErrorCode

MAX_READS = 8
"""Pages read from disk at once: enough to keep a disk busy, few enough to leave threads for syncs."""
MAX_WAITING = 1024
"""Pages that may wait to be read: two for each reader that the engine admits, as readers may reconnect."""

_logger = logging.getLogger("meshbus.node")


BOUNDS = (
    Bound(
        name="page_reads",
        what="pages that wait to be read for peers",
        by=By.PEER,
        per_node=MAX_WAITING,
        full="the reader is refused as busy",
        counter=Reason.REFUSE_HISTORY_BUSY,
    ),
)


class PageServer:
    """Reads pages of a node's logs for its peers."""

    def __init__(self, live: Live, logs: Logs | None) -> None:
        """Set up; a node without logs refuses every page."""
        self._live = live
        self._logs = logs
        self._turns = asyncio.Semaphore(MAX_READS)
        self._tasks = TaskOwner("reading a page for a peer", _logger)
        self._warn = SeldomWarning(_logger)

    def take(self, wanted: HistoryWanted) -> None:
        """Start to read a page; refuse it if too many are waiting."""
        if len(self._tasks) >= MAX_WAITING:
            self._answer(wanted, ErrorCode.BUSY)
        else:
            self._tasks.start(self._serve(wanted))

    def cancel(self) -> None:
        """Stop reading: the node is closing."""
        self._tasks.cancel()

    async def _serve(self, wanted: HistoryWanted) -> None:
        async with self._turns:
            try:
                page = await asyncio.to_thread(self._read, wanted)
            except LogError as error:
                self._warn("cannot read a page of %s: %s", wanted.channel, error)
                self._answer(wanted, ErrorCode.CLOSED)  # the reader asks again: the disk may recover
                return
        self._answer(wanted, ErrorCode.UNKNOWN_CHANNEL if page is None else page)

    def _read(self, wanted: HistoryWanted) -> Page | None:
        return None if self._logs is None else self._logs.page(wanted.channel, wanted.next_seq, wanted.max_bytes)

    def _answer(self, wanted: HistoryWanted, answer: Page | ErrorCode) -> None:
        history, reader, request = self._live.engine.history, wanted.node_id, wanted.request
        if isinstance(answer, Page):
            self._live.act(lambda _, now, out: history.page(reader, request, answer, now, out))
        else:
            self._live.act(lambda _, now, out: history.refuse(reader, request, answer, now, out))
