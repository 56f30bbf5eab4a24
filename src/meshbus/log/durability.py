"""When what was appended is on the disk: the choices of a log, each with its exact promise.

`append` always returns after the operating system has the events, so the death of the process loses nothing. The policy
decides what the death of the machine loses:

    NEVER            everything since the last `sync`, seal or close that the system had not written by itself
    every_n(n)       fewer than n events: append waits for the disk when n are waiting; every_n(1) loses nothing
    interval(s)      what was appended in the last s seconds, and while the disk was at work

In each case what remains is a prefix of what was appended. docs/guide/durability.md has the table.
"""

from __future__ import annotations

import msgspec

from meshbus.errors import ConfigError


class Fsync(msgspec.Struct, frozen=True):
    """When to wait for the disk; make it with NEVER, every_n or interval."""

    events: int | None = None
    """Wait in `append` when so many events are not yet on the disk."""
    seconds: float | None = None
    """Sync in the background so often."""


NEVER = Fsync()
"""Only `sync`, sealing and closing wait for the disk."""


def every_n(events: int) -> Fsync:
    """Wait for the disk in the append that makes so many events unsynced; 1 is every append."""
    if events < 1:
        raise ConfigError("fsync", f"every_n({events}): expected 1 or more")
    return Fsync(events=events)


def interval(seconds: float) -> Fsync:
    """Sync in the background every so many seconds, while there is something to sync."""
    if not seconds > 0:
        raise ConfigError("fsync", f"interval({seconds}): expected more than 0 seconds")
    return Fsync(seconds=seconds)


class Retention(msgspec.Struct, frozen=True):
    """How much of a log is kept; whichever limit asks for most wins. Whole segments expire, never parts of one."""

    max_age_s: float | None = None
    """A segment expires when its last event was written longer ago."""
    max_bytes: int | None = None
    """On disk, the hot tail included."""
    max_events: int | None = None


class LogConfig(msgspec.Struct, frozen=True):
    """How one log is kept."""

    fsync: Fsync = interval(1.0)
    retention: Retention = Retention()
    seal_bytes: int = 64 << 20
    """A hot file that has grown to this is sealed; also what compaction makes of small segments."""
    seal_age_s: float = 3600.0
    """A hot file is sealed when it is this old, however small."""
    grace_s: float = 600.0
    """How long replaced and expired segments stay for readers that have planned to read them."""
