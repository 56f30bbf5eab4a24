"""How many peers each channel's events would go to, under given prefix subscriptions.

Uses the node's own prefix index (policy/prefixes.py), so that tables and replays match as a node does.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from meshbus.policy.prefixes import SubscriptionIndex


class PrefixSubscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A peer's subscription to all channels with a prefix."""

    peer: int
    """Node id of the subscriber."""
    prefix: str
    """Beginning of the channel names."""


def count_subscribers(channels: Iterable[str], subscriptions: Iterable[PrefixSubscription]) -> dict[str, int]:
    """Return the number of subscribed peers for each channel; a peer with several matching prefixes counts once."""
    index = SubscriptionIndex()
    for subscription in subscriptions:
        index.subscribe(subscription.peer, subscription.prefix.encode())
    return {channel: len(index.match(channel.encode())) for channel in channels}
