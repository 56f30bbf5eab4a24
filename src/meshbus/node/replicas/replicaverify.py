"""Compare the replicas of a channel: checksums of ranges of events, as they are on the disks of the members.

A node reads its own log from its disk, and those of the other members as any reader of history does. A range is compared
as far as it is committed, so all members should have the same. What a majority has is right; a member that has something
else, or cannot read its own, is wrong. Repairing is done by replicas.py: the log is moved aside and copied again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress

import msgspec

from meshbus.engine.base.batch import EventBatch
from meshbus.errors import LogError, MeshError, Timeout
from meshbus.log.replicated import RangeChecksum, ReplicatedLog
from meshbus.node.channels.subscription import Subscription

STEP = 4096
"""Events of one range. Our choice: few rows for a long log, and little to read again to find one event."""

Range = tuple[int, int]
Open = Callable[[int, int], AbstractAsyncContextManager[Subscription]]
"""Opens the history of a member, by node id, from a sequence on."""


class ReplicaRange(msgspec.Struct, frozen=True, kw_only=True):
    """One range of events, and which members have the same."""

    first: int
    end: int
    """One past the last sequence."""
    equal: tuple[int, ...]
    """Members that have what a majority has; empty if no majority has the same."""
    wrong: tuple[int, ...]
    """Members whose events differ from those of the majority, or are damaged."""
    unread: tuple[int, ...]
    """Members that cannot be reached, do not have the range any more, or did not send all of it in time."""


Checksums = Mapping[Range, bytes | None]
"""Checksums of the ranges that were read; None for a range that is damaged."""


def ranges_of(first: int, end: int) -> list[Range]:
    """Return the ranges to compare; they begin at multiples of their length, whatever is retained."""
    starts = [first, *range(first - first % STEP + STEP, end, STEP)] if first < end else []
    return [(start, min(start - start % STEP + STEP, end)) for start in starts]


def judge(ranges: Sequence[Range], found: Mapping[int, Checksums]) -> Iterator[ReplicaRange]:
    """Compare what was found at the members, by node id."""
    for one in ranges:
        read = {node: checksums[one] for node, checksums in found.items() if one in checksums}
        votes = Counter(checksum for checksum in read.values() if checksum is not None)
        right, count = votes.most_common(1)[0] if votes else (None, 0)
        decided = 2 * count > len(found)
        yield ReplicaRange(
            first=one[0],
            end=one[1],
            equal=tuple(node for node, checksum in read.items() if decided and checksum == right),
            wrong=tuple(node for node, checksum in read.items() if checksum is None or (decided and checksum != right)),
            unread=tuple(node for node in found if node not in read),
        )


def read_own(log: ReplicatedLog, ranges: Sequence[Range]) -> dict[Range, bytes | None]:
    """Read the log of this node from its disk; blocks."""
    found: dict[Range, bytes | None] = {}
    for first, end in ranges:
        try:
            found[first, end] = log.checksum(first, end)
        except LogError:
            found[first, end] = None
    return found


async def read_other(open_history: Open, node_id: int, ranges: Sequence[Range], timeout_s: float) -> Checksums:
    """Read the log of another member; what it does not send in time is left out."""
    found: dict[Range, bytes | None] = {}
    with suppress(MeshError, TimeoutError):  # the rows show it as unread
        async with asyncio.timeout(timeout_s):
            while True:
                # A busy member may miss the first question; whoever does not answer at all ends by the time-out.
                with suppress(Timeout):
                    async with open_history(node_id, ranges[0][0]) as history:
                        await _read(history.batches(), node_id, list(ranges), found)
                        break
    return found


async def _read(
    batches: AsyncIterator[EventBatch], node_id: int, ranges: list[Range], found: dict[Range, bytes | None]
) -> None:
    (first, end), *rest = ranges
    checksum, expected = RangeChecksum(), first
    async for batch in batches:
        for event in batch:
            # A reading goes on at another member if this one goes down; that must not be taken for its log.
            if event.publisher != node_id or event.pub_seq != expected:
                return
            checksum.add(event.payload)
            expected += 1
            if expected == end:
                found[first, end] = checksum.digest(first, end)
                if not rest:
                    return
                (first, end), *rest = rest
                checksum = RangeChecksum()
