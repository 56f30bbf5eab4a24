"""Streaming offsets over many logs: for each channel, the next sequence to read. Plain dicts that Spark stores as JSON.

    {"v": 1, "next": {"sensors/lidar": 4096}, "logs": {"sensors/lidar": "<log id>"}}

Spark keeps offsets in its checkpoints and passes them back after a crash, so they contain only numbers and text, and old
versions stay readable. A channel that is absent has not been seen yet and starts at its first available sequence. The log
id reveals that the log of a channel was replaced; offsets written by early versions may lack it.

Pure functions: no file is read here. The logs are read by spark/io/inputs.py and spark/io/datasource.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from meshbus.errors import UNDECODABLE, ConfigError, LogError, LogFault
from meshbus.formats import Format

VERSION = 1
"""Version of the offset format. Offsets of a higher version are refused."""

ON_DISK = (
    Format(
        name="offset of a query",
        where="checkpoints of Spark, and `_batches/` of a pipeline",
        what="the next sequence of each log that a query or a batch reads",
        version=VERSION,
        mark='`"v"`',
        refused="the query that has this checkpoint",
    ),
)


class Extent(msgspec.Struct, frozen=True):
    """The rows that a log has at present: sequences `first` up to, but not including, `end`."""

    first: int
    end: int
    log_id: str
    row_bytes: float = 0.0
    """Approximate bytes on disk per row."""


class Gap(msgspec.Struct, frozen=True):
    """A range of sequences that expired before it was read."""

    channel: str
    first: int
    end: int
    """One past the last sequence."""


def offset_of(following: Mapping[str, int], logs: Mapping[str, str]) -> dict[str, Any]:
    """Return an offset made of the next sequence and the log id of each channel."""
    return {"v": VERSION, "next": dict(sorted(following.items())), "logs": dict(sorted(logs.items()))}


def next_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """Return the next sequence of each channel; raises ConfigError if the offset is malformed or of a newer version."""
    version = offset.get("v")
    if not isinstance(version, int) or not isinstance(offset.get("next"), Mapping):
        raise ConfigError(
            "offset", f"{dict(offset)} is not a meshbus offset; use the checkpoint that belongs to this query"
        )
    if problem := ON_DISK[0].problem(version):
        raise ConfigError("offset", problem)
    return {str(channel): int(seq) for channel, seq in offset["next"].items()}


def first_offset(extents: Mapping[str, Extent], starting: str) -> dict[str, Any]:
    """Return the offset at which a new query starts: `earliest`, `latest`, or JSON of channels and sequences.

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
            except UNDECODABLE:
                raise ConfigError(
                    "startingOffsets", f'must be earliest, latest or {{"channel": sequence, ...}}, got {starting!r}'
                ) from None
    return offset_of(following, {name: extent.log_id for name, extent in extents.items() if name in following})


def advance(
    start: Mapping[str, Any], extents: Mapping[str, Extent], *, rows: int | None = None, size: int | None = None
) -> dict[str, Any]:
    """Return the end offset of the next batch: everything available, or at most `rows` rows or `size` bytes on disk.

    The limit is shared fairly: what a channel does not need goes to the others. If there is anything to read, the batch
    has at least one row, however small the limit.
    """
    begun = next_of(start)
    pending = {}
    for channel, extent in extents.items():
        # Rows below `first` have expired; `ranges` reports them as a gap.
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
    # A limit below the cost of one row must not stop the query for good.
    if pending and not any(taken.values()):
        taken[min(pending)] = 1
    following = begun | {channel: at + taken[channel] for channel, (at, _) in pending.items() if taken[channel]}
    logs = {**start.get("logs", {}), **{name: extents[name].log_id for name in following if name in extents}}
    return offset_of(following, logs)


def amount(start: Mapping[str, int], end: Mapping[str, int], extents: Mapping[str, Extent]) -> dict[str, int]:
    """Return how many rows, and about how many bytes on disk, are between the next sequences of two offsets."""
    rows = {
        name: max(end.get(name, extent.first) - max(start.get(name, extent.first), extent.first), 0)
        for name, extent in extents.items()
    }
    size = sum(count * extents[name].row_bytes for name, count in rows.items())
    return {"rows": sum(rows.values()), "bytes": round(size)}


def share(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide a limit by max-min fairness: no share exceeds what is wanted, and the smallest share is maximal."""
    # spark.md §4. Smallest wish first: what it leaves over raises the fair share of the others.
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
    """Return the range between two offsets for each channel, cut to what is still available, and the gaps.

    Raises LogError if a log was replaced, or if it now ends before a sequence that it had.
    """
    begun, found, gaps = next_of(start), {}, []
    for channel, stop in next_of(end).items():
        extent = extents.get(channel)
        at = begun.get(channel, extent.first if extent else stop)
        if at >= stop:
            continue
        if extent is None:  # the whole log is gone
            gaps.append(Gap(channel, at, stop))
            continue
        # Sequences of another log start again at 0 and would be taken for rows that were read.
        known = {**start.get("logs", {}), **end.get("logs", {})}.get(channel, extent.log_id)
        if known != extent.log_id:
            raise LogError(
                LogFault.FOREIGN,
                f"channel {channel!r}: the log was replaced after sequence {at} was read; restore the old log,"
                " or start with a new checkpoint and new tables",
            )
        if extent.end < stop:
            raise LogError(
                LogFault.CORRUPT,
                f"channel {channel!r}: the log ends before sequence {extent.end}, but {stop - 1} was there: a block is"
                " damaged, or this is an older copy; run 'meshbus log verify', then restore the log or start with new"
                " tables",
            )
        if at < extent.first:
            gaps.append(Gap(channel, at, min(extent.first, stop)))
        if max(at, extent.first) < stop:
            found[channel] = (max(at, extent.first), stop)
    return found, gaps
