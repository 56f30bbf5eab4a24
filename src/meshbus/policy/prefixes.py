"""The sorted-prefix subscription table: who asked for a prefix of a topic.

One table of prefixes in byte order, each with its peers as an ascending tuple (policy/sortedblocks.py), and per peer the
prefixes that it holds. What a topic is matched with is found by one search and remembered (policy/fans.py); batches are
matched on a flat snapshot (policy/prefixmatch.py). Matching is on bytes: there are no separators.

A subscription costs its prefix once and some thirty bytes: below 100 in all for prefixes of about 24 bytes. Changes
cost a logarithm of comparisons, `remove_peer` one for each prefix that the peer holds.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from typing import cast

from meshbus import jit
from meshbus.policy.fans import Fans, Peers
from meshbus.policy.prefixmatch import (
    FlatTable,
    Matches,
    Topics,
    count_topics,
    flatten,
    gather,
    list_topics,
    match_topics,
    pack_topics,
)
from meshbus.policy.sortedblocks import SortedBlocks

_SMALL_BATCH = 10
"""Below this many topics one by one is faster than a call into the kernels (bench_prefixes)."""

_SNAPSHOT_COST = 2
"""One topic by itself costs about as much as this many prefixes in a new snapshot."""

_LIMIT = 1 << 64
"""Peers are below this."""


class _Owner:
    """What one peer holds."""

    __slots__ = ("alone", "prefixes")

    def __init__(self, peer: int) -> None:
        self.alone: Peers = (peer,)
        """The peers of every prefix that it holds alone: one object for all of them."""
        self.prefixes = SortedBlocks()


class SubscriptionIndex:
    """Remember which peer asked for which prefix, and find the peers of a topic.

    A peer is any 64-bit number. Text stands for its UTF-8 bytes. A peer either holds a prefix or does not: subscribing
    twice is once.
    """

    def __init__(self) -> None:
        self._table = SortedBlocks(values=True)
        """Every prefix, and its peers as an ascending tuple."""
        self._table.insert(0, 0, b"", ())
        self._fans = Fans(self._table)
        self.fan = self._fans.match
        """Find what `match` does, for bytes, as a value that may be kept: the same object while nothing changed."""
        self._owners: dict[int, _Owner] = {}
        self._compiled = jit.available()
        self._flat: FlatTable | None = None
        self._matched_since_change = 0

    def __len__(self) -> int:
        """Count the prefixes that somebody holds."""
        return len(self._table) - (not self._peers_at(0, 0))

    def __contains__(self, prefix: bytes | str) -> bool:
        """Return whether somebody holds exactly this prefix."""
        block, place, found = self._table.find(_encode(prefix))
        return found and len(self._peers_at(block, place)) > 0

    @property
    def subscriptions(self) -> int:
        """Count the pairs of a peer and a prefix that it holds."""
        return self._fans.subscriptions

    def prefixes(self) -> list[bytes]:
        """List the prefixes that somebody holds, in byte order."""
        return list(self._table)[not self._peers_at(0, 0) :]

    def subscribe(self, peer: int, prefix: bytes | str) -> bool:
        """Add a prefix to what a peer gets; False when it was there.

        Raises OverflowError for a peer that is no 64-bit number.
        """
        prefix = _encode(prefix)
        owner = self._owners.get(peer) or _new_owner(peer)
        block, place, found = self._table.find(prefix)
        if found:
            prefix = self._table.keys[block][place]  # the one object that everybody keeps
            peers = self._peers_at(block, place)
            joined = _with(peers, owner.alone)
            if joined is peers:
                return False
            self._table.values[block][place] = joined
            self._fans.change(prefix, joined)
        else:
            self._table.insert(block, place, prefix, owner.alone)
            self._fans.reshape(prefix)
        self._owners[peer] = owner
        block, place, _ = owner.prefixes.find(prefix)
        owner.prefixes.insert(block, place, prefix)
        self._changed(1)
        return True

    def unsubscribe(self, peer: int, prefix: bytes | str) -> bool:
        """Take a prefix from a peer; False when it did not have it."""
        prefix = _encode(prefix)
        owner = self._owners.get(peer)
        if owner is None:
            return False
        block, place, found = owner.prefixes.find(prefix)
        if not found:
            return False
        owner.prefixes.delete(block, place)
        if not owner.prefixes:
            del self._owners[peer]
        self._drop(peer, prefix)
        return True

    def remove_peer(self, peer: int) -> list[bytes]:
        """Take every prefix from a peer, and return those it had, in byte order. Costs only those."""
        owner = self._owners.pop(peer, None)
        owned = list(owner.prefixes) if owner is not None else []
        for prefix in owned:
            self._drop(peer, prefix)
        return owned

    def match(self, topic: bytes | str) -> list[int]:  # hot: bench_prefixes
        """Find the peers that hold a prefix of a topic, ascending, each once."""
        if isinstance(topic, str):
            topic = topic.encode()
        return [*self.fan(topic)]

    def match_batch(self, topics: Topics) -> Matches:  # hot: bench_prefixes
        """Find the peers of many topics: a list of them, or a column as (offsets, data) in Arrow's binary layout.

        Raises LocalProtocolError for a column whose offsets descend or lie outside its data.
        """
        if self._use_snapshot(count_topics(topics)):
            return match_topics(self.snapshot(), *pack_topics(topics))
        return gather([self.fan(topic) for topic in list_topics(topics)])

    def snapshot(self) -> FlatTable:
        """Return the snapshot that batches are matched on, made anew after a change."""
        if self._flat is None:
            self._flat = flatten(list(self._table), list(chain.from_iterable(self._table.values)))
        return self._flat

    def _use_snapshot(self, topics: int) -> bool:
        """Decide whether a batch is matched on the snapshot.

        After a change, topics are matched one by one until they have cost about as much as a new snapshot would, so
        that changes and batches in any order cost at most twice what the better choice each time would have.
        """
        if not self._compiled or topics < _SMALL_BATCH:
            return False
        self._matched_since_change += topics
        return self._flat is not None or _SNAPSHOT_COST * self._matched_since_change >= len(self._table)

    def _drop(self, peer: int, prefix: bytes) -> None:
        """Take a peer from a prefix that it holds, and the prefix from the table when nobody is left."""
        block, place, _ = self._table.find(prefix)
        left = _without(self._peers_at(block, place), peer)
        if left or not prefix:
            self._table.values[block][place] = left
            self._fans.change(prefix, left)
        else:
            self._table.delete(block, place)
            self._fans.reshape(prefix)
        self._changed(-1)

    def _peers_at(self, block: int, place: int) -> Peers:
        return cast("Peers", self._table.values[block][place])

    def _changed(self, subscriptions: int) -> None:
        self._fans.subscriptions += subscriptions
        self._flat = None
        self._matched_since_change = 0


def _new_owner(peer: int) -> _Owner:
    if not 0 <= peer < _LIMIT:
        raise OverflowError(f"peer {peer} is no 64-bit number")
    return _Owner(peer)


def _with(peers: Peers, alone: Peers) -> Peers:
    """Add a peer to ascending ones; the same object when it is there."""
    place = bisect_left(peers, alone[0])
    if peers[place : place + 1] == alone:
        return peers
    return peers[:place] + alone + peers[place:]


def _without(peers: Peers, peer: int) -> Peers:
    """Take a peer from ascending ones that hold it."""
    place = bisect_left(peers, peer)
    return peers[:place] + peers[place + 1 :]


def _encode(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
