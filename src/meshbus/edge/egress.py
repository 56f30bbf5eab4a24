"""Subscribe to the channels that ZeroMQ applications want, and pass the events to their endpoint.

A *wish* is one subscription of the node on behalf of applications: a channel or a prefix. A topic prefix of an
application becomes one or more wishes (edge/topics.py); the first application opens a wish, the last one closes it.
Wishes may overlap, such as `sensors/` and `sensors/lidar/`, and the node delivers an event to both. To pass it to the
hub once, each channel belongs to the oldest wish that covers it. When a wish ends, all queued events are passed on under
the old ownership before it changes. There is no wait between taking an event from the node and passing it to the hub,
which bounds the queue of each application. The other direction is edge/ingress.py.
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
"""Wishes of one bridge; a publisher accepts 256 prefixes from one node, and the node has others."""
RETRY_S = 30.0
"""Pause before subscribing again after every publisher refused; publishers rate limit nodes that ask more often."""


class _Wish:
    """A channel or prefix that the node subscribes to because applications want it."""

    __slots__ = ("entered", "holders", "number", "subscription", "topic", "wake")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.holders: set[bytes] = set()
        """Topic prefixes of applications that need it."""
        self.number = 0
        """Order of creation; the lowest number is the oldest wish."""
        self.subscription: Subscription | None = None
        """Set while it receives events."""
        self.entered = False
        """Whether every publisher that was asked has answered."""
        self.wake = asyncio.Event()
        """Set to end the pause before the next attempt."""


class Egress:
    """Subscribes to what applications want, and publishes the events on their endpoint."""

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
        """Channels and prefixes that applications want now."""
        return sorted(topic for topic, wish in self._wishes.items() if wish.holders)

    async def change(self, interest: Interest) -> None:
        """Handle the first subscription to a topic prefix, or the end of the last one."""
        if interest.subscribe:
            self._want(interest.prefix)
        else:
            for wish in list(self._wishes.values()):
                wish.holders.discard(interest.prefix)
                if not wish.holders:
                    await self._end(wish)

    def on_notice(self, notice: Notice) -> None:
        """Handle a notice of the node: report refusals of publishers, and retry when a peer connects."""
        match notice:
            case Matched(node_id=node_id, refused=refused):
                for channel, reason in refused:
                    self._refused(node_id, channel, reason)
            case Acked(node_id=node_id, channel=channel, accepted=False, timed_out=False, reason=reason):
                # A peer that does not publish the channel is normal: another may. If none does, `_follow` raises.
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
            problem = "no channel in channels_out matches this topic; add it there"
            self._refusals.add(prefix, Reason.REFUSE_SUBSCRIBE_NOT_EXPOSED, problem)
        for topic in topics:
            wish = self._wishes.get(topic)
            if wish is None and len(self._wishes) >= MAX_WISHES:
                problem = f"the bridge already has {MAX_WISHES} subscriptions, the maximum; use fewer, shorter prefixes"
                self._refusals.add(prefix, Reason.REFUSE_SUBSCRIBE_TOO_MANY_PREFIXES, problem)
                continue
            if wish is None:
                wish = self._wishes[topic] = _Wish(topic)
                self._spawn(self._serve(wish))
            wish.holders.add(prefix)

    async def _serve(self, wish: _Wish) -> None:
        """Stay subscribed as long as applications want it."""
        try:
            while wish.holders:
                wish.wake.clear()
                try:
                    await self._follow(wish)
                except MeshError as error:
                    self._report_failure(wish, error)
                    await self._pause(wish)
        finally:
            del self._wishes[wish.topic]

    async def _follow(self, wish: _Wish) -> None:
        """Subscribe, and forward events until the subscription is closed."""
        subscription = self._node.subscribe(wish.topic)
        wish.subscription, wish.number = subscription, next(self._numbers)
        # Start before every publisher has answered: events may arrive meanwhile, and they belong to this wish.
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
        """Wait before the next attempt: until a peer connects, nobody wants it any more, or RETRY_S have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await wish.wake.wait()

    async def _end(self, wish: _Wish) -> None:
        """End a wish that no application needs any more."""
        wish.wake.set()
        subscription = wish.subscription
        if subscription is not None and wish.entered:  # otherwise `_follow` checks the holders when it has subscribed
            wish.entered = False
            await self._hand_over(wish)
            await subscription.close()

    async def _hand_over(self, wish: _Wish) -> None:
        """Forward all queued events, then release the channels of a wish, with no await between that could block."""
        for other in list(self._wishes.values()):
            while other.subscription is not None and other.subscription.stats.pending:
                batch = await other.subscription.next_batch()  # returns at once: events are pending
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

    def _report_failure(self, wish: _Wish, error: MeshError) -> None:
        reported = isinstance(error, ChannelError) and error.reason not in {"", AckReason.UNKNOWN_CHANNEL.name.lower()}
        if not reported:  # `on_notice` has reported every other refusal of a publisher
            self._refusals.add_error(Direction.SUBSCRIBE, self._topics.topic_of(wish.topic), error)

    def _refused(self, node_id: int, channel: str, reason: AckReason) -> None:
        if any(wish.holders and covers(wish.topic, channel) for wish in self._wishes.values()):
            word = AckReason(reason).name.lower()
            topic, problem = self._topics.topic_of(channel), f"publisher {node_id:016x} refused the subscription"
            self._refusals.pass_on(Direction.SUBSCRIBE, topic, word, problem)
