"""The row of the embedded backend in the table of log/backend.py: opens, finds and reads logs in folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.logmanifest import load_manifest
from meshbus.log.embedded.reader import FolderReader, read_split
from meshbus.log.folder import MANIFEST, folder_of
from meshbus.log.status import ChannelEntry
from meshbus.names.channel import ChannelName

if TYPE_CHECKING:
    from meshbus.log.backend import OpenOptions
    from meshbus.log.embedded.log import EmbeddedLog


class Embedded:
    """Logs below a root, one folder per channel (log/folder.py)."""

    def open(self, root: Path, options: OpenOptions) -> EmbeddedLog:
        """Open a log for appending, and create it if there is none."""
        from meshbus.log.embedded.log import EmbeddedLog  # a Spark worker only reads: it never loads the writer

        return EmbeddedLog(root, options)

    def reader(self, root: Path, channel: ChannelName) -> FolderReader:
        """Return a reader of one log."""
        return FolderReader(root, channel)

    def exists(self, root: Path, channel: ChannelName) -> bool:
        """Return whether a channel has a folder."""
        return folder_of(root, channel).exists()

    def find(self, root: Path) -> tuple[list[ChannelEntry], list[LogError]]:
        """Return the logs below a root by name, and an error for each manifest that cannot be read."""
        if not root.is_dir():
            raise LogError(LogFault.UNKNOWN, f"{root} is not a folder of logs; check the path")
        entries: list[ChannelEntry] = []
        problems: list[LogError] = []
        for path in sorted(root.glob(f"*/{MANIFEST}")):
            try:
                manifest = load_manifest(path.parent)
            # One damaged log must not hide the others.
            except LogError as error:
                problems.append(error)
            else:
                entries.append(ChannelEntry(manifest.channel, path.parent, manifest.log_id))
        return sorted(entries, key=lambda entry: entry.channel), problems

    def read_split(
        self, split: Mapping[str, Any], columns: Sequence[str] | None, *, dictionaries: bool
    ) -> Iterator[Any]:
        """Yield the rows of a split as record batches, even if they were sealed or compacted since."""
        return read_split(split, columns, dictionaries=dictionaries)
