"""Heal the damaged segments of a replica with events that other members have.

A segment is written again as a whole: the given rows, and around them what can still be read. It takes the name of the
damaged one, so a crash leaves one or the other; log/embedded/replicarecovery.py accepts both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from meshbus.log.arrow import to_batch, wanted
from meshbus.log.embedded.block import HotHeader
from meshbus.log.embedded.logmanifest import Manifest, store_manifest, unused_of, with_unused
from meshbus.log.folder import aside
from meshbus.log.segment import Segment, read_segment, write_segment

if TYPE_CHECKING:
    from meshbus.log.files import Files
    from meshbus.log.rows import Rows


def heal_segments(files: Files, folder: Path, manifest: Manifest, rows: Rows) -> Manifest:
    """Write the segments that have some of the rows again; returns the manifest, unchanged if there are none.

    Raises LogError if a row beside the given ones cannot be read: then give more.
    """
    header = HotHeader(manifest.channel, manifest.id_bytes, rows.first, manifest.created_ns)
    healed, unused = list(manifest.segments), list(unused_of(manifest))
    for place, segment in enumerate(manifest.segments):
        if segment.first >= rows.end or segment.end <= rows.first:
            continue
        fresh = write_segment(
            files,
            folder,
            _batches(folder, segment, header, rows),
            first=segment.first,
            end=segment.end,
            per_group=segment.group_rows,
            written_ns=segment.written_ns,
            hot_bytes=segment.hot_bytes,
        )
        files.rename(aside(folder / fresh.name), folder / fresh.name)
        files.fsync_folder(folder)
        healed[place] = fresh
        # Its copy on object storage is of the damaged file, or is not needed any more.
        unused += [] if segment.remote is UNSET else [segment.remote.uri]
    changed = with_unused(replace(manifest, segments=tuple(healed)), tuple(unused))
    return manifest if changed == manifest else store_manifest(files, folder, changed)


def _batches(folder: Path, segment: Segment, header: HotHeader, rows: Rows) -> Iterator[Any]:
    """Yield the rows of a segment, those that are given in place of its own."""
    want = wanted()
    begin, end = max(segment.first, rows.first), min(segment.end, rows.end)
    yield from read_segment(folder, segment, want, segment.first, begin)
    yield to_batch(rows, header, want, begin, end)
    yield from read_segment(folder, segment, want, end, segment.end)
