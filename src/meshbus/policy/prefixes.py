"""Subscription index by prefix: finds the peers that subscribed to a prefix of a topic.

There is one table of all prefixes in byte order, each with its peers as a sorted tuple (policy/sortedblocks.py), and for
each peer the list of its prefixes. A single topic is matched by one binary search and a cache (policy/fans.py), a batch
on a flat snapshot (policy/prefixmatch.py). Prefixes are bytes: separators have no meaning.

A subscription takes about thirty bytes, and its prefix once: below 100 bytes for prefixes of about 24 bytes. A change
takes a logarithmic number of comparisons, and `remove_peer` one change for each prefix of the peer. Many changes at once
(`change`) are cheaper: if they are many compared with the table, it is made anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
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
"""Below this number of topics, matching one by one is faster than a call of the kernels (bench_prefixes)."""

_SNAPSHOT_COST = 2
"""Matching one topic costs about as much as this many prefixes of a new snapshot (bench_prefixes)."""

_CHANGE_COST = 8
"""A change costs about as much as this many prefixes of a table that is made anew (bench_index)."""

_LIMIT = 1 << 64
"""Upper limit of peer ids, exclusive: they are stored as u64."""


class _Owner:
    """The prefixes of one peer."""

    __slots__ = ("alone", "prefixes")

    def __init__(self, peer: int) -> None:
        self.alone: Peers = (peer,)
        """The peers of every prefix that only this peer holds: one shared object, to save memory."""
        self.prefixes = SortedBlocks()


class SubscriptionIndex:
    """The subscriptions of peers to prefixes.

    A peer is any unsigned 64-bit number. Text is encoded as UTF-8. Subscribing twice to a prefix is the same as once.
    """

    def __init__(self) -> None:
        self._table = SortedBlocks(values=True)
        """All prefixes, with their peers as sorted tuples."""
        # policy/fans.py needs the empty prefix as the end of every climb.
        self._table.insert(0, 0, b"", ())
        self._fans = Fans(self._table)
        self.fan = self._fans.match
        """Like `match`, but for bytes only, and returns a tuple that may be kept: the same object while nothing changed."""
        self._owners: dict[int, _Owner] = {}
        self._compiled = jit.available()
        self._flat: FlatTable | None = None
        self._matched_since_change = 0

    def __len__(self) -> int:
        """Return the number of prefixes with peers."""
        return len(self._table) - (not self._peers_at(0, 0))

    def __contains__(self, prefix: bytes | str) -> bool:
        """Return whether a peer holds exactly this prefix."""
        block, place, found = self._table.find(_encode(prefix))
        return found and len(self._peers_at(block, place)) > 0

    @property
    def subscriptions(self) -> int:
        """Number of subscriptions: pairs of a peer and a prefix."""
        return self._fans.subscriptions

    def prefixes(self) -> list[bytes]:
        """Return the prefixes with peers, in byte order."""
        return list(self._table)[not self._peers_at(0, 0) :]

    def subscribe(self, peer: int, prefix: bytes | str) -> bool:
        """Subscribe a peer to a prefix; return False if it already was.

        Raises OverflowError if the peer is not an unsigned 64-bit number.
        """
        prefix = _encode(prefix)
        owner = self._owners.get(peer) or _new_owner(peer)
        block, place, found = self._table.find(prefix)
        if found:
            prefix = self._table.keys[block][place]  # the same object for all peers, to save memory
            peers = self._peers_at(block, place)
            joined = _with(peers, owner.alone)
            if joined is peers:
                return False
            self._table.values[block][place] = joined
            self._fans.change(prefix, joined)
        else:
            self._table.insert(block, place, prefix, owner.alone)
            self._fans.reshape(prefix)
        # Only now: a subscription that was there already must not create an owner.
        self._owners[peer] = owner
        block, place, _ = owner.prefixes.find(prefix)
        owner.prefixes.insert(block, place, prefix)
        self._changed(1)
        return True

    def unsubscribe(self, peer: int, prefix: bytes | str) -> bool:
        """Unsubscribe a peer from a prefix; return False if it was not subscribed."""
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

    def change(self, peer: int, wanted: Mapping[bytes, bool]) -> tuple[list[bytes], list[bytes]]:
        """Subscribe a peer to the prefixes with True, and unsubscribe it from those with False.

        Returns what was added and what was removed: a prefix that already was as wanted is in neither.
        """
        owner = self._owners.get(peer)
        held = _held_of(owner, wanted)
        added = [prefix for prefix, want in wanted.items() if want and prefix not in held]
        removed = [prefix for prefix, want in wanted.items() if not want and prefix in held]
        if _CHANGE_COST * (len(added) + len(removed)) > len(self._table):
            self._make_anew(owner or _new_owner(peer), added, removed)
        else:
            for prefix in removed:
                self.unsubscribe(peer, prefix)
            for prefix in added:
                self.subscribe(peer, prefix)
        return added, removed

    def remove_peer(self, peer: int) -> list[bytes]:
        """Unsubscribe a peer from all its prefixes, and return them in byte order. Costs only those."""
        owner = self._owners.pop(peer, None)
        owned = list(owner.prefixes) if owner is not None else []
        for prefix in owned:
            self._drop(peer, prefix)
        return owned

    def match(self, topic: bytes | str) -> list[int]:  # hot: bench_prefixes
        """Return the peers that hold a prefix of a topic, sorted, each once."""
        if isinstance(topic, str):
            topic = topic.encode()
        return [*self.fan(topic)]

    def match_batch(self, topics: Topics) -> Matches:  # hot: bench_prefixes
        """Return the peers of many topics, given as a list or as a column (offsets, data) in Arrow's binary layout.

        Raises LocalProtocolError if the offsets of a column decrease or are outside its data.
        """
        if self._use_snapshot(count_topics(topics)):
            return match_topics(self.snapshot(), *pack_topics(topics))
        return gather([self.fan(topic) for topic in list_topics(topics)])

    def snapshot(self) -> FlatTable:
        """Return the snapshot on which batches are matched; a new one after a change."""
        if self._flat is None:
            self._flat = flatten(list(self._table), list(chain.from_iterable(self._table.values)))
        return self._flat

    def _use_snapshot(self, topics: int) -> bool:
        """Return whether to match a batch on the snapshot.

        After a change, topics are matched one by one until that has cost about as much as a new snapshot. So changes and
        batches in any order cost at most twice as much as the best choice each time.
        """
        # Without numba, the kernels of the snapshot run as plain Python.
        if not self._compiled or topics < _SMALL_BATCH:
            return False
        self._matched_since_change += topics
        return self._flat is not None or _SNAPSHOT_COST * self._matched_since_change >= len(self._table)

    def _make_anew(self, owner: _Owner, added: list[bytes], removed: list[bytes]) -> None:
        """Make the table anew, with subscriptions that a peer did not hold, and without some that it held."""
        peer = owner.alone[0]
        table = dict(zip(self._table, chain.from_iterable(self._table.values), strict=True))
        for prefix in added:
            table[prefix] = _with(table.get(prefix, ()), owner.alone)
        for prefix in removed:
            table[prefix] = _without(table[prefix], peer)
            if prefix and not table[prefix]:  # the empty prefix stays (policy/fans.py)
                del table[prefix]
        keys = sorted(table)
        self._table.fill(keys, [table[key] for key in keys])
        self._fans.renew(keys)
        own = set(owner.prefixes).union(added).difference(removed)
        # Taken from the table: the same object for all peers, to save memory.
        owner.prefixes.fill([key for key in keys if key in own])
        if own:
            self._owners[peer] = owner
        else:
            self._owners.pop(peer, None)
        self._changed(len(added) - len(removed))

    def _drop(self, peer: int, prefix: bytes) -> None:
        """Remove a peer from a prefix that it holds, and the prefix from the table if it has no other peer."""
        block, place, _ = self._table.find(prefix)
        left = _without(self._peers_at(block, place), peer)
        # The empty prefix stays in the table without peers (policy/fans.py).
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
        raise OverflowError(f"peer must be an unsigned 64-bit number, got {peer}")
    return _Owner(peer)


def _held_of(owner: _Owner | None, wanted: Mapping[bytes, bool]) -> set[bytes]:
    """Return those of some prefixes that a peer holds, and maybe others."""
    if owner is None:
        return set()
    if len(owner.prefixes) <= _CHANGE_COST * len(wanted):
        return set(owner.prefixes)
    return {prefix for prefix in wanted if owner.prefixes.find(prefix)[2]}


def _with(peers: Peers, alone: Peers) -> Peers:
    """Return sorted peers with one added; the same object if it is among them."""
    if not peers:
        return alone
    place = bisect_left(peers, alone[0])
    if peers[place : place + 1] == alone:
        return peers
    return peers[:place] + alone + peers[place:]


def _without(peers: Peers, peer: int) -> Peers:
    """Return sorted peers without one that is among them."""
    place = bisect_left(peers, peer)
    return peers[:place] + peers[place + 1 :]


def _encode(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
