"""History at the node: pages of our logs for those who read them, and subscriptions that begin in the log of another.

The protocol is engine/channels/history_server.py and engine/channels/history_client.py; here pages are read, in threads and a few at a time, and the
outcomes of readings become events of a subscription, or errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from meshbus.config.node import NodeConfig
from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Control, HistoryEnded, HistoryFault, HistoryGap, HistoryWanted
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.history_server import Page
from meshbus.engine.core import Engine
from meshbus.errors import (
    ChannelError,
    ChannelFault,
    LocalProtocolError,
    LogError,
    LogFault,
    MeshError,
    PeerError,
    PeerFault,
    Timeout,
)
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.driver import Driver
from meshbus.node.logs import Logs
from meshbus.node.subscribers import Wish
from meshbus.node.subscription import Subscription
from meshbus.node.waiting import Waiting
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.history import ErrorCode

FIRST = "first"
"""In place of a sequence: the first that is left in the log."""
Since: TypeAlias = int | str
Running: TypeAlias = Callable[[], tuple[Engine, Driver] | None]

_logger = logging.getLogger("meshbus.node")

MAX_READS = 8
"""Pages that are read from disk at once."""
MAX_WAITING = 1024
"""Pages that may wait for their turn: twice as many as there are readers, for those that come and go."""


class LogServer:
    """Reads pages of our logs for peers."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.logs: Logs | None = None
        """None when this node keeps no logs."""
        self._turns = asyncio.Semaphore(MAX_READS)
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, wanted: HistoryWanted) -> None:
        """Begin to read a page; there is a bound to how many peers can make us read."""
        if len(self._tasks) >= MAX_WAITING:
            self._answer(wanted, ErrorCode.BUSY)
            return
        task = asyncio.get_running_loop().create_task(self._serve(wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def open(self, config: NodeConfig, identity: Identity, counters: Counters) -> None:
        """Open the logs that are configured, if any; raises LogError for the first that fails."""
        if config.log_dir is not None:
            self.logs = Logs(config, identity, counters)
            await asyncio.to_thread(self.logs.open_configured)

    async def drain(self) -> None:
        """Stop reading, and wait for what waits for the disk: the node is closing."""
        for task in self._tasks:
            task.cancel()
        if self.logs is not None:
            await self.logs.drain()

    async def close(self) -> None:
        """Close the logs; closing twice is fine."""
        logs, self.logs = self.logs, None
        if logs is not None:
            await asyncio.to_thread(logs.close)

    async def _serve(self, wanted: HistoryWanted) -> None:
        async with self._turns:
            try:
                page = await asyncio.to_thread(self._read, wanted)
            except LogError as error:
                _logger.warning("a page of %s could not be read: %s", wanted.channel, error)
                self._answer(wanted, ErrorCode.CLOSED)  # the reader asks again: a disk may recover
                return
        self._answer(wanted, ErrorCode.UNKNOWN_CHANNEL if page is None else page)

    def _answer(self, wanted: HistoryWanted, answer: Page | ErrorCode) -> None:
        running = self._running()
        if running is None:
            return
        engine, driver = running
        out, now = Output(), Driver.now()
        if isinstance(answer, Page):
            engine.history.page(wanted.node_id, wanted.request, answer, now, out)
        else:
            engine.history.refuse(wanted.node_id, wanted.request, answer, now, out)
        driver.apply(out)

    def _read(self, wanted: HistoryWanted) -> Page | None:
        log = None if self.logs is None else self.logs.of_published(wanted.channel, create=False)
        return None if log is None else log.page(wanted.next_seq, wanted.max_bytes)


class Replayer:
    """The subscriptions of this node that begin in the log of a publisher."""

    def __init__(self, running: Running, waiting: Waiting, timeout_s: float) -> None:
        self._running = running
        self._waiting = waiting
        self._timeout_s = timeout_s
        self._subscriptions: dict[int, Subscription] = {}
        """By reading."""

    async def start(self, subscription: Subscription, wish: Wish, since: Since, tokens: list[bytes]) -> None:
        """Have the publisher's log read; returns when the publisher agreed.

        Raises LogError when the start is gone, ChannelError when the publisher refuses, PeerError when it cannot serve
        history, Timeout without an answer.
        """
        _check(wish, since)
        engine, _ = self._live()
        publisher = _publisher_of(wish, engine)
        await self._agreed(engine, publisher)
        for number, token in enumerate(tokens):
            fault = await self._open(subscription, wish, publisher, since, token)
            if fault is None:
                return
            if fault.fault is not HistoryFault.DENIED or number + 1 == len(tokens):
                raise _error_of(fault)

    async def stop(self, subscription: Subscription) -> None:
        """Stop reading for a subscription."""
        running = self._running()
        for reading, one in list(self._subscriptions.items()):
            if one is subscription:
                del self._subscriptions[reading]
                if running is not None:
                    engine, driver = running
                    out = Output()
                    engine.replays.close(reading, Driver.now(), out)
                    driver.apply(out)

    def hold(self, subscription: Subscription, held: bool) -> None:
        """Stop taking events for a subscription that is full, or go on."""
        running = self._running()
        for reading, one in self._subscriptions.items():
            if one is subscription and running is not None:
                engine, driver = running
                engine.replays.hold(reading, Driver.now(), held=held)
                if not held:
                    driver.apply(engine.tick(Driver.now()))

    def subscriptions(self) -> list[Subscription]:
        """Give all subscriptions."""
        return list(self._subscriptions.values())

    def feed(self, batch: EventBatch) -> bool:
        """Give a batch to the subscription that reads it; says whether there is one."""
        subscription = None if batch.reading is None else self._subscriptions.get(batch.reading)
        if subscription is not None:
            subscription.feed(batch)
        return subscription is not None

    def take(self, event: Control) -> None:
        """Take what happened to a reading."""
        match event:
            case HistoryGap(reading=reading) if reading in self._subscriptions:
                self._subscriptions[reading].miss(event.first_available - event.expected)
            case HistoryEnded(reading=reading):
                subscription = self._subscriptions.pop(reading, None)
                if subscription is not None:
                    subscription.fail(_error_of(event))

    async def _open(
        self, subscription: Subscription, wish: Wish, publisher: int, since: Since, token: bytes
    ) -> HistoryEnded | None:
        """Ask the publisher; gives its refusal, if it is one."""
        engine, driver = self._live()
        out, now = Output(), Driver.now()
        reading = engine.replays.open(
            engine.peers.require(publisher),
            ChannelName(wish.topic),
            0 if since == FIRST else int(since),
            now,
            out,
            from_first=since == FIRST,
            token=token,
        )
        waiting = self._waiting.for_("history", reading)
        self._subscriptions[reading] = subscription  # events may come with the answer
        driver.apply(out)
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = await waiting
        except TimeoutError:
            await self.stop(subscription)
            raise Timeout(f"publisher {publisher:016x} on {wish.topic!r}", self._timeout_s) from None
        except BaseException:
            await self.stop(subscription)
            raise
        return outcome if isinstance(outcome, HistoryEnded) else None

    async def _agreed(self, engine: Engine, publisher: int) -> None:
        """Wait until a publisher that may speak the profile has agreed on it: it takes a moment after connecting."""
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                while not (peer := engine.peers.require(publisher)).uses(Subprotocol.HISTORY):
                    if engine.negotiator.is_plain(peer):
                        break
                    await self._waiting.for_("agreement", publisher)
        except TimeoutError:
            if not deadline.expired():
                raise
        if not engine.peers.require(publisher).uses(Subprotocol.HISTORY):
            problem = "it cannot serve history, as net-mesh 0.23 nodes cannot: subscribe without `since`"
            raise PeerError(PeerFault.UNREACHABLE, publisher, problem)

    def _live(self) -> tuple[Engine, Driver]:
        running = self._running()
        if running is None:
            raise LocalProtocolError("the node is not running: use it inside `async with Node.open(...) as node`")
        return running


def _check(wish: Wish, since: Since) -> None:
    if since != FIRST and (isinstance(since, bool) or not isinstance(since, int) or since < 0):
        raise LocalProtocolError(f"since = {since!r} is no publish number: give one from 0 on, or {FIRST!r}")
    if wish.is_prefix:
        raise LocalProtocolError(f"numbers belong to one channel: {wish.topic!r} is a prefix, so leave `since` out")
    if wish.queue_group:
        raise LocalProtocolError("a log is read by everyone for himself: leave out either `since` or `queue_group`")


def _publisher_of(wish: Wish, engine: Engine) -> int:
    peers = [peer.node_id for peer in engine.peers]
    if wish.publisher is not None:
        return engine.peers.require(wish.publisher).node_id
    if len(peers) != 1:
        problem = f"numbers belong to one publisher, and there are {len(peers)} peers: say which with `publisher`"
        raise LocalProtocolError(problem)
    return peers[0]


def _error_of(ended: HistoryEnded) -> MeshError:
    """Turn the end of a reading into the error that it is for the subscriber."""
    who, channel = f"publisher {ended.node_id:016x}", ended.channel
    match ended.fault:
        case HistoryFault.RANGE_GONE:
            first = ended.first_available
            problem = f"{who} no longer has that of {str(channel)!r}: the first available is {first}, use since={first}"
            return LogError(LogFault.RANGE_GONE, problem, first_available=first)
        case HistoryFault.UNKNOWN_CHANNEL:
            return ChannelError(ChannelFault.UNKNOWN, channel, f"{who} does not log it: subscribe without `since`")
        case HistoryFault.DENIED:
            problem = f"{who} refused: unauthorized"
            return ChannelError(ChannelFault.REJECTED, channel, problem, reason="unauthorized")
        case fault:
            return ChannelError(ChannelFault.REJECTED, channel, f"{who} refused: {fault}", reason=str(fault))
