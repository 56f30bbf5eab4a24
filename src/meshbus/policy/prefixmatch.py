"""Flat snapshot of the subscription index, and the kernels that match many topics against it.

policy/prefixes.py owns the subscriptions, and makes a new snapshot after a change; a snapshot itself never changes. The
prefixes are stored contiguously in sorted order, the empty one first. Each has a row of links:

    parent   its longest proper prefix in the table; the empty prefix is its own parent
    jump     an ancestor further up (skew-binary), so that even the deepest nesting is climbed in logarithmic steps
    fresh    start of its *fresh* peers, those that no ancestor has, sorted
    up       the prefix itself, or its nearest ancestor, that has fresh peers
    total    number of peers of the prefix and its ancestors together

Fresh peers are disjoint along a chain of parents. So the peers of a topic are the merge of the fresh peers of a few rows,
their number is known beforehand, and the snapshot needs no more memory than the subscriptions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Sized
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
import numpy as np

from meshbus import jit
from meshbus.errors import LocalProtocolError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.signedinteger[Any]]
    Offsets = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Peers = NDArray[np.uint64]

Column: TypeAlias = "tuple[Integers, Bytes]"
"""Offsets and data in Arrow's binary layout."""
Topics: TypeAlias = "Sequence[bytes | str] | Column"

_PARENT, _JUMP, _FRESH, _UP, _TOTAL = range(5)
"""Columns of the links: passing one array of plain numbers to a kernel is faster than passing five arrays."""

_MERGES = 8
"""Rows with fresh peers that are merged one by one; a longer chain is sorted as a whole, because merging would take
quadratic time. Our choice."""

_PADDING = bytes(8)
"""Follows the last topic and the last prefix, so that a whole word can be read where only one byte is left."""

_I64 = np.dtype(np.int64)
_I32 = np.dtype(np.int32)
_U64 = np.dtype(np.uint64)
_U8 = np.dtype(np.uint8)


