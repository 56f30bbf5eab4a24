"""Read logs that another process writes, or nobody: no lock, no writer, no waiting.

    for entry in list_channels(root): ...
    snapshot = LogReader(root, "sensors/lidar").snapshot()
    for batch in snapshot.batches(columns=["seq", "payload"]): ...
    splits = snapshot.splits()            # plain dicts; in another process: read_split(split, ["seq", "payload"])

A snapshot is consistent because the manifest is read before and after the hot files: when it is the same, nothing was
sealed in between. Imports nothing of the writer; a Spark worker needs no more than this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import Wanted, to_batch, wanted
from meshbus.log.embedded.hot import HotIndex, open_hot
from meshbus.log.embedded.inventory import take_inventory
from meshbus.log.embedded.logmanifest import Manifest, Segment, decode_manifest, load_manifest
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.folder import HOT, MANIFEST, folder_of
from meshbus.log.segment import read_segment
from meshbus.names.channel import ChannelName

_TRIES = 64
"""How often a log may be sealed while one snapshot is taken."""


class ChannelEntry(msgspec.Struct, frozen=True):
    """One log below a root."""

    channel: str
    folder: Path
    log_id: str


def log_folders(root: Path) -> list[Path]:
    """List the folders below a root that hold a log; other things are passed over.

    Raises LogError when the root is no folder.
    """
    if not root.is_dir():
        raise LogError(LogFault.UNKNOWN, f"{root} is no folder of logs: check the path")
    return sorted(path.parent for path in root.glob(f"*/{MANIFEST}"))


def list_channels(root: Path) -> list[ChannelEntry]:
    """List the logs below a root by name.

    Raises LogError when the root is no folder, or a manifest below it cannot be read.
    """
    manifests = [(load_manifest(folder), folder) for folder in log_folders(root)]
    return sorted(
        (ChannelEntry(manifest.channel, folder, manifest.log_id) for manifest, folder in manifests),
        key=lambda entry: entry.channel,
    )


class LogReader:
    """One log of any writer, or of none; remembers what it has checked, so that looking again is cheap."""

    def __init__(self, root: Path | str, channel: str) -> None:
        self.channel = ChannelName(channel)
        self.folder = folder_of(Path(root), self.channel)
        self._known: dict[Path, HotIndex] = {}
        self._content = b""
        self._decoded: Manifest | None = None

    def snapshot(self) -> Snapshot:
        """Give the log as it is now.

        Raises LogError when there is none, when it is damaged, or when a newer meshbus wrote it.
        """
        for _ in range(_TRIES):
            manifest = self._manifest()
            try:
                found = take_inventory(self.folder, manifest, self._known)
            except FileNotFoundError:
                continue
            self._known = {index.path: index for index in found.live}
            if self._manifest() is manifest:
                views = tuple(index.view() for index in found.live)
                return Snapshot(self.folder, manifest, views, self.snapshot, found.damage)
        raise LogError(LogFault.FAILED, f"{self.folder}: is sealed faster than it can be read: try again")

    def _manifest(self) -> Manifest:
        """Give the manifest, the same object as long as the file is the same."""
        path = self.folder / MANIFEST
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise LogError(
                LogFault.UNKNOWN,
                f"there is no log of {self.channel} in {self.folder.parent}: `meshbus log ls` shows what is there",
            ) from None
        if self._decoded is None or content != self._content:
            manifest = decode_manifest(content, path)
            if manifest.channel != self.channel:
                raise LogError(LogFault.FOREIGN, f"{self.folder} is the log of {manifest.channel}, not {self.channel}")
            self._content, self._decoded = content, manifest
        return self._decoded


def read_split(
    split: Mapping[str, Any], columns: Sequence[str] | None = None, *, dictionaries: bool = True
) -> Iterator[Any]:
    """Give the rows of a split as record batches, wherever they are by now.

    Raises LogError when they have expired, or the log was replaced by another one.
    """
    want = wanted(columns, dictionaries=dictionaries)
    folder, at = Path(split["folder"]), int(split["first"])
    try:
        for batch in _planned(split, folder, want):
            at += len(batch)
            yield batch
    except FileNotFoundError:  # sealed or compacted since it was planned
        snapshot = LogReader(folder.parent, split["channel"]).snapshot()
        if snapshot.manifest.log_id != split["log_id"]:
            raise LogError(LogFault.FOREIGN, f"{folder}: another log is there now: plan again") from None
        yield from snapshot.batches(at, int(split["end"]), columns, dictionaries=dictionaries)


def _planned(split: Mapping[str, Any], folder: Path, want: Wanted) -> Iterator[Any]:
    first, end = int(split["first"]), int(split["end"])
    if "segment" in split:
        yield from read_segment(folder, msgspec.convert(split["segment"], Segment), want, first, end)
        return
    hot = split["hot"]
    index = open_hot(folder / HOT / hot["name"])
    index.end, index.size = int(hot["first"]), int(hot["start"])
    if (damage := index.extend(int(hot["stop"]))) is not None:
        raise LogError(LogFault.CORRUPT, f"{index.path}: the block at byte {damage.at} is damaged: {damage.why}")
    for rows in index.view().rows(first, end):
        yield to_batch(rows, index.header, want, max(first, rows.first), min(end, rows.end))
