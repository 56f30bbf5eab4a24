"""What a replicated log keeps between its events: ballot, epochs, gaps, as records in control blocks.

A hot file of a replicated log begins with an `Opening`, which has the whole state; `NewBallot` and `NewEpoch` change it.
They stand between the events in the order of the writes, so whatever a crash cuts off, what remains is the state after a
prefix of the writes, and one fsync serves events and ballots alike.

A turn is a series of hot files that follow each other. A new turn begins when the log goes on elsewhere than at its end:
at an earlier sequence, because the end was set aside (the opening has the events), or at a later one.

Pure: bytes in, values out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from meshbus.errors import UNDECODABLE
from meshbus.log.embedded.block import Unreadable

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Epochs with the sequence at which each starts; the last may be empty."""


class State(msgspec.Struct, frozen=True):
    """What a replicated log knows beside its events."""

    ballot: bytes | None = None
    runs: Runs = ()
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges that were skipped: the first missing sequence and one past the last."""
    damaged: bool = False
    """Whether durable events were lost and no ballot was stored since."""

    @property
    def epoch(self) -> int:
        """The epoch of the end of the log; 0 if there is none."""
        return self.runs[-1][0] if self.runs else 0

    def started(self, epoch: int, seq: int) -> State:
        """Return the state after an epoch began at the end of the log; one that appended nothing is replaced."""
        kept = tuple(run for run in self.runs if run[1] < seq)
        runs = kept if kept and kept[-1][0] == epoch else (*kept, (epoch, seq))
        return msgspec.structs.replace(self, runs=runs)

    def cut(self, seq: int) -> State:
        """Return the state after the events from a sequence on were set aside; an epoch that starts there stays."""
        return msgspec.structs.replace(self, runs=tuple(run for run in self.runs if run[1] <= seq))

    def trimmed(self, first: int) -> State:
        """Return the state without the epochs that end before the event before `first`."""
        ended = sum(1 for _, start in self.runs[1:] if start < first)
        return msgspec.structs.replace(self, runs=self.runs[ended:])


class SetAside(msgspec.Struct, frozen=True):
    """Events that are no longer part of the log."""

    turn: int
    """The turn that replaced them."""
    first: int
    end: int
    runs: Runs
    """Their epochs."""
    blocks_first: int
    """The first sequence of `blocks`, at most `first`."""
    blocks: bytes
    """Blocks of a hot file (log/embedded/block.py)."""


class Opening(msgspec.Struct, frozen=True, tag="opening", omit_defaults=True):
    """The start of a hot file."""

    state: State
    after: int = -1
    """In the first file of a turn: the turn of the events before it, -1 if there are none in hot files."""
    skips: bool = False
    """Whether the log goes on at a later sequence; everything before it is no longer part of it."""
    asides: tuple[SetAside, ...] = ()
    """What this turn set aside, and the ones before it that may not be on the disk yet."""


class NewBallot(msgspec.Struct, frozen=True, tag="ballot"):
    """The ballot was replaced, which also ends the time of a damaged log."""

    ballot: bytes


class NewEpoch(msgspec.Struct, frozen=True, tag="epoch"):
    """An epoch begins at the end of the log."""

    epoch: int
    seq: int
    joined: bool = False
    """Whether it belongs to the events after it: without them, a crash has cut it off with them."""


Record: TypeAlias = Opening | NewBallot | NewEpoch
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """Return the content of a control block."""
    return msgspec.msgpack.encode(record)


def decode_record(content: bytes) -> Record:
    """Parse the content of a control block; raises Unreadable if it is none of this version."""
    try:
        return _DECODER.decode(content)
    except UNDECODABLE as error:
        raise Unreadable(f"the control block has no record of a replicated log: {error}") from error


def opening_of(controls: Sequence[tuple[int, bytes]]) -> Opening | None:
    """Return the opening of a hot file, or None if it has none: then it is not of a replicated log."""
    first = decode_record(controls[0][1]) if controls else None
    return first if isinstance(first, Opening) else None


def state_after(controls: Sequence[tuple[int, bytes]], end: int) -> State:
    """Return the state after all records of a hot file, given with the sequence of each, that ends at a sequence."""
    state = State()
    ends = [*(seq for seq, _ in controls[1:]), end]
    for (_, content), following in zip(controls, ends, strict=True):
        match decode_record(content):
            case Opening(state=state):
                pass
            case NewBallot(ballot=ballot):
                state = msgspec.structs.replace(state, ballot=ballot, damaged=False)
            case NewEpoch(epoch=epoch, seq=seq, joined=joined) if following > seq or not joined:
                state = state.started(epoch, seq)
    return state
