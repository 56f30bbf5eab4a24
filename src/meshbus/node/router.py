"""Which local subscriptions get an event: by the channel it came on, decided once per channel."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from meshbus.engine.batch import EventBatch
from meshbus.names.channel import ChannelName
from meshbus.node.subscription import Subscription


class Wish(msgspec.Struct, frozen=True):
    """What a subscription asks of publishers."""

    channel: ChannelName
    publisher: int | None
    """None asks every peer."""
    queue_group: str
    token: bytes | None
    """None presents whatever the node holds."""


class Router:
    """The local subscriptions of a node."""

    def __init__(self) -> None:
        self._wishes: dict[Subscription, Wish] = {}
        self._by_channel: dict[ChannelName, list[Subscription]] = {}
        self._inboxes: list[Subscription] = []

    def add(
        self,
        channel: ChannelName,
        subscription: Subscription,
        *,
        publisher: int | None,
        queue_group: str,
        token: bytes | None,
    ) -> None:
        """Add a subscription to a channel."""
        self._wishes[subscription] = Wish(channel, publisher, queue_group, token)
        self._by_channel.setdefault(channel, []).append(subscription)

    def add_inbox(self, subscription: Subscription) -> None:
        """Add a subscription to events without a channel."""
        self._inboxes.append(subscription)

    def remove(self, subscription: Subscription) -> ChannelName | None:
        """Remove a subscription; gives its channel when it was the last one for it."""
        if subscription in self._inboxes:
            self._inboxes.remove(subscription)
        wish = self._wishes.pop(subscription, None)
        if wish is None:
            return None
        others = self._by_channel[wish.channel]
        others.remove(subscription)
        if others:
            return None
        del self._by_channel[wish.channel]
        return wish.channel

    def subscriptions(self) -> list[Subscription]:
        """Give all subscriptions."""
        return [*self._wishes, *self._inboxes]

    def wish_of(self, subscription: Subscription) -> Wish:
        """Give what a subscription asks of publishers."""
        return self._wishes[subscription]

    def wishes(self) -> Iterator[tuple[ChannelName, Wish]]:
        """Give one wish per channel, the oldest."""
        for channel, subscriptions in self._by_channel.items():
            yield channel, self._wishes[subscriptions[0]]

    def route(self, batch: EventBatch) -> list[Subscription]:  # hot: bench_stream
        """Say who gets a batch."""
        return self._inboxes if batch.channel is None else self._by_channel.get(batch.channel, [])
