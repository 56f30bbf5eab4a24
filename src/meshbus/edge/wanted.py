"""Prefixes that a subscriber wants, each with a count, and a filter of messages by these prefixes.

A prefix that was subscribed twice must be unsubscribed twice, as in libzmq (pubsub.md §2.2), so that two parts of a
program can subscribe to the same prefix independently. The counterpart is the publisher's hub, which holds each prefix
of a peer once.
"""

from __future__ import annotations

from collections import Counter

from meshbus.policy.prefixes import SubscriptionIndex

FEW = 8
"""Up to this many prefixes a linear scan with `startswith` is faster than a search of the index."""

_SELF = 1
"""Key of the only peer in the index: this subscriber."""


class Interests:
    """Subscribed prefixes and how often each was subscribed."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._index = SubscriptionIndex()
        self._few: tuple[bytes, ...] = ()

    def add(self, prefix: bytes) -> None:
        """Subscribe to a prefix, once more if it is subscribed already."""
        self._counts[prefix] += 1
        self._index.subscribe(_SELF, prefix)
        self._few = tuple(self._counts) if len(self._counts) <= FEW else ()

    def remove(self, prefix: bytes) -> bool:
        """Unsubscribe from a prefix once; return whether its count reached zero. An unknown prefix is ignored."""
        if prefix not in self._counts:
            return False
        self._counts[prefix] -= 1
        if self._counts[prefix]:
            return False
        del self._counts[prefix]
        self._index.unsubscribe(_SELF, prefix)
        self._few = tuple(self._counts) if len(self._counts) <= FEW else ()
        return True

    def prefixes(self) -> list[bytes]:
        """List each prefix once, in byte order."""
        return sorted(self._counts)

    def select(self, messages: list[tuple[bytes, ...]]) -> list[tuple[bytes, ...]]:  # hot: bench_edge
        """Return the messages whose topic matches a prefix; others were in flight when their prefix was cancelled."""
        if b"" in self._counts:  # the empty prefix matches every topic
            return messages
        if len(self._counts) <= FEW:
            few = self._few
            # `startswith` with a tuple tests all prefixes in one call.
            return [message for message in messages if message[0].startswith(few)]
        match = self._index.match
        return [message for message in messages if match(message[0])]
