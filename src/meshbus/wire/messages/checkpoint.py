"""Checkpoints: what the state of a daemon holds beside its own bytes, between meshbus nodes and on their disks.

A checkpoint is written and moved as one value, so that the state always belongs to the positions beside it: the events
before them are in the state, their outputs are numbered by the chain, and nothing is processed or published twice. A
0.23 node knows only the bare state, so a daemon that reads logs stays among meshbus nodes. The layout is in
docs/wire/profile.md.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import xxhash

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, pack_channel, take_field, unpack_channel

MAGIC = b"MBC1"
_WHAT = "checkpoint"
_HEAD = Layout(_WHAT, "<4sBIQ")
_COUNT = Layout(_WHAT, "<I")
_OBSERVED = Layout(_WHAT, "<QQ")
_INPUT = Layout(_WHAT, "<QQ")
_HASH = Layout(_WHAT, "<Q")
_TERM = Layout(_WHAT, "<Q")
_NAME_WIDTH = 1
_PAYLOAD_WIDTH = 4
_SHADOW, _IN_LEDGER = 1, 2
_KNOWN_FLAGS = _SHADOW | _IN_LEDGER
MAX_OBSERVED = 65_536
"""Origins that a host remembers (state.md §5 has the same number for its window)."""


class InputPosition(msgspec.Struct, frozen=True):
    """How far a daemon has read one log."""

    publisher: int
    """Node id of the publisher whose log it is."""
    channel: ChannelName
    next_seq: int = 0
    """Sequence of the next event to process."""

    @property
    def origin(self) -> int:
        """What names the log in causal links."""
        return xxhash.xxh3_64_intdigest(self.publisher.to_bytes(8, "little") + self.channel.encode())


class PendingOutput(NamedTuple):
    """An output, and what its link has beside its number and its parent, which follow from the outputs before it."""

    horizon: int
    payload: bytes


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a daemon between two events, and where it goes on."""

    state: bytes
    parent_hash: int
    """What the next link of its chain names as its parent."""
    moves: int = 0
    """How often it has moved: a snapshot with a lower number is from the past."""
    inputs: tuple[InputPosition, ...] = ()
    observed: tuple[tuple[int, int], ...] = ()
    """Origins with the highest sequence that was seen of each."""
    pending: tuple[PendingOutput, ...] = ()
    """The outputs of the last batch, which may not have been published yet, nor added to its history on other nodes."""
    pending_parent: int = 0
    """What the link of the first of them names as its parent; 0 without any."""
    shadow: bool = False
    """Whether events that follow this snapshot in a move were processed at the source, which published the outputs."""
    term: int = 0
    """The term of the ledger in which it was written (compute/ledger.py); 0 for a daemon that never had a ledger."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Write a checkpoint."""
    inputs = b"".join(_encode_input(position) for position in checkpoint.inputs)
    observed = b"".join(_OBSERVED.pack(*pair) for pair in checkpoint.observed)
    pending = b"".join(
        _HASH.pack(horizon) + _COUNT.pack(len(payload)) + payload for horizon, payload in checkpoint.pending
    )
    if pending:
        pending = _HASH.pack(checkpoint.pending_parent) + pending
    flags = _SHADOW * checkpoint.shadow | _IN_LEDGER * (checkpoint.term > 0)
    head = _HEAD.pack(MAGIC, flags, checkpoint.moves, checkpoint.parent_hash)
    if checkpoint.term:
        head += _TERM.pack(checkpoint.term)
    counted = (len(checkpoint.inputs), inputs), (len(checkpoint.observed), observed), (len(checkpoint.pending), pending)
    return head + b"".join(_COUNT.pack(count) + part for count, part in counted) + checkpoint.state


def decode_checkpoint(buffer: Buffer) -> Checkpoint:
    """Read a checkpoint; everything is copied."""
    view = memoryview(buffer)
    magic, flags, moves, parent_hash = _HEAD.unpack_prefix(view)
    if magic != MAGIC:
        raise MalformedPacket(_WHAT, Fault.BAD_MAGIC, repr(magic))
    if flags > _KNOWN_FLAGS:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"flags {flags}")
    term = term_in(view)
    reader = _after_head(view)
    inputs = tuple(reader.input() for _ in reader.count(_INPUT.size + _NAME_WIDTH))
    observed = tuple(reader.observed() for _ in reader.count(_OBSERVED.size))
    outputs = reader.count(_HASH.size + _PAYLOAD_WIDTH)
    pending_parent = reader.hash() if len(outputs) else 0
    pending = tuple(PendingOutput(reader.hash(), reader.payload()) for _ in outputs)
    if len(observed) > MAX_OBSERVED:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"{len(observed)} origins; allowed are {MAX_OBSERVED}")
    return Checkpoint(
        state=bytes(reader.rest),
        parent_hash=parent_hash,
        moves=moves,
        inputs=inputs,
        observed=observed,
        pending=pending,
        pending_parent=pending_parent,
        shadow=bool(flags & _SHADOW),
        term=term,
    )


