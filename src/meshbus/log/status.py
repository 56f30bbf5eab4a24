"""Values that a log reports about itself: what it holds, what it did, and what is wrong with it.

Every backend uses these types (log/backend.py), so the command line, Spark and the node read them the same way.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class ChannelEntry(msgspec.Struct, frozen=True):
    """One log below a root folder."""

    channel: str
    folder: Path
    log_id: str
    """32 hex digits."""


class SegmentFile(msgspec.Struct, frozen=True):
    """One sealed Parquet file of a log, in the schema of log/schema.py."""

    path: Path
    first: int
    end: int
    """One past its last sequence."""
    bytes: int
    uri: str | None = None
    """Its verified copy on object storage, if there is one."""
    local: bool = True
    """Whether there is a file at `path`."""

    @property
    def place(self) -> str:
        """Where it is: `local`, `both` or `remote`."""
        return "local" if self.uri is None else "both" if self.local else "remote"


class ReplicaStatus(msgspec.Struct, frozen=True):
    """What a replicated log has beside its committed events."""

    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges that were skipped, because no member had them any more: the first missing sequence and one past the last."""
    set_aside: int = 0
    """Events that were set aside, because the leader did not have them; they are kept in side files."""
    damaged_files: int = 0
    """Damaged files that were kept when the log was cut before them."""


class Report(msgspec.Struct, frozen=True):
    """What opening a log found and repaired."""

    created: bool = False
    cut_bytes: int = 0
    """Bytes of a torn tail that were cut; none of them was acknowledged as synced."""
    cut_why: str = ""
    removed: tuple[str, ...] = ()
    """Files that a crash left behind."""
    foreign: tuple[str, ...] = ()
    """Files that are named like segments but do not belong to this log; they were not touched."""

    @property
    def clean(self) -> bool:
        """Whether there was nothing to repair: the last writer closed the log, or there was none."""
        return not (self.cut_bytes or self.removed or self.foreign)


class LogStats(msgspec.Struct):
    """What a log has done since it was opened."""

    appended: int = 0
    """Events."""
    appended_bytes: int = 0
    """Bytes written for them."""
    refused: int = 0
    """Appends that the disk refused; they used no sequence."""
    syncs: int = 0
    seals: int = 0
    seals_behind: int = 0
    """Seals while others waited; their payloads are not compressed."""
    unsealed: int = 0
    """Events that wait to be sealed in files that are complete; 0 unless a seal is in progress or failed."""
    compactions: int = 0
    expired: int = 0
    """Events."""
    upkeep_failures: int = 0
    """Failed attempts to seal, compact or expire in the background; each is retried."""
    copied: int = 0
    """Segments that were copied to object storage and verified."""
    copied_bytes: int = 0
    copy_failures: int = 0
    """Failed attempts to copy to object storage, or to delete there; each is retried."""
    waits: str = ""
    """Why the log waits for object storage, in one sentence; empty if it does not."""


class Finding(msgspec.Struct, frozen=True):
    """One problem that verification found in a log."""

    file: str
    first: int
    """The first sequence affected."""
    end: int
    problem: str
