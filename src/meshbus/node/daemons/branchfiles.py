"""Branches of histories that lost, in files: they outlive a restart of the node.

    DIRECTORY/histories/0123456789abcdef/fedcba9876543210     one branch: chain and branch, by their origin hashes

A file has the fork record (65 bytes), the events as on 0x0400, and a checksum over both (XXH3-64). It is written beside its
place, synced and renamed, so it is there as a whole or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from meshbus.compute.heldchain import MAX_BRANCHES, LostBranch, branch_of
from meshbus.errors import LogError, LogFault, RemoteProtocolError
from meshbus.wire.messages.causal import LINK_BYTES, decode_causal, encode_causal
from meshbus.wire.messages.continuity import FORK_BYTES, decode_fork, encode_fork

_FOLDER = "histories"
_SUM_BYTES = 8


class BranchFiles:
    """The branches that a node keeps on disk."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / _FOLDER

    def save(self, branch: LostBranch) -> None:
        """Write a branch; the oldest of its chain goes if there are too many. Raises LogError if the disk refuses."""
        record = branch.record
        folder = self._folder / f"{record.original_origin:016x}"
        data = encode_fork(record) + encode_causal(branch.events)
        path = folder / f"{record.forked_origin:016x}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            kept = sorted((one for one in folder.iterdir() if not one.suffix), key=lambda one: one.stat().st_mtime_ns)
            beside = path.with_suffix(".new")
            with beside.open("wb") as file:
                file.write(data + xxhash.xxh3_64_digest(data)[:_SUM_BYTES])
                file.flush()
                os.fsync(file.fileno())
            beside.rename(path)
            for old in kept[: max(len(kept) + 1 - MAX_BRANCHES, 0)]:
                old.unlink()
        except OSError as error:
            raise LogError(LogFault.FAILED, f"{path}: {error}") from error

    def load(self, origin: int) -> list[LostBranch]:
        """Return the branches of a chain, the oldest first; a damaged file is left out."""
        folder = self._folder / f"{origin:016x}"
        if not folder.is_dir():
            return []
        paths = sorted((one for one in folder.iterdir() if not one.suffix), key=lambda one: one.stat().st_mtime_ns)
        found = (_read(path.read_bytes()) for path in paths)
        return [branch for branch in found if branch is not None and branch.record.original_origin == origin]


def _read(raw: bytes) -> LostBranch | None:
    data, digest = raw[:-_SUM_BYTES], raw[-_SUM_BYTES:]
    if len(data) < FORK_BYTES + LINK_BYTES or xxhash.xxh3_64_digest(data) != digest:
        return None
    try:
        record = decode_fork(data[:FORK_BYTES])
    except RemoteProtocolError:
        return None
    events = decode_causal(data[FORK_BYTES:], len(data))
    branch = branch_of(record.original_origin, events) if events else None
    return branch if branch is not None and branch.record == record else None
