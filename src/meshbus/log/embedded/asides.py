"""Side files of a replicated log: events that were set aside because the leader does not have them.

A side file has the form of a hot file: a header, one control block with the range and its epochs, and the blocks as they
were. The first block may begin before the range, and a block may extend into the next one, which then counts. Side files
are never removed by meshbus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.block import (
    BlockHeader,
    BlockKey,
    HotHeader,
    NewerVersion,
    Unreadable,
    pack_control,
    pack_file_header,
    read_rows,
    unpack_block,
    unpack_control,
    unpack_file_header,
)
from meshbus.log.embedded.controls import Opening, Runs, SetAside, State, encode_record, opening_of
from meshbus.log.event import LogEvent, events_of_rows
from meshbus.log.files import Files, translated
from meshbus.log.folder import ASIDE, aside
from meshbus.log.status import ReplicaStatus

_NAME = re.compile(r"(\d{20})-(\d{20})\+\d+\.hot")


class Aside(msgspec.Struct, frozen=True):
    """One side file."""

    path: Path
    first: int
    end: int
    """One past the last sequence."""
    runs: Runs
    """Epochs with the sequence at which each starts."""

    def epoch_at(self, seq: int) -> int:
        """Return the epoch that appended an event."""
        return max((epoch for epoch, start in self.runs if start <= seq), default=0)


def aside_path(folder: Path, events: SetAside) -> Path:
    """Return the name of a side file."""
    return folder / ASIDE / f"{events.first:020d}-{events.end:020d}+{events.turn}.hot"


def store_aside(files: Files, path: Path, header: HotHeader, events: SetAside) -> None:
    """Write a side file, durably; `header` is that of a hot file of the log."""
    header = msgspec.structs.replace(header, first=events.blocks_first)
    about = Opening(State(runs=events.runs), asides=(msgspec.structs.replace(events, blocks=b""),))
    control = pack_control(
        events.blocks_first, encode_record(about), key=header.key, written_ns=header.created_ns, durable=0
    )
    files.write_aside(path, aside(path), [pack_file_header(header), control, events.blocks])


def aside_status(folder: Path, gaps: tuple[tuple[int, int], ...]) -> ReplicaStatus:
    """Return what the side files and the files kept after damage amount to, by their names."""
    ranges = [_NAME.fullmatch(path.name) for path in folder.glob(f"{ASIDE}/*.hot")]
    events = sum(int(span[2]) - int(span[1]) for span in ranges if span)
    return ReplicaStatus(gaps, events, sum(1 for _ in folder.glob(f"{ASIDE}/damaged-*/*.damaged")))


def list_asides(folder: Path) -> list[Aside]:
    """Return the side files of a log by name; a damaged one raises LogError."""
    place = folder / ASIDE
    with translated(place, "cannot read"):
        paths = sorted(place.glob("*.hot")) if place.is_dir() else []
    return [_load(path)[0] for path in paths]


def read_aside(path: Path) -> Iterator[LogEvent]:
    """Yield the events of a side file; raises LogError if it is damaged."""
    about, blocks, buffer, key = _load(path)
    for number, (at, block) in enumerate(blocks):
        try:
            rows = read_rows(buffer, at, unpack_block(buffer, at, key))
        except ValueError as error:
            raise _damaged(path, str(error)) from None
        end = blocks[number + 1][1].first if number + 1 < len(blocks) else about.end
        yield from events_of_rows(rows, max(block.first, about.first), min(rows.end, end))


def _load(path: Path) -> tuple[Aside, list[tuple[int, BlockHeader]], memoryview, BlockKey]:
    """Return what a side file is about, its blocks with their offsets, its content and the key of its blocks."""
    with translated(path, "cannot read"):
        buffer = memoryview(path.read_bytes())
    try:
        header = unpack_file_header(buffer)
        control = unpack_block(buffer, header.size, header.key)
        opening = opening_of([(control.first, unpack_control(buffer, header.size, control))])
        blocks, at = [], header.size + control.size
        while at < len(buffer):
            block = unpack_block(buffer, at, header.key, check=False)
            blocks.append((at, block))
            at += block.size
    except NewerVersion as error:
        raise LogError(LogFault.NEWER, f"{path}: {error}") from None
    except Unreadable as error:
        raise _damaged(path, str(error)) from None
    if opening is None or len(opening.asides) != 1:
        raise _damaged(path, "it says nothing about its events")
    events = opening.asides[0]
    return Aside(path, events.first, events.end, events.runs), blocks, buffer, header.key


def _damaged(path: Path, why: str) -> LogError:
    return LogError(LogFault.CORRUPT, f"{path} is damaged: {why}; restore it from a copy; the log itself is readable")
