"""The files of a log: one folder per channel, and the names in it.

    <root>/
    └── sensors_lidar-<16 hex digits of the canonical hash>/
        ├── _manifest.json                                 what is sealed; replaced atomically
        ├── _lock                                          held by the one writer
        ├── _spare                                         room for a manifest on a full disk
        ├── _schemas.json, _positions.json                 what payloads and numbers are (log/sidefile.py)
        ├── _waits                                         why object storage is waited for, while it is
        ├── 00000000000000000000-00000000000000065536.parquet    sealed: first and one past the last sequence
        ├── _hot/00000000000000065536.hot                  the hot tail, in blocks; named by its first sequence
        ├── _hot/00000000000000065500+3.hot                in a replicated log: replaces what was written before turn 3
        ├── _mark, _aside/                                 of a replicated log: what is committed; what was set aside
        └── _old/….parquet.old                             replaced or expired, kept for running readers

Only live segments end in `.parquet`, and every other name starts with `_`: Spark, DuckDB and Arrow datasets see the
sealed rows and nothing else. The channel is never parsed from a name; it is in the manifest and in every file.
"""

from __future__ import annotations

import re
from pathlib import Path

from meshbus.names.channel import ChannelName

MANIFEST = "_manifest.json"
LOCK = "_lock"
HOT = "_hot"
OLD = "_old"
WAITS = "_waits"
MARK = "_mark"
ASIDE = "_aside"

_MAX_SLUG = 80
"""Characters of the channel in a folder name: readable, and far below the limit of file systems."""
_FOLDER = re.compile(r"[^_].*-[0-9a-f]{16}")
_SEGMENT = re.compile(r"(\d{20})-(\d{20})\.parquet")
_HOT_NAME = re.compile(r"(\d{20})(?:\+(\d{1,18}))?\.hot")


def folder_of(root: Path, channel: ChannelName) -> Path:
    """Return the folder of a channel; the hash distinguishes channels whose readable parts are equal."""
    # spark.md §3: a name of 255 bytes, percent-encoded, would exceed the limit of file systems. Names that start with
    # `_` or `.` are hidden from Spark.
    slug = channel.replace("/", "_")[:_MAX_SLUG].lstrip("._") or "channel"
    return root / f"{slug}-{channel.hash:016x}"


def is_log_folder(name: str) -> bool:
    """Return whether a folder of this name may hold a log: what it holds is in its manifest."""
    return _FOLDER.fullmatch(name) is not None


def segment_name(first: int, end: int) -> str:
    """Return the name of the segment of a range, `end` excluded."""
    # 20 digits hold every 64-bit number, so that names sort like numbers.
    return f"{first:020d}-{end:020d}.parquet"


def segment_range(name: str) -> tuple[int, int] | None:
    """Return the range in the name of a segment, or None for another file."""
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def hot_name(first: int, turn: int = 0) -> str:
    """Return the name of the hot file that starts at a sequence."""
    return f"{first:020d}+{turn}.hot" if turn else f"{first:020d}.hot"


def turn_of(path: Path) -> int:
    """Return the turn of a hot file: a replicated log counts them, each may replace the end of those before it."""
    match = _HOT_NAME.fullmatch(path.name)
    return int(match[2] or 0) if match else 0


def hot_files(folder: Path) -> list[tuple[int, Path]]:
    """Return the hot files of a folder with their first sequences, in the order in which they were begun."""
    if not (folder / HOT).is_dir():
        return []  # a crash while the log was created may have kept its manifest but not this folder
    found = ((_HOT_NAME.fullmatch(path.name), path) for path in (folder / HOT).iterdir())
    order = sorted((int(match[2] or 0), int(match[1]), path) for match, path in found if match)
    return [(first, path) for _, first, path in order]


def aside(path: Path) -> Path:
    """Return the temporary name of a file while it is written; no reader takes it for data."""
    return path.with_name(f"_{path.name.lstrip('_')}.aside")


def is_aside(path: Path) -> bool:
    """Return whether a file has a temporary name, because a crash interrupted its writer."""
    return path.name.endswith(".aside")


def old_path(folder: Path, name: str) -> Path:
    """Return where a segment is kept after it was replaced or has expired."""
    return folder / OLD / f"{name}.old"
