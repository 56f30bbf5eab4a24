"""Where a reader of many logs stands: for each channel the first sequence that it has not read. Plain dicts as JSON.

    {"v": 1, "next": {"sensors/lidar": 4096}, "logs": {"sensors/lidar": "<log id>"}}

Spark keeps these in its checkpoints and hands them back after a crash, so they hold numbers and text only, and old ones
stay readable. A channel that is missing has not been seen yet: it begins at its first available sequence. The log id
tells when a channel's log was replaced by another one; offsets of an older form may lack it.

Nothing here touches a file; the logs themselves are read in spark/io/datasource.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from meshbus.errors import ConfigError, LogError, LogFault

VERSION = 1


class Extent(msgspec.Struct, frozen=True):
    """What a log holds now: every sequence from `first` up to `end`, which is excluded."""

    first: int
    end: int
    log_id: str
    row_bytes: float = 0.0
    """Bytes on disk per row, about."""


class Gap(msgspec.Struct, frozen=True):
    """Sequences that expired before they were read."""

    channel: str
    first: int
    end: int
    """One past the last."""


def offset_of(following: Mapping[str, int], logs: Mapping[str, str]) -> dict[str, Any]:
    """Make an offset."""
    return {"v": VERSION, "next": dict(sorted(following.items())), "logs": dict(sorted(logs.items()))}


def next_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """Read an offset; raises ConfigError for one that is none, or that a newer meshbus wrote."""
    version = offset.get("v")
    if not isinstance(version, int) or not isinstance(offset.get("next"), Mapping):
        raise ConfigError("offset", f"{dict(offset)} is no offset of meshbus: the checkpoint belongs to another source")
    if version > VERSION:
        raise ConfigError("offset", f"version {version} was written by a newer meshbus: use that one")
    return {str(channel): int(seq) for channel, seq in offset["next"].items()}


def first_offset(extents: Mapping[str, Extent], starting: str) -> dict[str, Any]:
    """Give the offset at which a new reader begins: `earliest`, `latest`, or JSON of channels and sequences.

    Raises ConfigError for anything else.
    """
    match starting:
        case "earliest":
            following = {channel: extent.first for channel, extent in extents.items()}
        case "latest":
            following = {channel: extent.end for channel, extent in extents.items()}
        case _:
            try:
                following = msgspec.json.decode(starting, type=dict[str, int])
            except msgspec.MsgspecError:
                raise ConfigError(
                    "startingOffsets", f'{starting!r} is none of: earliest, latest, {{"channel": sequence, ...}}'
                ) from None
    return offset_of(following, {name: extent.log_id for name, extent in extents.items() if name in following})


def advance(
    start: Mapping[str, Any], extents: Mapping[str, Extent], *, rows: int | None = None, size: int | None = None
) -> dict[str, Any]:
    """Give the offset up to which the next batch reads: everything, or at most so many rows or bytes on disk.

    What there is room for is divided fairly: a channel with little to read leaves its share to the others. There is
    always progress where there is something to read.
    """
    begun = next_of(start)
    pending = {}
    for channel, extent in extents.items():
        at = max(begun.get(channel, extent.first), extent.first)
        if extent.end > at:
            pending[channel] = (at, extent.end - at)
    taken = {channel: waiting for channel, (_, waiting) in pending.items()}
    if size is not None:
        costs = {channel: max(extents[channel].row_bytes, 1.0) for channel in pending}
        wanted = {channel: round(waiting * costs[channel]) for channel, waiting in taken.items()}
        shares = share(wanted, size)
        taken = {channel: min(taken[channel], int(shares[channel] // costs[channel])) for channel in taken}
    if rows is not None:
        taken = share(taken, rows)
    if pending and not any(taken.values()):
        taken[min(pending)] = 1
    following = begun | {channel: at + taken[channel] for channel, (at, _) in pending.items() if taken[channel]}
    logs = {**start.get("logs", {}), **{name: extents[name].log_id for name in following if name in extents}}
    return offset_of(following, logs)


def share(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide a limit so that nobody gets more than wanted and the smallest share is as large as it can be."""
    given = dict.fromkeys(wanted, 0)
    left = limit
    waiting = sorted(wanted, key=lambda name: (wanted[name], name))
    while waiting:
        fair, name = left // len(waiting), waiting.pop(0)
        given[name] = min(wanted[name], fair)
        left -= given[name]
    return given


def ranges(
    start: Mapping[str, Any], end: Mapping[str, Any], extents: Mapping[str, Extent]
) -> tuple[dict[str, tuple[int, int]], list[Gap]]:
    """Give what lies between two offsets for each channel, cut to what is still there, and what is not.

    Raises LogError when a log was replaced by another one since, or has lost its end.
    """
    begun, found, gaps = next_of(start), {}, []
    for channel, stop in next_of(end).items():
        extent = extents.get(channel)
        at = begun.get(channel, extent.first if extent else stop)
        if at >= stop:
            continue
        if extent is None:
            gaps.append(Gap(channel, at, stop))
            continue
        known = {**start.get("logs", {}), **end.get("logs", {})}.get(channel, extent.log_id)
        if known != extent.log_id:
            raise LogError(
                LogFault.FOREIGN,
                f"channel {channel!r}: the log was replaced since sequence {at} was read:"
                " start anew with another checkpoint and other tables, or put the old log back",
            )
        if extent.end < stop:
            raise LogError(
                LogFault.CORRUPT,
                f"{channel!r} now ends before {extent.end}, and {stop - 1} was there: a block is damaged (`meshbus log"
                " verify` says which), or this is an older copy; put back what was there, or start anew with other tables",
            )
        if at < extent.first:
            gaps.append(Gap(channel, at, min(extent.first, stop)))
        if max(at, extent.first) < stop:
            found[channel] = (max(at, extent.first), stop)
    return found, gaps


def lag_of(read: Mapping[str, Any], latest: Mapping[str, Any]) -> int:
    """Say how many rows lie between two offsets."""
    begun = next_of(read)
    return sum(max(stop - begun.get(channel, 0), 0) for channel, stop in next_of(latest).items())
