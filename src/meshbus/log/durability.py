"""When appended events are on the disk: the settings of a log, each with its exact guarantee.

`append` returns after the operating system has the events, so the death of the process never loses any. The fsync
policy decides what a crash of the machine can lose:

    NEVER            everything since the last `sync`, seal or close that the system had not written by itself
    every_n(n)       fewer than n events: append waits for the disk when n are unsynced; every_n(1) loses nothing
    interval(s)      what was appended in the last s seconds, and while the disk was busy with a sync or a seal

In each case, what remains is a prefix of what was appended. docs/guide/durability.md has the table.
"""

from __future__ import annotations

import msgspec

from meshbus.errors import ConfigError
from meshbus.log.objectstore import check_uri

_PARTS = 8
"""A hot file takes at most one part in this many of the size limit."""


class Fsync(msgspec.Struct, frozen=True):
    """When to wait for the disk; use NEVER, every_n or interval."""

    events: int | None = None
    """Wait in `append` when this many events are not yet on the disk."""
    seconds: float | None = None
    """Sync in the background at this interval."""


NEVER = Fsync()
"""Only `sync`, sealing and closing wait for the disk."""


def every_n(events: int) -> Fsync:
    """Wait for the disk in the append that brings the number of unsynced events to `events`; 1 is every append."""
    if events < 1:
        raise ConfigError("fsync", f"every_n needs at least 1 event, got {events}")
    return Fsync(events=events)


def interval(seconds: float) -> Fsync:
    """Sync in the background every `seconds`, while there is something to sync."""
    if not seconds > 0:
        raise ConfigError("fsync", f"interval must be positive, got {seconds} seconds")
    return Fsync(seconds=seconds)


class Retention(msgspec.Struct, frozen=True):
    """How much of a log is kept. A segment expires as a whole, as soon as one of the limits requires it."""

    max_age_s: float | None = None
    """A segment expires when its last event was written longer ago than this."""
    max_bytes: int | None = None
    """Size of everything: segments, wherever they are, hot files, and what is kept for running readers, which goes first."""
    max_events: int | None = None
    """A segment expires when this many events follow it."""


class Tiering(msgspec.Struct, frozen=True):
    """When sealed segments move to object storage; `Retention` goes on deciding when they expire, wherever they are."""

    uri: str
    """Where to: `s3://bucket/prefix` or `file:///directory` (log/objectstore.py)."""
    after_s: float | None = None
    """A segment is copied when its last event was written longer ago than this."""
    local_bytes: int | None = None
    """Size of the local segments and hot files above which the oldest segments are copied, and local files of copied
    segments are removed. None: local files are removed as soon as their copies are verified."""

    def __post_init__(self) -> None:
        check_uri(self.uri)
        if self.after_s is None and self.local_bytes is None:
            raise ConfigError("after_s", "required to move segments, unless local_bytes is set")


class LogConfig(msgspec.Struct, frozen=True):
    """Settings of one log."""

    # A crash of the machine then loses about a second, and no append waits for a disk.
    fsync: Fsync = interval(1.0)
    retention: Retention = Retention()
    # Recovery reads the hot files completely before a log opens, so their size bounds that time (docs/decisions/0010).
    seal_bytes: int = 64 << 20
    """A hot file is sealed at this size, or at an eighth of `max_bytes` or `local_bytes`; compaction merges small segments up to it."""
    seal_age_s: float = 3600.0
    """A hot file is sealed at this age, however small it is."""
    grace_s: float = 600.0
    """How long replaced and expired segments are kept for readers that have planned to read them."""
    tier: Tiering | None = None
    """When sealed segments move to object storage; never by default."""

    @property
    def file_bytes(self) -> int:
        """The size at which a hot file is complete: a log expires by whole files, so its limit holds several."""
        limits = [self.retention.max_bytes, self.tier.local_bytes if self.tier else None]
        return max(min([self.seal_bytes, *(limit // _PARTS for limit in limits if limit is not None)]), 1)
