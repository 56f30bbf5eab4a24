"""Verify a log: read every segment in full, and its copy on object storage, and check every block against its checksum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import UNSET

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import has_arrow, wanted
from meshbus.log.embedded.asides import read_aside
from meshbus.log.embedded.hot import open_hot
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.files import reading
from meshbus.log.folder import ASIDE, segment_range
from meshbus.log.objectstore import verify_object
from meshbus.log.segment import Segment, read_segment
from meshbus.log.status import Finding

_OF_THE_DISK = {LogFault.FAILED, LogFault.NO_SPACE, LogFault.READ_ONLY}
"""Errors that say nothing about what is stored."""


def verify_log(snapshot: Snapshot) -> list[Finding]:
    """Read everything in a snapshot and return the problems; empty if there are none.

    Raises LogError if the disk does not let it be read.
    """
    with reading(snapshot.folder):
        return _findings(snapshot)


def _findings(snapshot: Snapshot) -> list[Finding]:
    found = [finding for segment in snapshot.manifest.segments for finding in _segment(snapshot, segment)]
    for view in snapshot.hot:
        # A fresh index, so that every block is checked again.
        index = open_hot(view.path)
        damage = index.extend(view.place_of(view.blocks))
        if damage is not None:
            found.append(Finding(view.path.name, index.end, view.end, damage.why))
    if snapshot.damage:
        found.append(Finding("_hot", snapshot.end, snapshot.end, snapshot.damage))
    for path in sorted((snapshot.folder / ASIDE).glob("*.hot")):
        try:
            for _ in read_aside(path):
                pass
        except LogError as error:
            found.append(_finding(path.name, 0, 0, error))
    found += [Finding(path.name, 0, 0, "does not belong to this log") for path in _foreign(snapshot)]
    return found


def _segment(snapshot: Snapshot, segment: Segment) -> Iterator[Finding]:
    if not has_arrow():
        yield Finding(
            segment.name,
            segment.first,
            segment.end,
            "cannot be read without pyarrow; run: pip install 'meshbus[arrow]'",
        )
        return
    at = segment.first
    try:
        for batch in read_segment(snapshot.folder, segment, wanted(), segment.first, segment.end):
            if (problem := _rows_problem(batch, snapshot, at)) is not None:
                yield Finding(segment.name, at, segment.end, problem)
                return
            at += len(batch)
        if segment.remote is not UNSET and (snapshot.folder / segment.name).exists():
            verify_object(segment.remote)  # the rows came from the local file
    except (LogError, FileNotFoundError) as error:
        yield _finding(segment.name, at, segment.end, error)


def _finding(file: str, first: int, end: int, error: Exception) -> Finding:
    """Return what an error says about a file; raises it if it is about the disk."""
    if isinstance(error, LogError) and error.fault in _OF_THE_DISK:
        raise error
    return Finding(file, first, end, str(error))


def _rows_problem(batch: object, snapshot: Snapshot, at: int) -> str | None:
    """Compare rows of a segment with the manifest and return the problem, or None."""
    import numpy as np
    import pyarrow as pa

    assert isinstance(batch, pa.RecordBatch)
    if not np.array_equal(batch.column("seq").to_numpy(), np.arange(at, at + len(batch))):
        return "its sequences are not those of its name"
    owners = batch.column("log_id").unique().to_pylist()
    return None if owners == [snapshot.manifest.id_bytes] else "it holds rows of another log"


def _foreign(snapshot: Snapshot) -> list[Path]:
    known = {segment.name for segment in snapshot.manifest.segments} | {old.name for old in snapshot.manifest.retired}
    files = (path for path in snapshot.folder.iterdir() if path.suffix == ".parquet")
    return sorted(path for path in files if path.name not in known or segment_range(path.name) is None)
