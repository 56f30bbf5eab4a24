"""The sorted-prefix subscription table: who asked for a prefix of a topic.

One list of prefixes in byte order. Let `e` be the greatest prefix that is not above a topic: every prefix of the topic
in the table is also a prefix of `e`, or `e` itself. So a match is one binary search and a climb from `e` along *parent*
links (the longest proper prefix in the table) to the first that fits; all further parents fit too, and the sorted
union of their peers, the *fan*, is remembered where it was asked for.

The empty prefix is always in the list, with or without peers, so that every climb ends. Links and fans are made when a
match needs them and forgotten when a change at a prefix above or at them makes them wrong: a contiguous block of the
list. Batches are matched by policy/prefixmatch.py on a flat snapshot. Matching is on bytes: there are no separators.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort

from meshbus import jit
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

_SMALL_BATCH = 10
"""Below this many topics one by one is faster than a call into the kernels (bench_prefixes)."""

_SNAPSHOT_COST = 2
"""One topic by itself costs about as much as this many prefixes in a new snapshot."""

_FANS_PER_SUBSCRIPTION = 8
_FREE_FANS = 65_536
"""How many peers all remembered fans may hold together: bounded by the subscriptions, and never below half a MiB."""

_UNLINKED = -1


class _Entry:
    """One prefix and its peers; the links are right while `depth` is not _UNLINKED."""

    __slots__ = ("depth", "fan", "jump", "parent", "peers", "prefix")

    def __init__(self, prefix: bytes, peers: array[int]) -> None:
        self.prefix = prefix
        self.peers = peers
        """Ascending."""
        self.parent = self
        """The longest proper prefix in the table."""
        self.depth = _UNLINKED
        """The number of proper prefixes in the table."""
        self.jump = self
        """An ancestor further up (skew-binary): the deepest nesting is climbed in a logarithm of steps."""
        self.fan: array[int] | None = None
        """The peers of this and of all parents, ascending, each once; possibly the very array of a parent."""


class SubscriptionIndex:
    """Remember which peer asked for which prefix, and find the peers of a topic.

    A peer is any 64-bit number. Text stands for its UTF-8 bytes. A peer either holds a prefix or does not: subscribing
    twice is once.
    """

    def __init__(self) -> None:
        self._root = _Entry(b"", array("Q"))
        self._root.depth = 0
        self._root.fan = self._root.peers
        self._prefixes = [b""]
        self._entries = [self._root]
        """The entry of each prefix, at the same place."""
        self._owned: dict[int, set[bytes]] = {}
        self._linked: set[_Entry] = set()
        self._subscriptions = 0
        self._remembered = 0
        self._compiled = jit.available()
        self._flat: FlatTable | None = None
        self._matched_since_change = 0

    def __len__(self) -> int:
        """Count the prefixes that somebody holds."""
        return len(self._prefixes) - (not self._root.peers)

    def __contains__(self, prefix: bytes | str) -> bool:
        """Say whether somebody holds exactly this prefix."""
        prefix = _encode(prefix)
        entry = self._entries[bisect_right(self._prefixes, prefix) - 1]
        return entry.prefix == prefix and len(entry.peers) > 0

    def prefixes(self) -> list[bytes]:
        """List the prefixes that somebody holds, in byte order."""
        return self._prefixes[not self._root.peers :]

    def subscribe(self, peer: int, prefix: bytes | str) -> bool:
        """Add a prefix to what a peer gets; False when it was there.

        Raises OverflowError for a peer that is no 64-bit number.
        """
        prefix = _encode(prefix)
        owned = self._owned.get(peer)
        if owned is not None and prefix in owned:
            return False
        place = bisect_left(self._prefixes, prefix)
        if self._prefixes[place : place + 1] == [prefix]:
            insort(self._entries[place].peers, peer)
            self._forget(place, links=False)
        else:
            entry = _Entry(prefix, array("Q", (peer,)))
            self._entries.insert(place, entry)
            self._prefixes.insert(place, prefix)
            self._forget(place, links=True)
        self._owned.setdefault(peer, set()).add(prefix)
        self._subscriptions += 1
        return True

    def unsubscribe(self, peer: int, prefix: bytes | str) -> bool:
        """Take a prefix from a peer; False when it did not have it."""
        prefix = _encode(prefix)
        owned = self._owned.get(peer)
        if owned is None or prefix not in owned:
            return False
        owned.remove(prefix)
        if not owned:
            del self._owned[peer]
        self._drop(peer, prefix)
        return True

    def remove_peer(self, peer: int) -> list[bytes]:
        """Take every prefix from a peer; gives those it had, in byte order. Costs only those."""
        owned = sorted(self._owned.pop(peer, ()))
        for prefix in owned:
            self._drop(peer, prefix)
        return owned

    def match(self, topic: bytes | str) -> list[int]:  # hot: bench_prefixes
        """Find the peers that hold a prefix of a topic, ascending, each once."""
        if isinstance(topic, str):
            topic = topic.encode()
        return self._match(topic).tolist()

    def fan(self, topic: bytes) -> tuple[int, ...]:
        """Find what `match` does, as a value that may be kept."""
        return tuple(self._match(topic))

    def match_batch(self, topics: Topics) -> Matches:  # hot: bench_prefixes
        """Find the peers of many topics: a list of them, or a column as (offsets, data) in Arrow's binary layout.

        Raises LocalProtocolError for a column whose offsets descend or lie outside its data.
        """
        if self._use_snapshot(count_topics(topics)):
            return match_topics(self.snapshot(), *pack_topics(topics))
        return gather([self._match(topic) for topic in list_topics(topics)])

    def snapshot(self) -> FlatTable:
        """Give the snapshot that batches are matched on, made anew after a change."""
        if self._flat is None:
            self._flat = flatten(self._prefixes, [entry.peers for entry in self._entries])
        return self._flat

    def _use_snapshot(self, topics: int) -> bool:
        """Decide whether a batch is matched on the snapshot.

        After a change, topics are matched one by one until they have cost about as much as a new snapshot would, so
        that changes and batches in any order cost at most twice what the better choice each time would have.
        """
        if not self._compiled or topics < _SMALL_BATCH:
            return False
        self._matched_since_change += topics
        return self._flat is not None or _SNAPSHOT_COST * self._matched_since_change >= len(self._prefixes)

    def _match(self, topic: bytes) -> array[int]:
        """Find the fan of the longest prefix of a topic."""
        entry = self._entries[bisect_right(self._prefixes, topic) - 1]
        if not topic.startswith(entry.prefix):
            entry = self._climb(entry, topic)
        return entry.fan if entry.fan is not None else self._spread(entry)

    def _climb(self, entry: _Entry, topic: bytes) -> _Entry:
        """Find the nearest ancestor that is a prefix of a topic, from an entry that is none."""
        if entry.depth == _UNLINKED:
            self._link(entry)
        while True:
            jump = entry.jump
            if not topic.startswith(jump.prefix):
                entry = jump
            elif entry.parent is jump or topic.startswith(entry.parent.prefix):
                return entry.parent
            else:
                entry = entry.parent

    def _spread(self, entry: _Entry) -> array[int]:
        """Make the fan of an entry, and remember it."""
        self._link(entry)
        found = set(entry.peers)
        above = entry.parent
        while above.fan is None:
            found.update(above.peers)
            above = above.parent
        found.update(above.fan)
        if len(found) == len(above.fan):
            entry.fan = above.fan
        elif len(found) == len(entry.peers):
            entry.fan = entry.peers
        else:
            self._make_room(len(found))
            entry.fan = array("Q", sorted(found))
        return entry.fan

    def _make_room(self, peers: int) -> None:
        """Forget all fans when they would together outgrow the subscriptions, as nested prefixes of many peers do."""
        self._remembered += peers
        if self._remembered > _FREE_FANS + _FANS_PER_SUBSCRIPTION * self._subscriptions:
            self._remembered = peers
            for entry in self._linked:
                entry.fan = None

    def _link(self, entry: _Entry) -> None:
        """Make the links of an entry and of its parents, from the top down: a linked entry has linked parents."""
        chain = []
        while entry.depth == _UNLINKED:
            chain.append(entry)
            entry.parent = self._enclosing(entry.prefix)
            entry = entry.parent
        for below in reversed(chain):
            parent, jump = below.parent, below.parent.jump
            below.depth = parent.depth + 1
            below.jump = jump.jump if parent.depth - jump.depth == jump.depth - jump.jump.depth else parent
        self._linked.update(chain)

    def _enclosing(self, prefix: bytes) -> _Entry:
        """Find the longest proper prefix of a prefix in the table."""
        length = len(prefix) - 1
        while True:
            found = self._entries[bisect_right(self._prefixes, prefix[:length]) - 1]
            if prefix.startswith(found.prefix):
                return found
            length = _shared_length(found.prefix, prefix)

    def _drop(self, peer: int, prefix: bytes) -> None:
        """Take a peer from an entry that has it, and the entry from the table when nobody is left."""
        place = bisect_left(self._prefixes, prefix)
        entry = self._entries[place]
        self._subscriptions -= 1
        if len(entry.peers) > 1 or entry is self._root:
            entry.peers.pop(bisect_left(entry.peers, peer))
            self._forget(place, links=False)
        else:
            self._forget(place, links=True)
            del self._entries[place], self._prefixes[place]

    def _forget(self, place: int, *, links: bool) -> None:
        """Forget the fans, and the links where asked, of every entry that starts with the prefix at a place."""
        self._flat = None
        self._matched_since_change = 0
        prefix = self._prefixes[place]
        end = _end_of_block(self._prefixes, prefix)
        # The empty prefix is never in `_linked`, so a block that holds it is never the smaller one: it keeps its fan,
        # which is the array of its own peers.
        if end - place <= len(self._linked):
            block = self._entries[place:end]
        else:
            block = [entry for entry in self._linked if entry.prefix.startswith(prefix)]
        for entry in block:
            entry.fan = None
            if links:
                entry.depth = _UNLINKED
        if links:
            self._linked.difference_update(block)


def _encode(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _shared_length(one: bytes, other: bytes) -> int:
    """Count the bytes that two strings start with alike."""
    length = min(len(one), len(other))
    differing = int.from_bytes(one[:length], "big") ^ int.from_bytes(other[:length], "big")
    return length - (differing.bit_length() + 7) // 8


def _end_of_block(prefixes: list[bytes], prefix: bytes) -> int:
    """Find the end of the block of sorted prefixes that start with one."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        return len(prefixes)
    return bisect_left(prefixes, stem[:-1] + bytes((stem[-1] + 1,)))
