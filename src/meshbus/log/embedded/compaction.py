"""Merge small segments: choose which, and copy their rows. Sealing by age leaves many, and each costs readers a file.

Rows are copied batch by batch, so memory stays at about one row group. log/embedded/upkeep.py renames the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from meshbus.log.arrow import wanted
from meshbus.log.segment import Segment, read_segment, write_segment

if TYPE_CHECKING:
    from meshbus.log.files import Files

FEWEST = 4
"""Fewest neighbors that are merged without a request: each merge rewrites all of their rows."""


def choose_run(segments: Sequence[Segment], target_bytes: int, *, fewest: int = FEWEST) -> tuple[Segment, ...]:
    """Return the first run of neighbors, each smaller than half the target and together within it; or nothing.

    Sizes are those before compression, because a merge decodes and encodes every row: a hot file that was sealed as a whole
    is never merged, however small its segment is.
    """
    run: list[Segment] = []
    for segment in segments:
        # Segments above half the target are left alone: merging them would copy much and save little.
        # Those with a copy on object storage too: the copy would have to be made again.
        small = segment.remote is UNSET and segment.content_bytes * 2 < target_bytes
        if small and sum(member.content_bytes for member in run) + segment.content_bytes <= target_bytes:
            run.append(segment)
            continue
        if len(run) >= fewest:
            break
        run = [segment] if small else []
    return tuple(run) if len(run) >= fewest else ()


def merge_segments(files: Files, folder: Path, run: Sequence[Segment]) -> Segment:
    """Write the rows of neighboring segments as one segment under a temporary name, and describe it."""
    first, end = run[0].first, run[-1].end
    want = wanted()

    def batches() -> Iterator[Any]:
        for segment in run:
            yield from read_segment(folder, segment, want, first, end)

    # Readers find a row group by dividing, so all groups of a segment have the same size.
    per_group = max(segment.group_rows for segment in run)
    return write_segment(
        files,
        folder,
        batches(),
        first=first,
        end=end,
        per_group=per_group,
        written_ns=run[-1].written_ns,
        hot_bytes=sum(segment.content_bytes for segment in run),
    )
