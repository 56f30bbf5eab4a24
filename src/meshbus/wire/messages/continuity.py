"""Continuity: proofs over a range of a chain (0x0702) and records of forks (0x0701), as state.md §5 lays them out.

Neither is signed. A proof is compared with one's own copy of the chain, a fork record explains why a chain with a new
origin starts where another one ends (compute/continuity.py). net-mesh 0.23 has no message on 0x0700; here it asks for a
proof, and answers one (docs/wire/profile.md).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec
import xxhash

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout
from meshbus.wire.messages.causal import LINK_BYTES, CausalLink, pack_link, unpack_link

_PROOF = Layout("continuity proof", "<QQQQQ")
_FORK = Layout("fork record", f"<QQQ{LINK_BYTES}sBQ")
_PROVE = Layout("continuity message", "<BQQQ")
_VERDICT = Layout("continuity message", "<BQQQB")
_SENTINEL_LABEL = b"fork"
FORK_BYTES = _FORK.size
"""65: the length of a fork record."""


class ContinuityProof(msgspec.Struct, frozen=True):
    """The claim that a chain runs from one event to another, fields in wire order."""

    origin_hash: int
    from_seq: int
    to_seq: int
    from_hash: int
    """`hash_event` of the event at `from_seq`."""
    to_hash: int


class ForkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A chain that continues as another one, under an origin of its own."""

    original_origin: int
    forked_origin: int
    fork_seq: int
    """Number of the first event that the original and the fork do not share."""
    snapshot_seq: int | None = None
    """Number of the event up to which the fork started from a snapshot."""
    horizon: int = 0
    """What the fork had observed when it began; nobody checks it."""

    @property
    def genesis(self) -> CausalLink:
        """The link that the first event of the fork follows."""
        sentinel = fork_sentinel(self.original_origin, self.fork_seq)
        return CausalLink(self.forked_origin, self.horizon, parent_hash=sentinel)


class _Kind(IntEnum):
    PROVE = 1
    VERDICT = 2


class Verdict(IntEnum):
    """What a node found when it compared a proof with its own copy of the chain, in the order of the checks."""

    HOLDS = 0
    ORIGIN_MISMATCH = 1
    INVALID_RANGE = 2
    SPAN_TOO_LARGE = 3
    MISSING_EVENT = 4
    HASH_MISMATCH = 5
    BUSY = 6
    """Too many proofs were sent; try again later."""


class Prove(msgspec.Struct, frozen=True):
    """Asks for a proof over a range of a chain, as far as the receiver has it."""

    origin_hash: int
    from_seq: int
    to_seq: int


class Judged(msgspec.Struct, frozen=True):
    """Answers a proof, or the question for one that cannot be given."""

    origin_hash: int
    from_seq: int
    to_seq: int
    verdict: Verdict


ContinuityMessage: TypeAlias = Prove | Judged


def encode_continuity(message: ContinuityMessage) -> bytes:
    """Write a message of 0x0700."""
    match message:
        case Prove(origin_hash=origin, from_seq=first, to_seq=last):
            return _PROVE.pack(_Kind.PROVE, origin, first, last)
        case Judged(origin_hash=origin, from_seq=first, to_seq=last, verdict=verdict):
            return _VERDICT.pack(_Kind.VERDICT, origin, first, last, verdict)


def decode_continuity(buffer: Buffer) -> ContinuityMessage:
    """Read a message of 0x0700."""
    match buffer[0] if len(buffer) else None:
        case None:
            raise MalformedPacket("continuity message", Fault.TRUNCATED, "empty")
        case _Kind.PROVE:
            return Prove(*_PROVE.unpack(buffer)[1:])
        case _Kind.VERDICT:
            _, origin, first, last, verdict = _VERDICT.unpack(buffer)
            if verdict > Verdict.BUSY:
                raise MalformedPacket("continuity message", Fault.BAD_VALUE, f"verdict {verdict}")
            return Judged(origin, first, last, Verdict(verdict))
        case kind:
            raise MalformedPacket("continuity message", Fault.UNKNOWN_KIND, f"kind {kind}")


def fork_sentinel(original_origin: int, fork_seq: int) -> int:
    """Return the parent hash of a fork's genesis link, which names what it was forked from."""
    fields = original_origin.to_bytes(8, "little") + fork_seq.to_bytes(8, "little")
    return xxhash.xxh3_64_intdigest(fields + _SENTINEL_LABEL)


def encode_proof(proof: ContinuityProof) -> bytes:
    """Write the 40 bytes of a proof."""
    return _PROOF.pack(*msgspec.structs.astuple(proof))


def decode_proof(buffer: Buffer) -> ContinuityProof:
    """Read a proof; whether it is true is another question."""
    return ContinuityProof(*_PROOF.unpack(buffer))


def encode_fork(record: ForkRecord) -> bytes:
    """Write the 65 bytes of a fork record."""
    has_snapshot = record.snapshot_seq is not None
    origins = record.original_origin, record.forked_origin
    return _FORK.pack(*origins, record.fork_seq, pack_link(record.genesis), has_snapshot, record.snapshot_seq or 0)


def decode_fork(buffer: Buffer) -> ForkRecord:
    """Read a fork record, whose genesis link must be the one that follows from its other fields."""
    original, forked, fork_seq, genesis, has_snapshot, snapshot_seq = _FORK.unpack(buffer)
    link = unpack_link(genesis)
    record = ForkRecord(
        original_origin=original,
        forked_origin=forked,
        fork_seq=fork_seq,
        snapshot_seq=snapshot_seq if has_snapshot else None,
        horizon=link.horizon,
    )
    if original == forked:
        raise MalformedPacket("fork record", Fault.BAD_VALUE, "the fork has the origin of the original")
    if link != record.genesis:
        raise MalformedPacket("fork record", Fault.BAD_VALUE, "the genesis link does not belong to this fork")
    return record
