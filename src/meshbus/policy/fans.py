"""The peers of a topic, remembered: links between the prefixes that topics met, and the union of peers at each.

Let `e` be the greatest prefix in the sorted table that is not above a topic: every prefix of the topic in the table is
also a prefix of `e`, or `e` itself. So a match is one search and a climb from `e` along *parent* links (the longest
proper prefix in the table) to the first that fits; all further parents fit too. The ascending union of their peers is
the *fan* of that prefix.

What a climb found out is kept in a *note* per prefix, made when a topic first needs it and within a bound of memory:

    link    the parent, and a jump to an ancestor further up (skew-binary), so that the deepest nesting is climbed in a
            logarithm of steps. Right while no prefix came or went above it: a change marks the few notes below it, or
            all of them at once where they are many
    fan     right while it was made from the very objects that are the peers of this prefix and the fan of its parent
            now. Peers are immutable tuples, so a change anywhere is noticed without being announced: a subscription to
            the empty prefix touches one note, however large the table

A parent is always an *inner* prefix, one that others start with, and those are kept in a set: it is found by a lookup
for each length that occurs among them. So for N prefixes a match costs, in comparisons and lookups,

    log2 N + 2, and a climb of 4 log2 d for d nested prefixes, when nothing changed since these prefixes were met;
    one more for each prefix of the topic, after a change; and for each note that is new or marked, log2 N + 2 and a
    lookup for each inner length, at most 4 times the length of the topic, whatever subscribers do.

Jumps may lead to prefixes that are gone: they are still prefixes of where they started, which is all a climb needs.
The empty prefix is always in the table, with or without peers, so that every climb ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from typing import TypeAlias

from meshbus.policy.sortedblocks import SortedBlocks

Peers: TypeAlias = tuple[int, ...]

_MARKED = 64
"""Prefixes below a change that are looked at one by one; more are marked all at once."""

_LONG = 4
"""A prefix that is so many times longer than a topic is not linked for it: finding its parent may take a lookup for
each of its bytes, and the subscriber chose how many there are."""

_MOST_NOTES = 65_536
_FEWEST_NOTES = 8_192
_SUBSCRIPTIONS_PER_NOTE = 20
"""How many notes there may be before all are forgotten: of some 230 bytes each, and one less for each so many
subscriptions, so that a table of a million stays below 100 bytes for each of them (bench_index)."""
_FREE_FANS = 65_536
_FANS_PER_SUBSCRIPTION = 8
"""How many peers all fans together may hold that are no other's: half a MiB, or what the subscriptions take anyway."""

_UNLINKED = -1
"""No shape and no version: what is marked so is found out anew."""


class _Inner:
    """The prefixes that others in the table start with: every parent but the empty prefix is one."""

    __slots__ = ("_counts", "_lengths", "_prefixes")

    def __init__(self) -> None:
        self._prefixes: set[bytes] = set()
        self._counts: Counter[int] = Counter()
        """How many there are of each length."""
        self._lengths: list[int] = []
        """Those lengths, ascending."""

    def set(self, prefix: bytes, inner: bool) -> None:
        """Add a prefix, or take it away."""
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

    def enclosing(self, text: bytes, length: int) -> bytes:
        """Find the longest one, of at most this length, that a text starts with; else the empty prefix."""
        for place in range(bisect_right(self._lengths, length) - 1, -1, -1):
            stem = text[: self._lengths[place]]
            if stem in self._prefixes:
                return stem
        return b""


class _Note:
    """What is known about one prefix."""

    __slots__ = ("above", "checked", "depth", "fan", "jump", "linked", "own", "parent", "prefix", "used")

    def __init__(self, prefix: bytes, own: Peers) -> None:
        self.prefix = prefix
        self.own = own
        """Its peers."""
        self.parent = self
        self.jump = self
        self.depth = 0
        """The number of proper prefixes in the table, when it was linked."""
        self.linked = 0
        """The shape of the table for which the parent is right."""
        self.checked = 0
        """The version of the table for which the fan is right."""
        self.fan = own
        self.used = own
        """The peers that the fan was made of, beside the parent's fan `above`."""
        self.above: Peers = ()


