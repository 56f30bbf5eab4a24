"""Subscriptions that start in the log of another node.

The protocol is engine/channels/history_client.py; here the outcome of a reading becomes events of a subscription, or an
error. The other side, which serves the pages, is node/logs/pageserver.py.

The log of a replicated channel is the same on all its holders, which announce it (engine/directory/chains.py). A reading
of one begins at the nearest, and continues at another if that one fails: it has a position and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.notices import (
    Control,
    HistoryEnded,
    HistoryFault,
    HistoryGap,
    Negotiated,
    PeerFailed,
    PeerGone,
)
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.engine.session.peer import Health
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
from meshbus.node.channels.subscribers import SubscriptionSpec
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.waiting import Kind
from meshbus.node.logs.logs import Logs
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.redex import chain_of, channel_id

FIRST = "first"
"""Instead of a publish number: the first event that is left in the log."""
Since: TypeAlias = int | str


class HistoryReader:
    """The subscriptions of this node that start in the log of a publisher."""

    def __init__(self, live: Live, logs: Logs | None = None) -> None:
        """Set up; `logs` are those of this node, which get what is read."""
        self._live = live
        self._logs = logs
        self.members: Callable[[ChannelName], Sequence[int]] = lambda _channel: ()
        """Returns the members of a channel that is configured as replicated; they announce their logs later."""
        self._subscriptions: dict[int, Subscription] = {}
        """By reading."""

    async def start(
        self, subscription: Subscription, spec: SubscriptionSpec, since: Since, tokens: list[bytes]
    ) -> None:
        """Start to read the publisher's log; return when the publisher has agreed.

        Raises LogError if the start is gone, ChannelError if the publisher refuses, PeerError if it cannot serve
        history, Timeout without an answer.
        """
        _check(spec, since)
        if self._logs is not None:
            await self._logs.expect_history(ChannelName(spec.topic))
        holders = self._holders(ChannelName(spec.topic)) if spec.publisher is None else []
        publisher = holders[0] if holders else _publisher_of(spec, self._live.engine)
        await self._agreed(publisher)
        for number, token in enumerate(tokens):
            fault = await self._open(subscription, spec, publisher, since, token)
            if fault is None:
                subscription.accept(publisher)
                return
            # Only a denial may turn out otherwise with another token.
            if fault.fault is not HistoryFault.DENIED or number + 1 == len(tokens):
                raise _error_of(fault)

    async def stop(self, subscription: Subscription) -> None:
        """Stop reading for a subscription."""
        readings = self._readings_of(subscription)

        def close(engine: Engine, now: float, out: Output) -> None:
            for reading in readings:
                del self._subscriptions[reading]
                engine.replays.close(reading, now, out)

        if readings:
            self._live.act(close)

    def hold(self, subscription: Subscription, batch: EventBatch | None) -> None:
        """Stop reading for a subscription for which a batch came while it was full, or resume."""
        for reading in self._readings_of(subscription):
            self._live.engine.replays.hold(reading, Driver.now(), held=batch is not None)
            if batch is None:
                self._live.tick()  # asks for the next page

    def subscriptions(self) -> list[Subscription]:
        """Return all subscriptions."""
        return list(self._subscriptions.values())

    def feed(self, batch: EventBatch) -> bool:
        """Pass a batch to the subscription that reads it; return whether there is one."""
        subscription = None if batch.reading is None else self._subscriptions.get(batch.reading)
        if subscription is not None:
            subscription.feed(batch)
        return subscription is not None

    def take(self, event: Control) -> None:
        """Handle a report about a reading, or about a peer at which one may read."""
        match event:
            case PeerFailed() | PeerGone() | Negotiated():
                self._move_stranded()
            case HistoryGap(reading=reading) if reading in self._subscriptions:
                self._subscriptions[reading].miss(event.first_available - event.expected)
            case HistoryEnded(reading=reading):
                subscription = self._subscriptions.pop(reading, None)
                if subscription is not None:
                    subscription.fail(_error_of(event))

    def _move_stranded(self) -> None:
        """Continue readings at another holder of their log, if the node at which they read is down."""
        engine = self._live.engine
        for reading in list(self._subscriptions):
            place = engine.replays.place_of(reading)
            if place is None or self._serves(place[0]):
                continue
            holders = self._holders(place[1])
            if holders:
                self._move(reading, holders[0])

    def _move(self, reading: int, node: int) -> None:
        def move(engine: Engine, now: float, out: Output) -> None:
            engine.replays.move(reading, engine.peers.require(node), now, out)

        self._live.act(move)

    def _holders(self, channel: ChannelName) -> list[int]:
        """Return the peers that hold the log of a replicated channel, the nearest first."""
        engine = self._live.engine
        holders = engine.chains.find_chain_holders(chain_of(channel_id(channel)), Driver.now())
        return [node for node in dict.fromkeys([*holders, *self.members(channel)]) if self._serves(node)]

    def _serves(self, node: int) -> bool:
        peer = self._live.engine.peers.get(node)
        return peer is not None and peer.health is not Health.FAILED and peer.uses(Subprotocol.HISTORY)

    async def _open(
        self, subscription: Subscription, spec: SubscriptionSpec, publisher: int, since: Since, token: bytes
    ) -> HistoryEnded | None:
        """Ask the publisher; return its refusal, or None."""

        def ask(engine: Engine, now: float, out: Output) -> int:
            reading = engine.replays.open(
                engine.peers.require(publisher),
                ChannelName(spec.topic),
                0 if since == FIRST else int(since),
                now,
                out,
                from_first=since == FIRST,
                token=token,
            )
            self._subscriptions[reading] = subscription  # events may come with the answer
            return reading

        report = self._live.begin(Kind.HISTORY, ask)
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = await report
        except TimeoutError:
            await self.stop(subscription)
            raise Timeout(f"publisher {publisher:016x} on {spec.topic!r}", self._timeout_s) from None
        except BaseException:
            await self.stop(subscription)
            raise
        return outcome if isinstance(outcome, HistoryEnded) else None

    async def _agreed(self, publisher: int) -> None:
        """Wait until a publisher has agreed on history. Raises PeerError if it does not."""
        if not await self._live.agreed(publisher, Subprotocol.HISTORY, self._timeout_s):
            problem = "it cannot serve history, as net-mesh 0.23 nodes cannot; subscribe without since"
            raise PeerError(PeerFault.UNREACHABLE, publisher, problem)

    def _readings_of(self, subscription: Subscription) -> list[int]:
        return [reading for reading, one in self._subscriptions.items() if one is subscription]

    @property
    def _timeout_s(self) -> float:
        return self._live.engine.settings.ack_timeout_s


def _check(spec: SubscriptionSpec, since: Since) -> None:
    if since != FIRST and (isinstance(since, bool) or not isinstance(since, int) or since < 0):
        raise LocalProtocolError(f"since must be a publish number from 0 on or {FIRST!r}, got {since!r}")
    if spec.is_prefix:
        raise LocalProtocolError(
            f"since needs one channel, and {spec.topic!r} is a prefix; name a channel, or leave since out"
        )
    if spec.queue_group:
        raise LocalProtocolError("since and queue_group cannot be combined: each reader of a log gets all of it")


def _publisher_of(spec: SubscriptionSpec, engine: Engine) -> int:
    if spec.publisher is not None:
        return engine.peers.require(spec.publisher).node_id
    peers = [peer.node_id for peer in engine.peers]
    if len(peers) != 1:
        raise LocalProtocolError(f"since needs one publisher, and there are {len(peers)} peers; choose with publisher")
    return peers[0]


def _error_of(ended: HistoryEnded) -> MeshError:
    """Return the error that the end of a reading is for the subscriber."""
    who, channel = f"publisher {ended.node_id:016x}", ended.channel
    match ended.fault:
        case HistoryFault.RANGE_GONE:
            first = ended.first_available
            problem = f"{who} no longer has that part of {str(channel)!r}; use since={first}, the first available"
            return LogError(LogFault.RANGE_GONE, problem, first_available=first)
        case HistoryFault.UNKNOWN_CHANNEL:
            return ChannelError(ChannelFault.UNKNOWN, channel, f"{who} does not log it; subscribe without since")
        case HistoryFault.DENIED:
            problem = f"{who} refused: unauthorized"
            return ChannelError(ChannelFault.REJECTED, channel, problem, reason="unauthorized")
        case fault:
            return ChannelError(ChannelFault.REJECTED, channel, f"{who} refused: {fault}", reason=str(fault))
