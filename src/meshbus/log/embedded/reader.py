"""Read an embedded log from its files: no lock, no writer, no waiting.

A snapshot is consistent because the manifest is read before and after the hot files: if it is the same, nothing was
sealed in between. Imports nothing of the writer. The public face is log/reader.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import Wanted, to_batch, wanted
from meshbus.log.embedded.hot import HotIndex, open_hot
from meshbus.log.embedded.inventory import Inventory, take_inventory
from meshbus.log.embedded.logmanifest import Manifest, decode_manifest
from meshbus.log.embedded.marks import Mark, committed_end, read_mark
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.embedded.verify import verify_log
from meshbus.log.files import log_error, reading
from meshbus.log.folder import HOT, MANIFEST, folder_of
from meshbus.log.segment import Segment, read_segment
from meshbus.log.status import Finding
from meshbus.names.channel import ChannelName

_TRIES = 64
"""Attempts to take one snapshot while the log is being sealed; each seal takes much longer than an attempt."""


class FolderReader:
    """Reads one log; remembers the blocks that it has checked, so that the next snapshot only checks new ones."""

    def __init__(self, root: Path, channel: ChannelName) -> None:
        self.channel = channel
        self.folder = folder_of(root, channel)
        self._known: dict[Path, HotIndex] = {}
        self._content = b""
        self._decoded: Manifest | None = None

    def snapshot(self) -> Snapshot:
        """Return the log as it is now.

        Raises LogError if there is none, if its manifest is damaged, or if a newer version of meshbus wrote it.
        """
        for _ in range(_TRIES):
            try:
                with reading(self.folder):
                    manifest = self._manifest()
                    mark = read_mark(self.folder)  # before the hot files, which are then at least as new
                    found = take_inventory(self.folder, manifest, self._known)
            except FileNotFoundError:
                continue
            # Blocks that were checked stay checked: hot files only grow.
            self._known = {index.path: index for index in found.live}
            # The same manifest before and after: nothing was sealed or expired while the hot files were listed.
            if self._manifest() is manifest:
                return shown(self.folder, manifest, found, mark, self.snapshot)
        raise LogError(LogFault.FAILED, f"{self.folder} is sealed faster than it can be read: try again")

    def verify(self) -> list[Finding]:
        """Check every file of the log and return the problems."""
        return verify_log(self.snapshot())

    def _manifest(self) -> Manifest:
        """Return the manifest, as the same object while the file does not change."""
        path = self.folder / MANIFEST
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise LogError(
                LogFault.UNKNOWN,
                f"no log of {self.channel} in {self.folder.parent}; list the logs with `meshbus log ls`",
            ) from None
        except OSError as error:
            raise log_error(error, path, "cannot read") from error
        if self._decoded is None or content != self._content:
            manifest = decode_manifest(content, path)
            if manifest.channel != self.channel:
                raise LogError(
                    LogFault.FOREIGN, f"{self.folder} is the log of {manifest.channel}, not of {self.channel}"
                )
            self._content, self._decoded = content, manifest
        return self._decoded


def shown(folder: Path, manifest: Manifest, found: Inventory, mark: Mark, again: Callable[[], Snapshot]) -> Snapshot:
    """Return what readers see of an inventory: everything, or what is committed of a replicated log."""
    if manifest.replica is msgspec.UNSET:
        return Snapshot(folder, manifest, tuple(index.view() for index in found.live), again, found.damage)
    if found.skipped_to is not None:
        # The writer has not stored this in the manifest yet.
        manifest = msgspec.structs.replace(manifest, first=found.skipped_to, segments=())
    limit = committed_end(mark, found.live, manifest.hot_from)
    views = tuple(index.view(limit) for index in found.live if index.header.first < limit)
    return Snapshot(folder, manifest, views, again, found.damage)


def read_split(
    split: Mapping[str, Any], columns: Sequence[str] | None = None, *, dictionaries: bool = True
) -> Iterator[Any]:
    """Yield the rows of a split as record batches, even if they were sealed or compacted since it was planned.

    Raises LogError if they have expired, or another log took the place of this one.
    """
    want = wanted(columns, dictionaries=dictionaries)
    folder, at = Path(split["folder"]), int(split["first"])
    try:
        with reading(folder):
            for batch in _planned(split, folder, want):
                at += len(batch)
                yield batch
    except FileNotFoundError:  # sealed or compacted since it was planned
        snapshot = FolderReader(folder.parent, ChannelName(split["channel"])).snapshot()
        if snapshot.manifest.log_id != split["log_id"]:
            raise LogError(LogFault.FOREIGN, f"{folder} holds another log now: plan the splits again") from None
        yield from snapshot.batches(at, int(split["end"]), columns, dictionaries=dictionaries)


def _planned(split: Mapping[str, Any], folder: Path, want: Wanted) -> Iterator[Any]:
    first, end = int(split["first"]), int(split["end"])
    if "segment" in split:
        yield from read_segment(folder, msgspec.convert(split["segment"], Segment), want, first, end)
        return
    hot = split["hot"]
    index = open_hot(folder / HOT / hot["name"])
    # Only the blocks of this split are read and checked.
    index.end, index.size = int(hot["first"]), int(hot["start"])
    if (damage := index.extend(int(hot["stop"]))) is not None:
        raise LogError(
            LogFault.CORRUPT,
            f"{index.path}: the block at offset {damage.at} is damaged: {damage.why}; restore the file from a copy",
        )
    for rows in index.view().rows(first, end):
        yield to_batch(rows, index.header, want, max(first, rows.first), min(end, rows.end))
