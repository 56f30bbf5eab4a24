"""Which local subscriptions get an event: by the channel it came on, decided once per channel.

A topic is the name of one channel, or a prefix: empty, or ending in `/`. Prefixes are matched by the same sorted table
as everywhere else (policy/prefixes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec

from meshbus.engine.base.batch import EventBatch
from meshbus.names.channel import ChannelName
from meshbus.node.subscription import Subscription
from meshbus.policy.prefixes import SubscriptionIndex

MAX_REMEMBERED = 65_536
"""Channels whose subscriptions are remembered; then all are found anew."""


class Wish(msgspec.Struct, frozen=True):
    """What a subscription asks of publishers."""

    topic: str
    publisher: int | None = None
    """None asks every peer."""
    queue_group: str = ""
    token: bytes | None = None
    """None presents whatever the node holds."""

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
        """Say whether it is for this channel."""
        return channel.startswith(self.topic) if self.is_prefix else channel == self.topic


class Router:
    """The local subscriptions of a node."""

    def __init__(self) -> None:
        self._wishes: dict[Subscription, Wish] = {}
        self._inboxes: list[Subscription] = []
        self._numbers = count(1)
        self._by_number: dict[int, Subscription] = {}
        self._prefixes = SubscriptionIndex()
        self._by_channel: dict[str, list[Subscription]] = {}
        self._remembered: dict[ChannelName, list[Subscription]] = {}

    def add(self, wish: Wish, subscription: Subscription) -> None:
        """Add a subscription."""
        self._wishes[subscription] = wish
        self._remembered.clear()
        if wish.is_prefix:
            number = next(self._numbers)
            self._by_number[number] = subscription
            self._prefixes.subscribe(number, wish.topic)
        else:
            self._by_channel.setdefault(wish.topic, []).append(subscription)

    def add_inbox(self, subscription: Subscription) -> None:
        """Add a subscription to events without a channel."""
        self._inboxes.append(subscription)

    def remove(self, subscription: Subscription) -> Wish | None:
        """Remove a subscription; gives its wish when nobody here has the same topic any more."""
        if subscription in self._inboxes:
            self._inboxes.remove(subscription)
        wish = self._wishes.pop(subscription, None)
        if wish is None:
            return None
        self._remembered.clear()
        if wish.is_prefix:
            number = next(number for number, one in self._by_number.items() if one is subscription)
            del self._by_number[number]
            self._prefixes.remove_peer(number)
        else:
            others = self._by_channel[wish.topic]
            others.remove(subscription)
            if not others:
                del self._by_channel[wish.topic]
        return None if any(other.topic == wish.topic for other in self._wishes.values()) else wish

    def subscriptions(self) -> list[Subscription]:
        """Give all subscriptions."""
        return [*self._wishes, *self._inboxes]

    def wish_of(self, subscription: Subscription) -> Wish:
        """Give what a subscription asks of publishers."""
        return self._wishes[subscription]

    def wishes(self) -> Iterator[Wish]:
        """Give one wish per topic, the oldest."""
        seen: set[str] = set()
        for wish in self._wishes.values():
            if wish.topic not in seen:
                seen.add(wish.topic)
                yield wish

    def feed(self, batch: EventBatch) -> bool:  # hot: bench_stream
        """Give a batch to everyone it is for; says whether there was anybody."""
        taken = self.route(batch)
        for subscription in taken:
            subscription.feed(batch)
        return bool(taken)

    def route(self, batch: EventBatch) -> list[Subscription]:  # hot: bench_stream
        """Say who gets a batch."""
        if batch.channel is None:
            return self._inboxes
        found = self._remembered.get(batch.channel)
        return self._find(batch.channel) if found is None else found

    def _find(self, channel: ChannelName) -> list[Subscription]:
        found = [*self._by_channel.get(channel, ()), *(self._by_number[n] for n in self._prefixes.match(channel))]
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[channel] = found
        return found
