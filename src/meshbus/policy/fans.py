"""Cache of subscription matches: the peers of each prefix that a topic has matched, with links between the prefixes.

Let `e` be the greatest prefix in the sorted table that is not greater than a topic. Every prefix of the topic in the
table is then a prefix of `e`, or `e` itself. So a match is one binary search, and a climb from `e` along *parent* links
(to the longest proper prefix in the table) up to the first prefix of the topic; all its parents are prefixes of the topic
too. The sorted union of their peers is the *fan* of that prefix.

The results are kept in one *note* for each prefix. A note is made when a topic first needs it, and the memory of all
notes is limited:

    link    the parent, and a jump to an ancestor further up (skew-binary), so that even the deepest nesting is climbed
            in logarithmic steps. Valid until a prefix above it is added or removed: such a change marks the notes below
            it, or all notes at once if those are many
    fan     valid while the peers of this prefix, and the fan of its parent, are the same objects from which it was made.
            Peers are immutable tuples, so a change is detected by comparing objects and need not be propagated: a
            subscription to the empty prefix touches one note, however large the table

A parent is always an *inner* prefix, one with which others start. The inner prefixes are kept in a set, so a parent is
found by one lookup for each length that occurs among them. The cost of a match with N prefixes, in comparisons and
lookups:

    nothing changed since the last match    log2 N + 2, and a climb of 4 log2 d for d nested prefixes
    after a change                          one more for each prefix of the topic
    for each new or marked note             log2 N + 2, and one for each inner length: at most 4 times the length of the
                                            topic, whatever subscribers do

A jump may lead to a prefix that was removed. It is still a prefix of its start, which is all that a climb needs. The
empty prefix is always in the table, with or without peers, so that every climb ends. The table belongs to
policy/prefixes.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from itertools import compress
from typing import TypeAlias

from meshbus.policy.sortedblocks import SortedBlocks

Peers: TypeAlias = tuple[int, ...]

_MARKED = 64
"""Prefixes below a change that are marked one by one; if there are more, all notes are marked at once."""

_LONG = 4
"""A prefix that is longer than a topic by this factor gets no note for it: finding its parent may take one lookup for
each of its bytes, and the subscriber chose how many it has."""

_MOST_NOTES = 65_536
_FEWEST_NOTES = 8_192
_SUBSCRIPTIONS_PER_NOTE = 20
"""Number of notes at which all are dropped: `_MOST_NOTES`, less one for each `_SUBSCRIPTIONS_PER_NOTE` subscriptions,
but not below `_FEWEST_NOTES`. A note takes about 230 bytes; so a table of a million subscriptions stays below 100 bytes
for each (bench_index)."""
_FREE_FANS = 65_536
_FANS_PER_SUBSCRIPTION = 8
"""Number of peers in fans at which all are dropped, not counting shared fans: 512 KiB, and 8 for each subscription."""

_UNLINKED = -1
"""Marks a note whose link or fan must be computed again; never a valid shape or version."""


class _InnerPrefixes:
    """The prefixes with which others in the table start; every parent except the empty prefix is one of them."""

    __slots__ = ("_counts", "_lengths", "_prefixes")

    def __init__(self) -> None:
        self._prefixes: set[bytes] = set()
        self._counts: Counter[int] = Counter()
        """Number of inner prefixes by length."""
        self._lengths: list[int] = []
        """The lengths that occur, sorted."""

    def set(self, prefix: bytes, inner: bool) -> None:
        """Add or remove a prefix."""
        if inner == (prefix in self._prefixes):
            return
        length = len(prefix)
        if inner:
            self._prefixes.add(prefix)
            if not self._counts[length]:
                insort(self._lengths, length)
            self._counts[length] += 1
        else:
            self._prefixes.remove(prefix)
            self._counts[length] -= 1
            if not self._counts[length]:
                del self._lengths[bisect_left(self._lengths, length)], self._counts[length]

    def find(self, keys: list[bytes]) -> None:
        """Replace everything by the inner prefixes among all prefixes of the table, in byte order."""
        # A prefix comes right before the others that start with it.
        self._prefixes = set(compress(keys, map(bytes.startswith, keys[1:], keys)))
        self._prefixes.discard(b"")  # the root, which needs no lookup
        self._counts = Counter(map(len, self._prefixes))
        self._lengths = sorted(self._counts)

    def enclosing(self, text: bytes, length: int) -> bytes:
        """Return the longest inner prefix, of at most this length, with which a text starts; else the empty prefix."""
        for place in range(bisect_right(self._lengths, length) - 1, -1, -1):
            stem = text[: self._lengths[place]]
            if stem in self._prefixes:
                return stem
        return b""


class _Note:
    """The cached link and fan of one prefix."""

    __slots__ = ("above", "checked", "depth", "fan", "jump", "linked", "own", "parent", "prefix", "used")

    def __init__(self, prefix: bytes, own: Peers) -> None:
        self.prefix = prefix
        self.own = own
        """The peers that hold this prefix."""
        self.parent = self
        self.jump = self
        self.depth = 0
        """Number of proper prefixes in the table when it was linked."""
        self.linked = 0
        """The shape of the table for which the link is valid."""
        self.checked = 0
        """The version of the table for which the fan is valid."""
        self.fan = own
        self.used = own
        """The peers from which the fan was made, together with `above`, the fan of the parent."""
        self.above: Peers = ()


class Fans:
    """The fans of the prefixes of a table. The owner of the table must report every change."""

    def __init__(self, table: SortedBlocks) -> None:
        self._table = table
        self._heads, self._keys = table.heads, table.keys
        self._shape = 0
        """Incremented when all links become invalid."""
        self._version = 0
        """Incremented by every change."""
        self._root = _Note(b"", ())
        self._notes = {b"": self._root}
        self._inner = _InnerPrefixes()
        self._remembered = 0
        """Upper bound of the number of peers in fans that are not shared."""
        self.subscriptions = 0
        """Number of subscriptions in the table; set by its owner."""

    def match(self, topic: bytes) -> Peers:  # hot: bench_index
        """Return the peers of a topic, sorted, each once."""
        # Two searches: for the block by its first key, then within it. The empty prefix guarantees a result.
        keys = self._keys[bisect_right(self._heads, topic) - 1]
        prefix = keys[bisect_right(keys, topic) - 1]
        if topic.startswith(prefix):
            try:
                note = self._notes[prefix]
            except KeyError:
                note = self._note(prefix)
        else:
            note = self._climb(prefix, topic)
        return note.fan if note.checked == self._version else self._refresh(note)

    def change(self, prefix: bytes, own: Peers) -> None:
        """Record that the peers of a prefix in the table changed."""
        self._version += 1
        note = self._notes.get(prefix)
        if note is not None:
            note.own = own
        # `_refresh` climbs up to a note that is current. The root must always be, because it is its own parent.
        root = self._root
        root.fan, root.checked = root.own, self._version

    def reshape(self, prefix: bytes) -> None:
        """Record that a prefix was added to the table or removed, so that those below it may have another parent."""
        self._version += 1
        self._root.checked = self._version
        gone = self._notes.pop(prefix, None)
        if gone is not None:
            gone.linked = _UNLINKED
        before, came, behind = self._table.around(prefix)
        has_below = behind is not None and behind.startswith(prefix)
        # Only this prefix, and the one before it in the table, can have become inner or stopped being inner.
        self._inner.set(prefix, came and has_below)
        if before and prefix.startswith(before):
            self._inner.set(before, came or (behind is not None and behind.startswith(before)))
        if has_below:
            self._unlink_below(prefix)

    def renew(self, keys: list[bytes]) -> None:
        """Record that the whole table was replaced; `keys` are its prefixes."""
        self._version += 1
        self._shape += 1
        root = self._root
        root.own = root.fan = self._table.values[0][0]
        root.checked = self._version
        self._notes = {b"": root}
        self._remembered = 0
        self._inner.find(keys)

    def _unlink_below(self, prefix: bytes) -> None:
        """Mark the notes of all prefixes that start with this one."""
        # If only the root has a note, nothing can be stale.
        below = self._table.starting_with(prefix, _MARKED) if len(self._notes) > 1 else []
        if len(below) == _MARKED:
            self._shape += 1
            return
        for other in below:
            note = self._notes.get(other)
            if note is not None:
                note.linked = _UNLINKED

    def _climb(self, prefix: bytes, topic: bytes) -> _Note:
        """Return the note of the longest prefix of a topic, starting at the greatest prefix that sorts before the topic."""
        note = self._notes.get(prefix)
        if note is None:
            # Do not link a prefix that a subscriber made long to make this expensive (docs/decisions/0011).
            if len(prefix) > _LONG * len(topic):
                return self._note(self._inner.enclosing(topic, len(topic)))
            note = self._note(prefix)
        shape = self._shape
        while True:
            jump = note.jump
            # Jump as far as the result cannot be skipped; then try the parent.
            if not topic.startswith(jump.prefix):
                note = jump
                continue
            if note.linked != shape:
                self._link(note)
            parent = note.parent
            if parent is jump or topic.startswith(parent.prefix):
                return parent
            note = parent

    def _refresh(self, note: _Note) -> Peers:
        """Update the fan of a prefix, and those of its parents, from the top down; return the fan."""
        chain = []
        version = self._version
        above = note
        while above.checked != version:
            chain.append(above)
            above = self._parent(above)
        fan = above.fan
        for below in reversed(chain):
            if below.above is not fan or below.used is not below.own:
                self._spread(below, fan)
            below.checked = version
            fan = below.fan
        return fan

    def _spread(self, note: _Note, above: Peers) -> None:
        """Compute the fan of a prefix; if it equals its own peers or the parent's fan, share that object."""
        own = note.own
        fan = above or own
        if own and above and own is not above:
            union = set(own).union(above)
            if len(union) > len(above):
                fan = own if len(union) == len(own) else tuple(sorted(union))
        if fan is not own and fan is not above:
            self._make_room(len(fan))
        note.fan, note.used, note.above = fan, own, above

    def _make_room(self, peers: int) -> None:
        """Drop all fans if they take too much memory, as with nested prefixes that many peers hold."""
        self._remembered += peers
        if self._remembered > _FREE_FANS + _FANS_PER_SUBSCRIPTION * self.subscriptions:
            self._remembered = peers
            for note in self._notes.values():
                if note is not self._root:
                    note.fan = note.used = note.own
                    note.above = ()
                    note.checked = _UNLINKED

    def _parent(self, note: _Note) -> _Note:
        """Return the parent of a prefix; link it again if the table changed above it."""
        if note.linked != self._shape:
            self._link(note)
        return note.parent

    def _note(self, prefix: bytes) -> _Note:
        """Return the linked note of a prefix in the table; make it if there is none."""
        if len(self._notes) > max(_MOST_NOTES - self.subscriptions // _SUBSCRIPTIONS_PER_NOTE, _FEWEST_NOTES):
            self._notes = {b"": self._root}
            self._remembered = 0
        note = self._notes.get(prefix)
        if note is None:
            note = self._new_note(prefix)
            self._link(note)
        return note

    def _new_note(self, prefix: bytes) -> _Note:
        block, place, _ = self._table.find(prefix)
        prefix = self._keys[block][place]  # the table's own object: it exists anyway, and caches its hash
        note = self._notes[prefix] = _Note(prefix, self._table.values[block][place])
        note.linked = note.checked = _UNLINKED
        return note

    def _link(self, note: _Note) -> None:
        """Link a prefix and its unlinked parents, from the top down."""
        chain = []
        while note.linked != self._shape and note is not self._root:
            chain.append(note)
            prefix = self._inner.enclosing(note.prefix, len(note.prefix) - 1)
            parent = self._notes.get(prefix) or self._new_note(prefix)
            note.parent = parent
            note = parent
        self._root.linked = self._shape
        for below in reversed(chain):
            parent, jump = below.parent, below.parent.jump
            below.depth = parent.depth + 1
            # Skew-binary: two jumps of equal length are joined to one (pubsub.md §1.2).
            below.jump = jump.jump if parent.depth - jump.depth == jump.depth - jump.jump.depth else parent
            # A jump may lead to a removed prefix, which gets no reports of changes: its link is valid only this once.
            below.linked = self._shape if self._notes.get(below.prefix) is below else _UNLINKED
