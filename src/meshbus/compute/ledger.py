"""Ledgers: checkpoints of daemons in a log that several nodes share, whose order decides on which of them a daemon runs.

A ledger is a log with one order for all its readers, such as a replicated channel. Two kinds of entries matter:

    claim        a node wants to run the daemon from here on, with the next term. It holds if its term is above the current
                 one at its place in the log; of two that claim at the same time, the log has one first
    checkpoint   in parts, of the term of its writer. It counts if no later term was claimed before its last part, and no
                 later checkpoint of its term was begun before it

So a node that was cut off, or was stopped for an hour, cannot add a checkpoint any more once another has claimed the daemon,
and an entry that arrives late, or twice, changes nothing. Every start of a daemon on a node claims a term of its own, so that
what an earlier life of the same node has on its way does not count either.

A checkpoint says in which term it was written, and takes that along in a move and on disk. A daemon may go on from a record
if no checkpoint of a later term has counted: then everything that was published is in the record (`supersedes`).

A node publishes the outputs of a checkpoint only after it has read the checkpoint back as counted. The node that takes over
publishes the outputs of the last one that counted again, under the same number, so that they are in the log of outputs
once (compute/host.py). The log of outputs must be shared too. Reading and writing is node/daemons/daemonledger.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from meshbus.errors import UNDECODABLE, Fault, MalformedPacket

PART_BYTES = 7_000
"""Bytes of a checkpoint in one entry: what fits an event of a replicated channel with room to spare."""
MAX_PARTS = 100_000
"""Parts of a checkpoint, more than the largest snapshot that can move has."""


class Kind(IntEnum):
    """What an entry is."""

    CLAIM = 0
    CHECKPOINT = 1


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a ledger."""

    kind: Kind
    origin: int
    term: int
    node: int
    """Who wrote it."""
    number: int = 0
    """Which checkpoint of the term it is a part of; it only grows."""
    part: int = 0
    parts: int = 1
    content: bytes = b""


def encode_entry(entry: Entry) -> bytes:
    """Write an entry."""
    return msgspec.msgpack.encode(entry)


def decode_entry(payload: bytes) -> Entry:
    """Read an entry; raise MalformedPacket for anything else."""
    try:
        return msgspec.msgpack.decode(payload, type=Entry)
    except UNDECODABLE as error:
        raise MalformedPacket("entry of a ledger", Fault.BAD_VALUE, str(error)) from error


def split_checkpoint(origin: int, term: int, node: int, number: int, snapshot: bytes) -> Iterator[Entry]:
    """Return the entries of a checkpoint."""
    pieces = [snapshot[start : start + PART_BYTES] for start in range(0, len(snapshot), PART_BYTES)] or [b""]
    for part, content in enumerate(pieces):
        yield Entry(Kind.CHECKPOINT, origin, term, node, number, part, len(pieces), content)


class Ledger:
    """What a ledger says about one daemon, after the entries that were read so far."""

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.term = 0
        self.node: int | None = None
        """The node that may run the daemon; None if none has claimed it."""
        self.snapshot: bytes | None = None
        """The last checkpoint that counted."""
        self.counted: tuple[int, int] | None = None
        """Its term and number."""
        self._newest = (0, 0)
        """Term and number of the newest checkpoint of which a part was read."""
        self._parts: list[bytes] = []

    def claim(self, node: int) -> Entry:
        """Return the entry with which a node claims the daemon, by what was read so far."""
        return Entry(Kind.CLAIM, self.origin, self.term + 1, node)

    def holds(self, term: int, node: int) -> bool:
        """Return whether the daemon belongs to a node in this term."""
        return (self.term, self.node) == (term, node)

    def supersedes(self, term: int) -> bool:
        """Return whether a record that was written in this term is an old one: the daemon went on without it."""
        return self.counted is not None and self.counted[0] > term

    def read(self, entry: Entry) -> None:
        """Take the next entry of the log."""
        if entry.origin != self.origin:
            return
        if entry.kind is Kind.CLAIM:
            if entry.term > self.term:
                self.term, self.node = entry.term, entry.node
            return
        if entry.term < self.term:
            return
        # Who writes a checkpoint has read that the term is its own, perhaps before the first entry that is left of the log.
        self.term, self.node = entry.term, entry.node
        self._assemble(entry)

    def _assemble(self, entry: Entry) -> None:
        which = entry.term, entry.number
        if which > self._newest:
            self._newest, self._parts = which, []
        # A part that is there twice is not the next one. Of a checkpoint that counted, none is.
        is_next = which == self._newest and which != self.counted and entry.part == len(self._parts)
        if not is_next or entry.parts > MAX_PARTS:
            return
        self._parts.append(entry.content)
        if len(self._parts) == entry.parts:
            self.snapshot, self.counted = b"".join(self._parts), which
            self._parts = []
