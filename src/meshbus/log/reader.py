"""Read logs that another process writes, or that have no writer: no lock and no waiting.

    for entry in list_channels(root): ...
    snapshot = LogReader(root, "sensors/lidar").snapshot()
    for batch in snapshot.batches(columns=["seq", "payload"]): ...
    splits = snapshot.splits()            # plain dicts; in another process: read_split(split, ["seq", "payload"])

The work is done by the backend (log/backend.py). Nothing here imports a writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshbus.errors import LogError
from meshbus.log.backend import DEFAULT, Snapshot, find_backend
from meshbus.log.folder import MANIFEST, folder_of, is_log_folder
from meshbus.log.status import ChannelEntry, Finding
from meshbus.names.channel import ChannelName


def find_channels(root: Path, *, backend: str = DEFAULT) -> tuple[list[ChannelEntry], list[LogError]]:
    """Return the logs below a root by name, and an error for each that cannot be read.

    Raises LogError if the root is not a folder of logs.
    """
    return find_backend(backend).find(root)


def find_roots(folder: Path) -> list[Path]:
    """Return the folders of logs in or below a folder, such as `published` and `received` in the `log_dir` of a node.

    Empty if there are no logs. The folder of a single log stands for the one that it is in.
    """
    logs = [path.parent for path in (folder / MANIFEST, *folder.glob(f"**/{MANIFEST}")) if path.is_file()]
    return sorted({log.parent for log in logs if is_log_folder(log.name)})


def list_channels(root: Path, *, backend: str = DEFAULT) -> list[ChannelEntry]:
    """Return the logs below a root by name.

    Raises LogError if the root is not a folder of logs, or if one of them cannot be read.
    """
    entries, problems = find_channels(root, backend=backend)
    if problems:
        raise problems[0]
    return entries


class LogReader:
    """Reads one log; a later snapshot costs only what is new since the last one."""

    def __init__(self, root: Path | str, channel: str, *, backend: str = DEFAULT) -> None:
        self.channel = ChannelName(channel)
        self.folder = folder_of(Path(root), self.channel)
        self._reader = find_backend(backend).reader(Path(root), self.channel)

    def snapshot(self) -> Snapshot:
        """Return the log as it is now.

        Raises LogError if there is none, if it is damaged, or if a newer version of meshbus wrote it.
        """
        return self._reader.snapshot()

    def verify(self) -> list[Finding]:
        """Read everything, check it, and return the problems; empty if there are none."""
        return self._reader.verify()


def read_split(
    split: Mapping[str, Any], columns: Sequence[str] | None = None, *, dictionaries: bool = True
) -> Iterator[Any]:
    """Yield the rows of a split as record batches, even if they were sealed or compacted since it was planned.

    Raises LogError if they have expired, or another log took the place of this one.
    """
    return find_backend(split.get("backend", DEFAULT)).read_split(split, columns, dictionaries=dictionaries)
