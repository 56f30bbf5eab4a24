"""Continuity: proofs over a range of a chain (0x0702) and records of forks (0x0701), as state.md §5 lays them out.

Neither is signed. A proof is compared with one's own copy of the chain, a fork record explains why a chain with a new
origin starts where another one ends (compute/continuity.py).
"""

from __future__ import annotations

import msgspec
import xxhash

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout
from meshbus.wire.messages.causal import LINK_BYTES, CausalLink, pack_link, unpack_link

_PROOF = Layout("continuity proof", "<QQQQQ")
_FORK = Layout("fork record", f"<QQQ{LINK_BYTES}sBQ")
_SENTINEL_LABEL = b"fork"


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