def is_checkpoint(state: Buffer) -> bool:
    """Return whether the state of a snapshot is a checkpoint, and not the bare state of a daemon."""
    return bytes(state[: len(MAGIC)]) == MAGIC


def moves_in(state: Buffer) -> int:
    """Return how often a daemon with this state had moved; 0 for a bare state. Reads the first bytes only."""
    if not is_checkpoint(state):
        return 0
    moves: int = _HEAD.unpack_prefix(state)[2]
    return moves


def is_shadow(state: Buffer) -> bool:
    """Return whether a state is the checkpoint of a daemon that ran on at its source. Reads the first bytes only."""
    return is_checkpoint(state) and bool(_HEAD.unpack_prefix(state)[1] & _SHADOW)


def term_in(state: Buffer) -> int:
    """Return the term of the ledger in which a state was written; 0 without one. Reads the first bytes only."""
    if not is_checkpoint(state) or not _HEAD.unpack_prefix(state)[1] & _IN_LEDGER:
        return 0
    (term,) = _TERM.unpack_prefix(memoryview(state)[_HEAD.size :])
    return int(term)


def own_state_at(buffer: Buffer) -> int:
    """Return where the daemon's own state begins in a checkpoint; raise MalformedPacket if that cannot be found."""
    view = memoryview(buffer)
    reader = _after_head(view)
    for _ in reader.count(_INPUT.size + _NAME_WIDTH):
        reader.input()
    observed = reader.count(_OBSERVED.size)
    reader.rest = reader.rest[len(observed) * _OBSERVED.size :]
    outputs = reader.count(_HASH.size + _PAYLOAD_WIDTH)
    if len(outputs):
        reader.hash()
    for _ in outputs:
        reader.hash()
        _, reader.rest = take_field(_WHAT, "output", reader.rest, _PAYLOAD_WIDTH)
    return len(view) - len(reader.rest)


def _after_head(view: memoryview) -> _Reader:
    is_in_ledger = _HEAD.unpack_prefix(view)[1] & _IN_LEDGER
    return _Reader(view[_HEAD.size + (_TERM.size if is_in_ledger else 0) :])


class _Reader:
    def __init__(self, rest: memoryview) -> None:
        self.rest = rest

    def count(self, at_least: int) -> range:
        (count,) = _COUNT.unpack_prefix(self.rest)
        self.rest = self.rest[_COUNT.size :]
        # Checked first, so that a huge count costs nothing.
        if count * at_least > len(self.rest):
            raise MalformedPacket(_WHAT, Fault.TRUNCATED, f"{count} entries in {len(self.rest)} bytes")
        return range(count)

    def input(self) -> InputPosition:
        publisher, next_seq = _INPUT.unpack_prefix(self.rest)
        name, self.rest = take_field(_WHAT, "channel", self.rest[_INPUT.size :], _NAME_WIDTH)
        return InputPosition(publisher, unpack_channel(_WHAT, name), next_seq)

    def observed(self) -> tuple[int, int]:
        origin, sequence = _OBSERVED.unpack_prefix(self.rest)
        self.rest = self.rest[_OBSERVED.size :]
        return origin, sequence

    def hash(self) -> int:
        (found,) = _HASH.unpack_prefix(self.rest)
        self.rest = self.rest[_HASH.size :]
        return int(found)

    def payload(self) -> bytes:
        payload, self.rest = take_field(_WHAT, "output", self.rest, _PAYLOAD_WIDTH)
        return bytes(payload)


def _encode_input(position: InputPosition) -> bytes:
    name = pack_channel(position.channel)
    if position.next_seq < 0:
        raise LocalProtocolError(f"{position.channel}: the next sequence must not be negative, got {position.next_seq}")
    return _INPUT.pack(position.publisher, position.next_seq) + bytes((len(name),)) + name
