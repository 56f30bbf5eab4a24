"""From the mesh to ZeroMQ subscribers: what they want is subscribed to, for as long as one of them wants it.

A prefix of an application becomes one or more wishes (edge/topics.py), each a subscription of the node that the first
application opens and the last one closes. Wishes may overlap, `sensors/` and `sensors/lidar/`, and the node gives an
event to both. So that the hub gets it once, each channel belongs to the oldest wish that covers it, and when a wish
ends, everything that waits anywhere is handed on by the old rule before the new one holds. Nothing here waits between
taking an event from the node and giving it to the hub, which bounds what waits for each application. The other direction
is edge/ingress.py.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

from meshbus.config.edge import covers
from meshbus.edge.ingress import Spawn
from meshbus.edge.pub import Pub
from meshbus.edge.refusals import Direction, Refusals
from meshbus.edge.topics import TopicMap
from meshbus.edge.zmtp.protocol import Interest
from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Acked, Matched, Negotiated, SessionUp
from meshbus.errors import ChannelError, MeshError
from meshbus.node.node import Node
from meshbus.node.noticelog import Notice
from meshbus.node.subscription import Subscription
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.membership import AckReason

MAX_WISHES = 128
"""Subscriptions of the node for one bridge; a publisher takes 256 prefixes of one node."""
RETRY_S = 30.0
"""How long to wait before asking again after everybody refused; publishers slow down who asks more often."""


class _Wish:
    """What the node is subscribed to because applications want it."""

    __slots__ = ("entered", "holders", "number", "subscription", "topic", "wake")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.holders: set[bytes] = set()
        """The prefixes of applications that lead to it."""
        self.number = 0
        """Its age; the lowest is the oldest."""
        self.subscription: Subscription | None = None
        """While it gets events."""
        self.entered = False
        """Whether everybody who was asked has answered."""
        self.wake = asyncio.Event()
        """Ends the pause before the next attempt."""


class Egress:
    """Subscribes to what applications want, and hands it to the endpoint that they are connected to."""

    def __init__(
        self, node: Node, topics: TopicMap, counters: Counters, refusals: Refusals, spawn: Spawn, endpoint: Pub
    ) -> None:
        self._node = node
        self._topics = topics
        self._counters = counters
        self._refusals = refusals
        self._spawn = spawn
        self._endpoint = endpoint
        self._wishes: dict[str, _Wish] = {}
        self._numbers = count(1)

    @property
    def wishes(self) -> list[str]:
        """What the mesh is asked for."""
        return sorted(topic for topic, wish in self._wishes.items() if wish.holders)

    async def change(self, interest: Interest) -> None:
        """Follow what applications want: a prefix that nobody had wanted yet, or that nobody wants any more."""
        if interest.subscribe:
            self._want(interest.prefix)
        else:
            for wish in list(self._wishes.values()):
                wish.holders.discard(interest.prefix)
                if not wish.holders:
                    await self._end(wish)

    def hear(self, notice: Notice) -> None:
        """Take what happened to the node: publishers that refuse, and peers that come."""
        match notice:
            case Matched(node_id=node_id, refused=refused):
                for channel, reason in refused:
                    self._refused(node_id, channel, reason)
            case Acked(node_id=node_id, channel=channel, accepted=False, timed_out=False, reason=reason):
                # That a peer does not publish a channel is no news: others may. When nobody does, joining says so.
                if reason is not AckReason.UNKNOWN_CHANNEL:
                    self._refused(node_id, channel, reason)
            case SessionUp() | Negotiated():
                for wish in self._wishes.values():
                    wish.wake.set()
            case _:
                pass

    def _want(self, prefix: bytes) -> None:
        topics = self._topics.wishes(prefix)
        if not topics:
            problem = "no channel in channels_out has such a topic: add it there"
            self._refusals.add(prefix, Reason.REFUSE_SUBSCRIBE_NOT_EXPOSED, problem)
        for topic in topics:
            wish = self._wishes.get(topic)
            if wish is None and len(self._wishes) >= MAX_WISHES:
                problem = f"{MAX_WISHES} prefixes are asked for already: ask for fewer and shorter ones"
                self._refusals.add(prefix, Reason.REFUSE_SUBSCRIBE_TOO_MANY_PREFIXES, problem)
                continue
            if wish is None:
                wish = self._wishes[topic] = _Wish(topic)
                self._spawn(self._serve(wish))
            wish.holders.add(prefix)

    async def _serve(self, wish: _Wish) -> None:
        """Be subscribed for as long as applications want it."""
        try:
            while wish.holders:
                wish.wake.clear()
                try:
                    await self._follow(wish)
                except MeshError as error:
                    self._tell_failure(wish, error)
                    await self._pause(wish)
        finally:
            del self._wishes[wish.topic]

    async def _follow(self, wish: _Wish) -> None:
        """Subscribe, and hand on what comes until the subscription is closed."""
        subscription = self._node.subscribe(wish.topic)
        wish.subscription, wish.number = subscription, next(self._numbers)
        # Begun before everybody was asked: what comes meanwhile may be wanted, and belongs to this wish.
        pumping = self._spawn(self._pump(wish, subscription))
        try:
            async with subscription:
                wish.entered = True
                if wish.holders:
                    await asyncio.shield(pumping)
        finally:
            wish.entered = False
            await self._hand_over(wish)
            await subscription.close()

    async def _pause(self, wish: _Wish) -> None:
        """Wait before the next attempt: for a peer that comes, or the end of the demand, or a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await wish.wake.wait()

    async def _end(self, wish: _Wish) -> None:
        """Let go of a wish that nobody has any more."""
        wish.wake.set()
        subscription = wish.subscription
        if subscription is not None and wish.entered:  # one that is still entering looks for itself afterwards
            wish.entered = False
            await self._hand_over(wish)
            await subscription.close()

    async def _hand_over(self, wish: _Wish) -> None:
        """Give up the channels of a wish, in one step: nothing may arrive in between."""
        for other in list(self._wishes.values()):
            while other.subscription is not None and other.subscription.stats.pending:
                batch = await other.subscription.next_batch()  # at once: something waits
                assert batch is not None
                self._forward(other, batch)
        wish.subscription = None

    async def _pump(self, wish: _Wish, subscription: Subscription) -> None:
        async for batch in subscription.batches():
            self._forward(wish, batch)

    def _forward(self, wish: _Wish, batch: EventBatch) -> None:
        channel = batch.channel
        if channel is None or batch.subprotocol_id != Subprotocol.EVENTS or self._owner(channel) is not wish:
            return
        topic = self._topics.topic_of(channel)
        self._endpoint.publish_batch([(topic, payload) for payload in batch.payloads()])
        self._counters.add("deliver", "taken_from_mesh", len(batch))

    def _owner(self, channel: str) -> _Wish | None:
        live = (wish for wish in self._wishes.values() if wish.subscription is not None and covers(wish.topic, channel))
        return min(live, key=lambda wish: wish.number, default=None)

    def _tell_failure(self, wish: _Wish, error: MeshError) -> None:
        told = isinstance(error, ChannelError) and error.reason not in {"", AckReason.UNKNOWN_CHANNEL.name.lower()}
        if not told:  # every other refusal of a publisher was heard of as it came
            self._refusals.add_error(Direction.SUBSCRIBE, self._topics.topic_of(wish.topic), error)

    def _refused(self, node_id: int, channel: str, reason: AckReason) -> None:
        if any(wish.holders and covers(wish.topic, channel) for wish in self._wishes.values()):
            word = AckReason(reason).name.lower()
            topic, problem = self._topics.topic_of(channel), f"publisher {node_id:016x} does not let this node have it"
            self._refusals.pass_on(Direction.SUBSCRIBE, topic, word, problem)
