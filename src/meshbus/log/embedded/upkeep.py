"""The operations that change the parts of a log, each with its steps in an order that survives a crash at any point.

    seal      write segment under a temporary name · fsync · rename · fsync folder · manifest · (caller: remove hot file)
    compact   the same with the merged segment; the manifest retires its parts · (caller: move them to `_old`)
    expire    the manifest raises its first sequence and retires segments · (caller: move them to `_old`)
    sweep     remove what has been in `_old` for the grace period · manifest, with their objects as unused

The caller uses each manifest that is returned before it goes on: it is on the disk, whatever fails afterwards.

A segment exists once the manifest names it, and nothing that the manifest names is ever removed. So the worst that a
crash leaves is a file that is not read; log/embedded/recovery.py completes the operation or removes the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from meshbus.log.embedded.compaction import merge_segments
from meshbus.log.embedded.logmanifest import Manifest, Retired, store_manifest, unused_of, with_unused
from meshbus.log.embedded.sealing import seal_hot
from meshbus.log.folder import OLD, aside, old_path

if TYPE_CHECKING:
    from meshbus.log.embedded.hot import HotIndex
    from meshbus.log.files import Files
    from meshbus.log.segment import Segment

_NS = 1_000_000_000


def seal(files: Files, folder: Path, manifest: Manifest, hot: HotIndex, *, compress: bool = True) -> Manifest:
    """Write a hot file that is no longer appended to as a segment; its rows are then on the disk twice.

    Without `compress`, payloads are stored as they are.
    """
    segment = seal_hot(files, folder, hot, compress=compress)
    # The name must be durable before the manifest that refers to it.
    _rename_to_final(files, folder, segment)
    return store_manifest(files, folder, replace(manifest, segments=(*manifest.segments, segment)))


def compact(files: Files, folder: Path, manifest: Manifest, run: tuple[Segment, ...], now_ns: int) -> Manifest:
    """Replace neighboring segments by one."""
    merged = merge_segments(files, folder, run)
    _rename_to_final(files, folder, merged)
    # The merged segment takes the place of its parts: the manifest has each row exactly once.
    place = manifest.segments.index(run[0])
    segments = (*manifest.segments[:place], merged, *manifest.segments[place + len(run) :])
    return _retire(files, folder, replace(manifest, segments=segments), run, now_ns)


def expire(files: Files, folder: Path, manifest: Manifest, until: int, now_ns: int) -> Manifest:
    """Expire everything below a sequence, at which a segment or a hot file must end."""
    gone = [segment for segment in manifest.segments if segment.end <= until]
    # Segments are in order, so what expires is a prefix.
    kept = manifest.segments[len(gone) :]
    return _retire(files, folder, replace(manifest, first=until, segments=kept), gone, now_ns)


def sweep(files: Files, folder: Path, manifest: Manifest, until: int) -> Manifest:
    """Remove the first `until` retired segments; this needs room only for the manifest."""
    if not until:
        return manifest
    # Files go before the manifest forgets them; after a crash between the two, removing them again does nothing.
    for old in manifest.retired[:until]:
        files.remove(old_path(folder, old.name))
        files.remove(folder / old.name)  # where it is if its move failed
    files.fsync_folder(folder / OLD)
    objects = tuple(old.uri for old in manifest.retired[:until] if old.uri is not UNSET)
    kept = replace(manifest, retired=manifest.retired[until:])
    return store_manifest(files, folder, with_unused(kept, (*unused_of(kept), *objects)))


def move_retired(files: Files, folder: Path, retired: Iterable[Retired]) -> None:
    """Move retired segments to where plain Parquet readers do not see them."""
    moved = [old.name for old in retired if (folder / old.name).exists()]
    for name in moved:
        files.rename(folder / name, old_path(folder, name))
    if moved:
        files.fsync_folder(folder / OLD)
        files.fsync_folder(folder)


def _rename_to_final(files: Files, folder: Path, segment: Segment) -> None:
    path = folder / segment.name
    files.rename(aside(path), path)
    files.fsync_folder(folder)


def _retire(files: Files, folder: Path, manifest: Manifest, gone: Iterable[Segment], now_ns: int) -> Manifest:
    retired = tuple(_retired(folder, segment, now_ns) for segment in gone)
    # The manifest first: until it is stored, readers still need the files under their names.
    return store_manifest(files, folder, replace(manifest, retired=(*manifest.retired, *retired)))


def _retired(folder: Path, segment: Segment, now_ns: int) -> Retired:
    if segment.remote is UNSET:
        return Retired(segment.name, now_ns, segment.bytes)
    local = segment.bytes if (folder / segment.name).exists() else 0
    return Retired(segment.name, now_ns, local, segment.remote.uri)
