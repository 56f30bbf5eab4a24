"""The local subscriptions of a node, and which of them get an event.

A topic is the name of one channel, or a prefix: empty, or ending in `/`. Prefixes are matched by the sorted table that
is used everywhere else too (policy/prefixes.py). A subscription that names a publisher gets events of that publisher
only, also when another subscription has joined the channel at others. The subscriptions of a channel are looked up once
and remembered until a subscription is added or removed. Publishers are asked for events in node/channels/joining.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import count

import msgspec

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.renaming import move_pairs
from meshbus.names.channel import ChannelName
from meshbus.node.channels.subscription import Subscription
from meshbus.policy.bound import Bound, By
from meshbus.policy.prefixes import SubscriptionIndex

MAX_REMEMBERED = 65_536
"""Channels whose subscriptions are remembered. The mesh has far fewer channels in use at once; when there are more, all
are looked up again."""


BOUNDS = (
    Bound(
        name="matched_channels",
        what="channels with their subscriptions",
        by=By.PUBLISHER,
        per_node=MAX_REMEMBERED,
        full="all are looked up again",
        counter="none: only a cache",
    ),
)


class SubscriptionSpec(msgspec.Struct, frozen=True):
    """What a subscription asks of publishers."""

    topic: str
    publisher: int | None = None
    """None asks every peer."""
    queue_group: str = ""
    token: bytes | None = None
    """None presents the tokens that the node holds."""

    def __post_init__(self) -> None:
        if not self.is_prefix:
            ChannelName(self.topic)
        elif self.topic:
            ChannelName(self.topic[:-1])

    @property
    def is_prefix(self) -> bool:
        """Whether it is for every channel whose name starts with the topic."""
        return not self.topic or self.topic.endswith("/")

    def covers(self, channel: str) -> bool:
        """Return whether it is for this channel."""
        return channel.startswith(self.topic) if self.is_prefix else channel == self.topic

    def asks(self, node_id: int) -> bool:
        """Return whether it asks this publisher."""
        return self.publisher is None or self.publisher == node_id


class Subscribers:
    """The local subscriptions of a node."""

    def __init__(self) -> None:
        self._specs: dict[Subscription, SubscriptionSpec] = {}
        self._inboxes: list[Subscription] = []
        self._numbers = count(1)
        self._by_number: dict[int, Subscription] = {}
        """Prefix subscriptions, by the number under which the prefix table knows them."""
        self._prefixes = SubscriptionIndex()
        self._by_channel: dict[str, list[Subscription]] = {}
        self._holding: dict[tuple[int, int], set[Subscription]] = {}
        """The subscriptions that hold each stream, by publisher and stream."""
        self._remembered: dict[Hashable, list[Subscription]] = {}
        """By channel; by channel and publisher while a subscription names a publisher."""
        self._by_publisher = False
        """Whether a subscription names a publisher."""

    def add(self, spec: SubscriptionSpec, subscription: Subscription) -> None:
        """Add a subscription."""
        self._specs[subscription] = spec
        self._changed()
        if spec.is_prefix:
            number = next(self._numbers)
            self._by_number[number] = subscription
            self._prefixes.subscribe(number, spec.topic)
        else:
            self._by_channel.setdefault(spec.topic, []).append(subscription)

    def add_inbox(self, subscription: Subscription) -> None:
        """Add a subscription to events without a channel."""
        self._inboxes.append(subscription)

    def remove(self, subscription: Subscription) -> SubscriptionSpec | None:
        """Remove a subscription, and return its spec; None if there is no such subscription."""
        if subscription in self._inboxes:
            self._inboxes.remove(subscription)
        spec = self._specs.pop(subscription, None)
        if spec is None:
            return None
        self._changed()
        if spec.is_prefix:
            number = next(number for number, one in self._by_number.items() if one is subscription)
            del self._by_number[number]
            self._prefixes.remove_peer(number)
        else:
            others = self._by_channel[spec.topic]
            others.remove(subscription)
            if not others:
                del self._by_channel[spec.topic]
        return spec

    def subscriptions(self) -> list[Subscription]:
        """Return all subscriptions."""
        return [*self._specs, *self._inboxes]

    def specs_for(self, node_id: int) -> Iterator[SubscriptionSpec]:
        """Iterate over what to ask a publisher for: one spec per topic, the oldest that asks this publisher."""
        # A publisher keeps one subscription per channel, so only one of them can be asked for.
        seen: set[str] = set()
        for spec in self._specs.values():
            if spec.topic not in seen and spec.asks(node_id):
                seen.add(spec.topic)
                yield spec

    def rename(self, old: int, new: int) -> None:
        """Ask a publisher that goes on under another id for what was asked of it before."""
        for subscription, spec in self._specs.items():
            subscription.rename(old, new)
            if spec.publisher == old:
                self._specs[subscription] = msgspec.structs.replace(spec, publisher=new)
        move_pairs(self._holding, old, new)
        self._changed()

    def hold(self, subscription: Subscription, batch: EventBatch) -> None:
        """Record that a subscription is full and holds the stream of a batch."""
        self._holding.setdefault((batch.publisher, batch.stream_id), set()).add(subscription)

    def release(self, subscription: Subscription) -> list[tuple[int, int]]:
        """Record that a subscription has room again; return the streams that no other subscription holds."""
        free = []
        for stream, holders in list(self._holding.items()):
            if subscription in holders:
                holders.remove(subscription)
                if not holders:
                    del self._holding[stream]
                    free.append(stream)
        return free

    def asking(self, topic: str, node_id: int) -> list[Subscription]:
        """Return the subscriptions to this topic that ask a publisher."""
        return [one for one, spec in self._specs.items() if spec.topic == topic and spec.asks(node_id)]

    def feed(self, batch: EventBatch) -> bool:  # hot: bench_stream
        """Pass a batch to every subscription that covers its channel; return whether there is one."""
        found = self.find(batch)
        for subscription in found:
            subscription.feed(batch)
        return bool(found)

    def find(self, batch: EventBatch) -> list[Subscription]:  # hot: bench_stream
        """Return the subscriptions that get a batch."""
        if batch.channel is None:
            return self._inboxes
        key = (batch.channel, batch.publisher) if self._by_publisher else batch.channel
        found = self._remembered.get(key)
        return self._look_up(key, batch.channel, batch.publisher) if found is None else found

    def _look_up(self, key: Hashable, channel: ChannelName, publisher: int) -> list[Subscription]:
        covering = [*self._by_channel.get(channel, ()), *(self._by_number[n] for n in self._prefixes.match(channel))]
        found = [one for one in covering if self._specs[one].asks(publisher)]
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = found
        return found

    def _changed(self) -> None:
        self._remembered.clear()
        self._by_publisher = any(spec.publisher is not None for spec in self._specs.values())