class Fans:
    """The fans of the prefixes in a table, which the owner of the table tells of every change."""

    def __init__(self, table: SortedBlocks) -> None:
        self._table = table
        self._heads, self._keys = table.heads, table.keys
        self._shape = 0
        """Grows when parents may have changed anywhere."""
        self._version = 0
        """Grows with every change."""
        self._root = _Note(b"", ())
        self._notes = {b"": self._root}
        self._inner = _Inner()
        self._remembered = 0
        """Peers in fans that are no other's, at most."""
        self.subscriptions = 0
        """How many the table holds; its owner counts them."""

    def match(self, topic: bytes) -> Peers:  # hot: bench_index
        """Return the peers of a topic, ascending, each once."""
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
        """Take note of other peers at a prefix that stays."""
        self._version += 1
        note = self._notes.get(prefix)
        if note is not None:
            note.own = own
        root = self._root
        root.fan, root.checked = root.own, self._version

    def reshape(self, prefix: bytes) -> None:
        """Take note of a prefix that just came or went: what starts with it has another parent now, perhaps."""
        self._version += 1
        self._root.checked = self._version
        gone = self._notes.pop(prefix, None)
        if gone is not None:
            gone.linked = _UNLINKED
        before, came, behind = self._table.around(prefix)
        has_below = behind is not None and behind.startswith(prefix)
        # Only this prefix and the one before it can have become inner, or ceased to be.
        self._inner.set(prefix, came and has_below)
        if before and prefix.startswith(before):
            self._inner.set(before, came or (behind is not None and behind.startswith(before)))
        if has_below:
            self._unlink_below(prefix)

    def _unlink_below(self, prefix: bytes) -> None:
        """Mark the notes of all prefixes that start with one."""
        below = self._table.starting_with(prefix, _MARKED) if len(self._notes) > 1 else []
        if len(below) == _MARKED:
            self._shape += 1
            return
        for other in below:
            note = self._notes.get(other)
            if note is not None:
                note.linked = _UNLINKED

    def _climb(self, prefix: bytes, topic: bytes) -> _Note:
        """Find the longest prefix of a topic, from the greatest prefix that is not above it and is none of its own."""
        note = self._notes.get(prefix)
        if note is None:
            if len(prefix) > _LONG * len(topic):
                return self._note(self._inner.enclosing(topic, len(topic)))
            note = self._note(prefix)
        shape = self._shape
        while True:
            jump = note.jump
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
        """Make the fan of a prefix right, and those of its parents, from the top down."""
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
        """Make the fan of a prefix; one that adds nothing to another is that other."""
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
        """Forget all fans when they would together outgrow the subscriptions, as nested prefixes of many peers do."""
        self._remembered += peers
        if self._remembered > _FREE_FANS + _FANS_PER_SUBSCRIPTION * self.subscriptions:
            self._remembered = peers
            for note in self._notes.values():
                if note is not self._root:
                    note.fan = note.used = note.own
                    note.above = ()
                    note.checked = _UNLINKED

    def _parent(self, note: _Note) -> _Note:
        """Return the parent of a prefix, linking it anew when the table changed above it."""
        if note.linked != self._shape:
            self._link(note)
        return note.parent

    def _note(self, prefix: bytes) -> _Note:
        """Find or make the note of a prefix in the table, linked."""
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
        prefix = self._keys[block][place]  # the table's own object, whose hash is known
        note = self._notes[prefix] = _Note(prefix, self._table.values[block][place])
        note.linked = note.checked = _UNLINKED
        return note

    def _link(self, note: _Note) -> None:
        """Make the links of a prefix and of its unlinked parents, from the top down."""
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
            below.jump = jump.jump if parent.depth - jump.depth == jump.depth - jump.jump.depth else parent
            # One that is gone may be met by a jump, but is not told of changes: its link is good for this time only.
            below.linked = self._shape if self._notes.get(below.prefix) is below else _UNLINKED
