"""Where the files of a log are: one folder per channel, and what its files are called.

    <root>/
    └── sensors_lidar-<16 hex digits of the canonical hash>/
        ├── _manifest.json                                 what is sealed; replaced in one step
        ├── _lock                                          held by the one writer
        ├── 00000000000000000000-00000000000000065536.parquet    sealed: first and one past the last sequence
        ├── _hot/00000000000000065536.hot                  the tail, in blocks; named by its first sequence
        └── _old/….parquet.old                             replaced or expired, kept a while for running readers

Nothing but a live segment ends in `.parquet`, and everything else starts with `_`: Spark, DuckDB and Arrow datasets see
the sealed rows and nothing else. No name is parsed for its channel; that is in the manifest and in every file.
"""

from __future__ import annotations

import re
from pathlib import Path

from meshbus.names.channel import ChannelName

MANIFEST = "_manifest.json"
LOCK = "_lock"
HOT = "_hot"
OLD = "_old"

_MAX_SLUG = 80
_SEGMENT = re.compile(r"(\d{20})-(\d{20})\.parquet")
_HOT_NAME = re.compile(r"(\d{20})\.hot")


def folder_of(root: Path, channel: ChannelName) -> Path:
    """Give the folder of a channel; the hash tells apart what the readable part does not."""
    slug = channel.replace("/", "_")[:_MAX_SLUG].lstrip("._") or "channel"
    return root / f"{slug}-{channel.hash:016x}"


def segment_name(first: int, end: int) -> str:
    """Name a sealed segment by its range, `end` excluded."""
    return f"{first:020d}-{end:020d}.parquet"


def segment_range(name: str) -> tuple[int, int] | None:
    """Give the range in the name of a segment, or None for another file."""
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def hot_name(first: int) -> str:
    """Name a hot file by its first sequence."""
    return f"{first:020d}.hot"


def hot_files(folder: Path) -> list[tuple[int, Path]]:
    """List the hot files of a folder with their first sequences, in order."""
    if not (folder / HOT).is_dir():
        return []  # a crash while the log was made may have kept its manifest and lost this
    found = ((_HOT_NAME.fullmatch(path.name), path) for path in (folder / HOT).iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def aside(path: Path) -> Path:
    """Give the name under which a file is written before it gets its own; no reader takes it for data."""
    return path.with_name(f"_{path.name.lstrip('_')}.aside")


def is_aside(path: Path) -> bool:
    """Say whether a file is one that a crash kept from getting its name."""
    return path.name.endswith(".aside")


def old_path(folder: Path, name: str) -> Path:
    """Say where a segment waits that was replaced or has expired."""
    return folder / OLD / f"{name}.old"
