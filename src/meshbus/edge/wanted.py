"""What one subscriber wants: prefixes, counted, and whether a topic is among them.

A prefix that was asked for twice must be cancelled twice, as in libzmq: two parts of a program may want the same thing
without knowing of each other. The counterpart is the publisher's table, which holds each prefix of a peer once.
"""

from __future__ import annotations

from collections import Counter

from meshbus.policy.prefixes import SubscriptionIndex

FEW = 8
"""Up to this many prefixes one after the other is quicker than a search."""

_SELF = 1
"""The only peer of our own index."""


class Interests:
    """Prefixes and how often each was asked for."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._index = SubscriptionIndex()
        self._few: tuple[bytes, ...] = ()

    def add(self, prefix: bytes) -> None:
        """Ask for a prefix once more."""
        self._counts[prefix] += 1
        self._index.subscribe(_SELF, prefix)
        self._few = tuple(self._counts) if len(self._counts) <= FEW else ()

    def remove(self, prefix: bytes) -> bool:
        """Ask for a prefix once less; says whether nobody wants it any more. An unknown one changes nothing."""
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
        """Leave out what nobody wants, such as messages that were on the way when a prefix was cancelled."""
        if b"" in self._counts:
            return messages
        if len(self._counts) <= FEW:
            few = self._few
            return [message for message in messages if message[0].startswith(few)]
        match = self._index.match
        return [message for message in messages if match(message[0])]
