"""Prepare the folder of a log for appending: create it, or repair what a crash left.

A step that a crash interrupted is completed or undone. Afterwards the manifest names every segment in the folder, the
hot files end with a whole block, and everything is synced. What was cut is reported. The caller holds the lock.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.block import HotHeader, pack_control, pack_file_header
from meshbus.log.embedded.hot import HotIndex
from meshbus.log.embedded.inventory import Inventory, take_inventory
from meshbus.log.embedded.logmanifest import Manifest, load_manifest, store_manifest
from meshbus.log.embedded.upkeep import move_retired
from meshbus.log.folder import HOT, MANIFEST, OLD, hot_files, hot_name, is_aside, segment_range
from meshbus.log.segment import Segment, describe_segment
from meshbus.log.status import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshbus.log.files import Files
    from meshbus.names.channel import ChannelName

LOG_ID_BYTES = 16


class Recovered(NamedTuple):
    """A log that is ready for appending."""

    manifest: Manifest
    hot: list[HotIndex]
    report: Report


class Opened(NamedTuple):
    """How a hot file of a replicated log begins."""

    turn: int
    record: bytes
    """Its opening (log/embedded/controls.py)."""
    durable: int


def recover(
    files: Files, folder: Path, channel: ChannelName, now_ns: int, entropy: Callable[[int], bytes] = os.urandom
) -> Recovered:
    """Create or repair a log; raises LogError if durable events are damaged or the folder holds another log."""
    for name in (HOT, OLD):  # before the manifest: it tells readers that the folders exist
        files.make_folder(folder / name)
    created = not (folder / MANIFEST).exists()
    if created:
        if holds_events(folder):
            raise LogError(
                LogFault.CORRUPT,
                f"{folder} holds events but no {MANIFEST}: restore that from a copy, or move the folder away",
            )
        manifest = store_manifest(files, folder, Manifest(str(channel), entropy(LOG_ID_BYTES).hex(), now_ns))
    else:
        manifest = load_manifest(folder)
    if manifest.channel != channel:
        raise LogError(LogFault.FOREIGN, f"{folder} is the log of {manifest.channel}, not of {channel}")
    if manifest.replica is not UNSET:
        raise LogError(
            LogFault.FOREIGN,
            f"{folder} is a replica of {channel}: set the channel's replicas again, or move the folder away",
        )
    sync_folders(files, folder)
    found = take_inventory(folder, manifest)
    if found.damage:
        raise LogError(LogFault.CORRUPT, found.damage)
    return repair(files, folder, manifest, found, created=created)


def sync_folders(files: Files, folder: Path) -> None:
    """Sync the names of a log's folder and those above it: a crash may have interrupted the opening that created them."""
    for place in (folder, folder.parent, folder.parent.parent):
        files.fsync_folder(place)


def holds_events(folder: Path) -> bool:
    """Return whether there are events although nothing tells which count; a new log would begin at 0 beside them."""
    return bool(hot_files(folder)) or any(segment_range(path.name) for path in folder.iterdir())


def repair(files: Files, folder: Path, manifest: Manifest, found: Inventory, *, created: bool) -> Recovered:
    """Complete or undo what a crash interrupted in a log without damage."""
    sealed = _sealed_only(folder, manifest, found)
    if sealed is not None:
        manifest = store_manifest(files, folder, replace(manifest, segments=(*manifest.segments, sealed)))
        found = take_inventory(folder, manifest)
    # Everything from here on only removes what is not part of the log.
    removed, foreign = _leftovers(folder, manifest, found)
    cut = _cut(files, folder, found)
    removed += [*found.stale, *found.beyond, *found.replaced]
    for path in removed:
        files.remove(path)
    # A crash may have come between the manifest that retired them and their move.
    move_retired(files, folder, manifest.retired)
    if removed or cut:
        files.fsync_folder(folder / HOT)
        files.fsync_folder(folder)
    why = found.torn.why if found.torn else ""
    report = Report(created, cut, why, tuple(path.name for path in removed), tuple(path.name for path in foreign))
    return Recovered(manifest, found.live, report)


def create_hot(
    files: Files, folder: Path, manifest: Manifest, first: int, now_ns: int, opened: Opened | None = None
) -> tuple[HotIndex, int]:
    """Create a hot file and return its index and handle; neither its name nor its content is synced."""
    header = HotHeader(manifest.channel, manifest.id_bytes, first, now_ns)
    start = pack_file_header(header)
    if opened is not None:
        start += pack_control(first, opened.record, key=header.key, written_ns=now_ns, durable=opened.durable)
    path = folder / HOT / hot_name(first, opened.turn if opened else 0)
    files.remove(path)  # left without events by an attempt that failed
    handle = files.create(path)
    try:
        files.write(handle, [start], 0)
    except OSError:
        files.close(handle)
        files.remove(path)
        raise
    index = HotIndex(path, header)
    index.size = len(start)
    return index, handle


def _sealed_only(folder: Path, manifest: Manifest, found: Inventory) -> Segment | None:
    """Return the segment that was being added to the log if the hot file that it was sealed from lost rows, else None.

    A hot file is sealed without waiting until it is on the disk. The segment itself is whole: it was synced before it got
    its name.
    """
    end = found.live[-1].end if found.live else manifest.hot_from
    for path in folder.iterdir():
        span = segment_range(path.name)
        if span and span[0] == manifest.hot_from and span[1] > end:
            return describe_segment(path, manifest.id_bytes)
    return None


def _leftovers(folder: Path, manifest: Manifest, found: Inventory) -> tuple[list[Path], list[Path]]:
    """Return the files to remove, and those of someone else, among what the manifest does not name.

    A crash leaves files under temporary names, and segments that the manifest does not name. Such a segment is removed
    only if its rows are also elsewhere: in the hot files that it was sealed from, or the segments it was merged from.
    (If the hot file lost rows, the manifest names it by now.)
    """
    removed = [path for path in folder.iterdir() if is_aside(path)]
    foreign: list[Path] = []
    known = {segment.name for segment in manifest.segments} | {old.name for old in manifest.retired}
    end = found.live[-1].end if found.live else manifest.hot_from
    # The rows of a segment outside the range of the log may be nowhere else: leave it, and report it.
    for path in folder.iterdir():
        span = segment_range(path.name)
        if span and path.name not in known:
            (removed if manifest.first <= span[0] and span[1] <= end else foreign).append(path)
    return removed, foreign


def _cut(files: Files, folder: Path, found: Inventory) -> int:
    """Cut the torn tail, sync what remains, and return the number of bytes cut."""
    cut = sum(path.stat().st_size for path in found.beyond)
    for index in found.live:
        handle = files.reopen(index.path)
        try:
            if found.torn and index is found.live[-1]:
                files.truncate(handle, index.size)
                cut += found.torn.size - index.size
            # A killed process may have written without a sync; readers count on these blocks once the log is open.
            files.fsync(handle)
        finally:
            files.close(handle)
    if found.live:
        files.fsync_folder(folder / HOT)
    return cut