class Matches(msgspec.Struct, frozen=True, eq=False):
    """The peers of many topics: those of topic `i` are `peers[offsets[i] : offsets[i + 1]]`, sorted, each once."""

    offsets: Offsets
    peers: Peers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Peers:
        """Return the peers of one topic, as a view."""
        if not 0 <= index < len(self):
            raise IndexError(f"topic index must be in [0, {len(self)}), got {index}")
        return self.peers[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[Peers]:
        """Iterate over the peers of each topic, as views."""
        return (self.peers[start:end] for start, end in pairwise(self.offsets.tolist()))

    def tolist(self) -> list[list[int]]:
        """Return the peers of every topic as plain lists."""
        peers = self.peers.tolist()
        return [peers[start:end] for start, end in pairwise(self.offsets.tolist())]


class FlatTable(msgspec.Struct, frozen=True, eq=False):
    """Snapshot of all subscriptions: about 32 bytes for each, plus the bytes of its prefix."""

    starts: Integers
    """Prefix `i` is `data[starts[i] : starts[i + 1]]`."""
    data: Bytes
    """The prefixes, followed by a word of zeros so that whole words can be read everywhere."""
    links: Integers
    peers: Peers
    """The fresh peers of all rows."""


def count_topics(topics: Topics) -> int:
    """Return the number of topics, in either form."""
    column = _as_column(topics)
    return len(topics) if column is None else max(len(column[0]) - 1, 0)


def pack_topics(topics: Topics) -> tuple[Offsets, Bytes]:
    """Return topics as a column; a column is copied only if its types differ."""
    column = _as_column(topics)
    if column is not None:
        return np.ascontiguousarray(column[0], _I64), np.ascontiguousarray(column[1], _U8)
    listed = cast("Sequence[bytes]", topics)
    try:
        data = b"".join([*listed, _PADDING])
    except TypeError:  # some are str
        listed = list_topics(topics)
        data = b"".join([*listed, _PADDING])
    return _bounds(listed), np.frombuffer(data, _U8)


def list_topics(topics: Topics) -> list[bytes]:
    """Return topics as a list of bytes.

    Raises LocalProtocolError if the offsets of a column decrease or are outside its data.
    """
    column = _as_column(topics)
    if column is None:
        listed = cast("Sequence[bytes | str]", topics)
        return [topic if isinstance(topic, bytes) else topic.encode() for topic in listed]
    raw = column[1].tobytes()
    pairs = list(pairwise(column[0].tolist()))
    if not all(0 <= start <= end <= len(raw) for start, end in pairs):
        raise _bad_offsets(len(raw))
    return [raw[start:end] for start, end in pairs]


def flatten(prefixes: Sequence[bytes], holders: Sequence[Sequence[int]]) -> FlatTable:
    """Return the snapshot of sorted prefixes, the empty one first, with the sorted peers of each."""
    data = np.frombuffer(b"".join([*prefixes, _PADDING]), _U8)
    # Peers are numbered consecutively, so that the kernel can mark them in an array.
    names, ids = np.unique(_join(holders), return_inverse=True)
    # 32 bits where they are enough take half the memory.
    width: np.dtype[np.signedinteger[Any]] = _I32 if max(len(data), len(ids)) <= np.iinfo(_I32).max else _I64
    starts = _bounds(prefixes).astype(width)
    links = np.zeros((len(starts), 5), width)
    fresh = np.empty(len(ids), _I64)
    count = _link.run(starts, data, _bounds(holders), ids, np.zeros(len(names), np.bool_), links, fresh)
    return FlatTable(starts, data, links, names[fresh[:count]])


def match_topics(table: FlatTable, offsets: Offsets, data: Bytes) -> Matches:  # hot: bench_prefixes
    """Return the peers of every topic of a column.

    Raises LocalProtocolError if the offsets decrease or are outside the data.
    """
    count = len(offsets) - 1
    if count < 1:
        return Matches(np.zeros(1, _I64), np.empty(0, _U64))
    size, end = len(data), int(offsets[-1])
    if end > size:
        raise _bad_offsets(size)
    # The kernel reads whole words, so the last topic needs bytes after it.
    if end + len(_PADDING) > size:
        data = np.concatenate((data[:end], np.zeros(len(_PADDING), _U8)))
    rows = np.empty(count, _I32)
    bounds = np.empty(count + 1, _I64)
    total = _locate.run(table.starts, table.data, table.links, _read_only(offsets), _read_only(data), rows, bounds)
    if total < 0:
        raise _bad_offsets(size)
    peers = np.empty(total, _U64)
    _fill.run(table.links, table.peers, rows, bounds, peers)
    return Matches(bounds, peers)


def gather(fans: Sequence[Sequence[int]]) -> Matches:
    """Return the peers of topics that were matched one by one in the form of a batch."""
    return Matches(_bounds(fans), _join(fans))


def _join(parts: Sequence[Sequence[int]]) -> Peers:
    """Return the peers of all parts, concatenated."""
    return np.fromiter(chain.from_iterable(parts), _U64, sum(map(len, parts)))


def _bounds(parts: Sequence[Sized]) -> Offsets:
    """Return the start of each part in their concatenation, and the end of the last one."""
    return np.fromiter(accumulate(map(len, parts), initial=0), _I64, len(parts) + 1)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view: the compiler would compile again for writable arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


def _as_column(topics: Topics) -> Column | None:
    """Return the topics if they are a column, or None if they are a list, which may be a tuple of two too."""
    is_column = isinstance(topics, tuple) and len(topics) == 2 and isinstance(topics[0], np.ndarray)
    return cast("Column", topics) if is_column else None


def _bad_offsets(size: int) -> LocalProtocolError:
    return LocalProtocolError(f"topic offsets must not decrease and must stay within the {size} bytes of data")


# ── building ────────────────────────────────────────────────────────────────────────────────


def _link_rows(
    starts: Integers,
    data: Bytes,
    own: Offsets,
    ids: NDArray[np.int64],
    held: NDArray[np.bool_],
    links: Integers,
    fresh: NDArray[np.int64],
) -> int:
    """Fill the links in one pass over the sorted prefixes, and return the number of fresh peers.

    `held` marks the peers on the chain of the previous row; rows that are not prefixes of the current row are removed
    from it first.
    """
    depth = np.zeros(len(starts), np.int32)
    count = 0
    for row in range(len(starts) - 1):
        above = 0
        links[row, _FRESH] = count
        if row > 0:
            above = row - 1
            shared = 0
            here, there = starts[row], starts[above]
            most = min(starts[row + 1] - here, here - there)
            # In sorted order, the parent is an ancestor of the row before, or that row itself.
            while shared < most and data[here + shared] == data[there + shared]:
                shared += 1
            while starts[above + 1] - starts[above] > shared:
                for slot in range(links[above, _FRESH], links[above + 1, _FRESH]):
                    held[fresh[slot]] = False
                above = links[above, _PARENT]
            jump = links[above, _JUMP]
            beyond = links[jump, _JUMP]
            depth[row] = depth[above] + 1
            links[row, _PARENT] = above
            # Skew-binary: two jumps of equal length are joined, so any climb takes logarithmic steps (pubsub.md §1.2).
            links[row, _JUMP] = beyond if depth[above] - depth[jump] == depth[jump] - depth[beyond] else above
        before = count
        for slot in range(own[row], own[row + 1]):
            if not held[ids[slot]]:
                held[ids[slot]] = True
                fresh[count] = ids[slot]
                count += 1
        links[row, _UP] = row if count > before else links[above, _UP]
        links[row, _TOTAL] = count - before + (links[above, _TOTAL] if row > 0 else 0)
    links[len(starts) - 1, _FRESH] = count
    return count


_link = jit.kernel(_link_rows)(_link_rows)
"""It needs no separate reference: the plain Python function is the same code."""


# ── matching ────────────────────────────────────────────────────────────────────────────────


@jit.helper
def _swap(word: np.uint64) -> np.uint64:
    """Reverse the bytes of a word; the compiler recognizes this form and emits one instruction."""
    even = np.uint64(0x00FF00FF00FF00FF)
    word = ((word & even) << np.uint64(8)) | ((word >> np.uint64(8)) & even)
    even = np.uint64(0x0000FFFF0000FFFF)
    word = ((word & even) << np.uint64(16)) | ((word >> np.uint64(16)) & even)
    return (word << np.uint64(32)) | (word >> np.uint64(32))


@jit.helper
def _word(at: int, end: int) -> np.uint64:
    """Read the eight bytes at an address as a big-endian number, with zeros from `end` on.

    Reads up to seven bytes after `end`. Big-endian numbers compare like the bytes do.
    """
    left = end - at
    if left <= 0:
        return np.uint64(0)
    word = _swap(np.uint64(jit.load_u32(at)) | (np.uint64(jit.load_u32(at + 4)) << np.uint64(32)))
    if left >= 8:
        return word
    unwanted = np.uint64(64 - 8 * left)
    return (word >> unwanted) << unwanted


@jit.helper
def _leading_zero_bytes(word: np.uint64) -> int:
    """Return the number of leading zero bytes of a word that is not 0."""
    count = 0
    if word >> np.uint64(32) == 0:
        count = 4
        word = word << np.uint64(32)
    if word >> np.uint64(48) == 0:
        count += 2
        word = word << np.uint64(16)
    if word >> np.uint64(56) == 0:
        count += 1
    return count


@jit.helper
def _equal_words(one: int, one_end: int, other: int, other_end: int) -> int:
    """Return in how many bytes, in whole words, two strings agree, whose first words are equal."""
    shortest = min(one_end - one, other_end - other)
    equal = 8
    while equal < shortest and _word(one + equal, one_end) == _word(other + equal, other_end):
        equal += 8
    return equal


def _locate_reference(
    starts: Integers,
    data: Bytes,
    links: Integers,
    offsets: Offsets,
    topics: Bytes,
    rows: Integers,
    bounds: Offsets,
) -> int:
    raw, text = data.tobytes(), topics.tobytes()
    table = [raw[start:end] for start, end in pairwise(starts.tolist())]
    total = 0
    bounds[0] = 0
    for index, (begin, end) in enumerate(pairwise(offsets.tolist())):
        if not 0 <= begin <= end <= offsets[-1]:
            return -1
        topic = text[begin:end]
        row = bisect_right(table, topic) - 1
        while not topic.startswith(table[row]):
            row = int(links[row, _PARENT])
        rows[index] = row
        total += int(links[row, _TOTAL])
        bounds[index + 1] = total
    return total


@jit.kernel(_locate_reference)
def _locate(
    starts: Integers,
    data: Bytes,
    links: Integers,
    offsets: Offsets,
    topics: Bytes,
    rows: Integers,
    bounds: Offsets,
) -> int:
    """Find the longest prefix of each topic and the bounds of its peers; return their number, or -1 for bad offsets."""
    table, column = data.ctypes.data, topics.ctypes.data
    total = 0
    bounds[0] = 0
    for index in range(len(rows)):
        begin, end = offsets[index], offsets[index + 1]
        if begin < 0 or end < begin or end > offsets[-1]:
            return -1
        topic, topic_end = column + begin, column + end
        length = topic_end - topic
        # Invariant: row `low` is not greater than the topic, and row `high` is. Every row between them shares with the
        # topic at least the bytes that both of them share with it, so comparisons start after those.
        low, high = 0, len(starts) - 1
        low_shared, high_shared = 0, 0
        while high - low > 1:
            middle = (low + high) >> 1
            prefix, prefix_end = table + starts[middle], table + starts[middle + 1]
            shared = min(low_shared, high_shared)
            mine = _word(prefix + shared, prefix_end)
            other = _word(topic + shared, topic_end)
            if mine == other:
                shared += _equal_words(prefix + shared, prefix_end, topic + shared, topic_end)
                mine = _word(prefix + shared, prefix_end)
                other = _word(topic + shared, topic_end)
            if mine != other:
                shared += _leading_zero_bytes(mine ^ other)
            # Equal words may still differ in length, if one ends and the other continues with zero bytes: then the
            # shorter one sorts first.
            below = mine < other or (mine == other and prefix_end - prefix <= length)
            if below:
                low, low_shared = middle, shared
            else:
                high, high_shared = middle, shared
        row = low
        # pubsub.md §1.2: every prefix of the topic is `low` or an ancestor of it. Climb to the longest one.
        while starts[row + 1] - starts[row] > low_shared:
            jump = links[row, _JUMP]
            row = jump if starts[jump + 1] - starts[jump] > low_shared else links[row, _PARENT]
        rows[index] = row
        total += links[row, _TOTAL]
        bounds[index + 1] = total
    return total


def _fill_reference(links: Integers, peers: Peers, rows: Integers, bounds: Offsets, out: Peers) -> None:
    for index, located in enumerate(rows.tolist()):
        row, parts = located, [peers[: links[1, _FRESH]]]
        while row:
            parts.append(peers[links[row, _FRESH] : links[row + 1, _FRESH]])
            row = int(links[row, _PARENT])
        out[bounds[index] : bounds[index + 1]] = np.sort(np.concatenate(parts))


@jit.kernel(_fill_reference)
def _fill(links: Integers, peers: Peers, rows: Integers, bounds: Offsets, out: Peers) -> None:
    """Write the peers of each row and its ancestors, sorted."""
    source, target = peers.ctypes.data, out.ctypes.data
    for index in range(len(rows)):
        at, end = bounds[index], bounds[index + 1]
        row = links[rows[index], _UP]
        merges = 0
        filled = at
        while filled < end:
            start, size = links[row, _FRESH], links[row + 1, _FRESH] - links[row, _FRESH]
            # The first part needs no merge; beyond the limit, parts are appended and all of it is sorted once.
            if merges == 0 or merges > _MERGES:
                jit.copy_bytes(target + 8 * filled, source + 8 * start, 8 * size)
            else:
                _merge(out, at, filled, peers, start, start + size)
            filled += size
            merges += 1
            row = links[links[row, _PARENT], _UP]
        if merges > _MERGES + 1:
            out[at:end].sort()


@jit.helper
def _merge(out: Peers, at: int, filled: int, peers: Peers, start: int, end: int) -> None:
    """Merge sorted peers into the sorted `out[at:filled]`, from the end."""
    place, mine, other = filled + end - start - 1, filled - 1, end - 1
    while other >= start:
        if mine >= at and out[mine] > peers[other]:
            out[place] = out[mine]
            mine -= 1
        else:
            out[place] = peers[other]
            other -= 1
        place -= 1
