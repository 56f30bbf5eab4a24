"""Subscribe to the channels that ZeroMQ applications want, and pass the events to their endpoint.

A *demand* is one subscription of the node on behalf of applications: a channel or a prefix. A topic prefix of an
application becomes one or more demands (edge/topics.py); the first application opens a demand, the last one closes it.
Demands may overlap, such as `sensors/` and `sensors/lidar/`, and the node delivers an event to both. To pass it to the
hub once, each channel belongs to the oldest demand that covers it. When a demand ends, all queued events are passed on
before its channels get another owner. There is no wait between taking an event from the node and passing it to the hub,
which bounds the queue of each application. The other direction is edge/ingress.py.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

from meshbus.config.edge import covers, is_prefix
from meshbus.edge.ingress import Spawn
from meshbus.edge.pub import Pub
from meshbus.edge.refusals import Direction, Refusals
from meshbus.edge.topics import TopicMap
from meshbus.edge.zmtp.protocol import Interest
from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Acked, Matched, Negotiated, PeerPlain, SessionUp
from meshbus.errors import ChannelError, MeshError
from meshbus.node.channels.subscription import Subscription
from meshbus.node.node import Node
from meshbus.node.peers.noticelog import Notice
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.membership import AckReason

MAX_DEMANDS = 128
"""Demands of one bridge; a publisher accepts 256 prefixes from one node, and the node has others."""
RETRY_S = 30.0
"""Pause before subscribing again after every publisher refused; publishers rate limit nodes that ask more often."""


BOUNDS = (
    Bound(
        name="bridge_demands",
        what="subscriptions of a bridge at the mesh",
        by=By.OUTSIDER,
        per_node=MAX_DEMANDS,
        full="the new one is refused",
        counter=Reason.REFUSE_SUBSCRIBE_TOO_MANY_PREFIXES,
    ),
)


class _Demand:
    """A channel or prefix that the node subscribes to because applications want it."""

    __slots__ = ("entered", "holders", "number", "subscription", "topic", "wake")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.holders: set[bytes] = set()
        """Topic prefixes of applications that need it."""
        self.number = 0
        """Order of creation; the lowest number is the oldest demand."""
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
        self._demands: dict[str, _Demand] = {}
        self._numbers = count(1)

    @property
    def demands(self) -> list[str]:
        """Channels and prefixes that applications want now."""
        return sorted(topic for topic, demand in self._demands.items() if demand.holders)

    async def change(self, interest: Interest) -> None:
        """Handle the first subscription to a topic prefix, or the end of the last one."""
        if interest.subscribe:
            self._want(interest.prefix)
        else:
            for demand in list(self._demands.values()):
                demand.holders.discard(interest.prefix)
                if not demand.holders:
                    await self._end(demand)

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
            case PeerPlain(node_id=node_id):
                for demand in list(self._demands.values()):
                    self._report_plain(demand, node_id)
            case SessionUp() | Negotiated():
                for demand in self._demands.values():
                    demand.wake.set()
            case _:
                pass

    def _want(self, prefix: bytes) -> None:
        topics = self._topics.demands(prefix)
        if not topics:
            problem = "no channel in channels_out matches this topic; add it there"
            self._refusals.add(prefix, Reason.REFUSE_SUBSCRIBE_NOT_EXPOSED, problem)
        for topic in topics:
            demand = self._demands.get(topic)
            if demand is None and len(self._demands) >= MAX_DEMANDS:
                problem = (
                    f"the bridge already has {MAX_DEMANDS} subscriptions, the maximum; use fewer, shorter prefixes"
                )
                self._refusals.add(prefix, Reason.REFUSE_SUBSCRIBE_TOO_MANY_PREFIXES, problem)
                continue
            if demand is None:
                demand = self._demands[topic] = _Demand(topic)
                self._spawn(self._serve(demand))
            demand.holders.add(prefix)

    async def _serve(self, demand: _Demand) -> None:
        """Stay subscribed as long as applications want it."""
        try:
            while demand.holders:
                demand.wake.clear()
                try:
                    await self._follow(demand)
                except MeshError as error:
                    self._report_failure(demand, error)
                    await self._pause(demand)
        finally:
            del self._demands[demand.topic]

    async def _follow(self, demand: _Demand) -> None:
        """Subscribe, and forward events until the subscription is closed."""
        subscription = self._node.subscribe(demand.topic)
        demand.subscription, demand.number = subscription, next(self._numbers)
        # Start before every publisher has answered: events may arrive meanwhile, and they belong to this demand.
        pumping = self._spawn(self._pump(demand, subscription))
        try:
            async with subscription:
                demand.entered = True
                for refusal in subscription.refused:
                    if refusal.reason == Reason.REFUSE_SUBSCRIBE_NO_PREFIXES.why:
                        self._report_plain(demand, refusal.node_id)
                if demand.holders:
                    await asyncio.shield(pumping)
        finally:
            demand.entered = False
            await self._hand_over(demand)
            await subscription.close()

    async def _pause(self, demand: _Demand) -> None:
        """Wait before the next attempt: until a peer connects, nobody wants it any more, or RETRY_S have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await demand.wake.wait()

    async def _end(self, demand: _Demand) -> None:
        """End a demand that no application needs any more."""
        demand.wake.set()
        subscription = demand.subscription
        if subscription is not None and demand.entered:  # otherwise `_follow` checks the holders when it has subscribed
            demand.entered = False
            await self._hand_over(demand)
            await subscription.close()

    async def _hand_over(self, demand: _Demand) -> None:
        """Forward all queued events, then release the channels of a demand, with no await between that could block."""
        for other in list(self._demands.values()):
            while other.subscription is not None and other.subscription.stats.pending:
                batch = await other.subscription.next_batch()  # returns at once: events are pending
                assert batch is not None
                self._forward(other, batch)
        demand.subscription = None

    async def _pump(self, demand: _Demand, subscription: Subscription) -> None:
        async for batch in subscription.batches():
            self._forward(demand, batch)

    def _forward(self, demand: _Demand, batch: EventBatch) -> None:
        channel = batch.channel
        if channel is None or batch.subprotocol_id != Subprotocol.EVENTS or self._owner(channel) is not demand:
            return
        topic = self._topics.topic_of(channel)
        self._endpoint.publish_batch([(topic, payload) for payload in batch.payloads()])
        self._counters.add("deliver", "taken_from_mesh", len(batch))

    def _owner(self, channel: str) -> _Demand | None:
        live = (
            demand
            for demand in self._demands.values()
            if demand.subscription is not None and covers(demand.topic, channel)
        )
        return min(live, key=lambda demand: demand.number, default=None)

    def _report_failure(self, demand: _Demand, error: MeshError) -> None:
        reported = isinstance(error, ChannelError) and error.reason not in {"", AckReason.UNKNOWN_CHANNEL.name.lower()}
        if not reported:  # `on_notice` has reported every other refusal of a publisher
            self._refusals.add_error(Direction.SUBSCRIBE, self._topics.topic_of(demand.topic), error)

    def _report_plain(self, demand: _Demand, node_id: int) -> None:
        """Report that a prefix gets nothing from a plain publisher, unless single channels below it are listed too."""
        others = (other.topic for other in self._demands.values() if not is_prefix(other.topic))
        if not is_prefix(demand.topic) or any(covers(demand.topic, topic) for topic in others):
            return
        problem = (
            f"publisher {node_id:016x} is a plain net-mesh node without prefixes; add its channels to channels_out"
        )
        self._refusals.add(self._topics.topic_of(demand.topic), Reason.REFUSE_SUBSCRIBE_NO_PREFIXES, problem)

    def _refused(self, node_id: int, channel: str, reason: AckReason) -> None:
        if any(demand.holders and covers(demand.topic, channel) for demand in self._demands.values()):
            word = AckReason(reason).name.lower()
            topic, problem = self._topics.topic_of(channel), f"publisher {node_id:016x} refused the subscription"
            self._refusals.pass_on(Direction.SUBSCRIBE, topic, word, problem)
