"""Read hot files: which blocks are whole, where they are, and their rows.

`HotIndex` lists the blocks of one hot file. The writer adds to its index as it appends; a reader calls `extend`, which
checks what is new since the last call and stops at the first block that is not whole. `HotView` is an index at one
moment and returns rows without copying them. It maps the file only up to the last whole block, so a reader's memory
stays valid when recovery cuts a torn tail.

Never writes. log/embedded/inventory.py decides whether what is not whole is a torn tail or damage.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.errors import LogError, LogFault
from meshbus.log.columns import OFFSET_BYTES
from meshbus.log.embedded.block import (
    ALIGNMENT,
    BLOCK_HEADER,
    MAX_SEQ,
    BlockHeader,
    BlockKey,
    HotHeader,
    NewerVersion,
    Unreadable,
    is_plain,
    plain_length,
    read_rows,
    scalars_at,
    unpack_block,
    unpack_control,
    unpack_file_header,
)
from meshbus.log.embedded.controls import decode_record
from meshbus.log.headers import padded
from meshbus.log.rows import NULL, STORED, ZERO, Cells, Kind, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

GATHERED = 4_096
"""Most single-event blocks that are combined into one batch of rows."""


class Damage(msgspec.Struct, frozen=True):
    """Where the whole blocks of a hot file end, although the file continues."""

    at: int
    """Offset of the first block that is not whole."""
    size: int
    """Size of the file."""
    why: str
    claimed: int
    """The highest `durable` of the whole blocks after it; 0 if there are none."""


class HotIndex:
    """The whole blocks of one hot file; only grows, unless a later file of a replicated log replaces its end."""

    def __init__(self, path: Path, header: HotHeader) -> None:
        self.path = path
        self.header = header
        self.key = header.key
        self.firsts = array("q")
        """First sequence of each block."""
        self.places = array("q")
        """Offset of each block in the file."""
        self.end = header.first
        self.size = header.size
        """Offset of the end of the last whole block."""
        self.written_ns = header.created_ns
        """When the last block was written."""
        self.durable = 0
        """The highest `durable` of its blocks."""
        self.controls: list[tuple[int, bytes]] = []
        """The records of its control blocks, each with the sequence of the next event."""
        self.is_cut = False
        """Whether a later file replaced its end; the last block may then extend beyond `end`."""

    def add(self, size: int, count: int, written_ns: int) -> None:
        """Add a block, which starts where the last one ended."""
        # Readers use the arrays without a lock, up to the number of blocks that their view was created with.
        self.firsts.append(self.end)
        self.places.append(self.size)
        self.size += size
        self.written_ns = written_ns
        self.end += count

    def extend(self, until: int | None = None) -> Damage | None:
        """Add the blocks that were written since, up to an offset in the file or to its end.

        Returns the damage after them if something is not a whole block. Raises FileNotFoundError if the file was
        sealed.
        """
        if self.is_cut:
            return None
        with self.path.open("rb") as file:
            file.seek(self.size)
            data = file.read() if until is None else file.read(until - self.size)
        # Read rather than mapped: the writer may cut a block that the disk refused, and a mapping would then fault.
        start, at, new = self.size, 0, memoryview(data)
        while at < len(new):
            try:
                header = self._following(new, at)
                record = None if header.events else unpack_control(new, at, header)
                if record is not None:
                    decode_record(record)
            except Unreadable as error:
                return Damage(start + at, start + len(new), str(error), _highest_claim(data, at, self.key, self.end))
            if record is None:
                self.add(header.size, header.events, header.written_ns)
            else:
                self.controls.append((header.first, record))
                self.size += header.size
            self.durable = max(self.durable, header.durable)
            at += header.size
        return None

    def _following(self, buffer: memoryview, at: int) -> BlockHeader:
        header = unpack_block(buffer, at, self.key)
        # Whole blocks out of order cannot come from a crash of one writer, but from a file that was changed.
        if header.first != self.end:
            raise Unreadable(f"the block starts at sequence {header.first} instead of {self.end}")
        if header.first + header.events > MAX_SEQ:
            raise Unreadable(f"the block ends behind the last sequence, {MAX_SEQ}")
        return header

    def cut(self, end: int) -> None:
        """Leave out the events from a sequence on, which a later file replaced; views that exist keep them."""
        blocks = bisect_left(self.firsts, end)
        size = self.places[blocks] if blocks < len(self.places) else self.size
        self.firsts, self.places, self.size, self.end = self.firsts[:blocks], self.places[:blocks], size, end
        self.is_cut = True

    def view(self, limit: int | None = None) -> HotView:
        """Return the file as it is known now, or only its events below a sequence."""
        if limit is None or limit >= self.end:
            return HotView(self, self.end, len(self.firsts))
        end = max(limit, self.header.first)
        return HotView(self, end, bisect_left(self.firsts, end))


class HotView:
    """The rows of one hot file at one moment."""

    def __init__(self, index: HotIndex, end: int, blocks: int) -> None:
        self.path = index.path
        self.header = index.header
        self.first = index.header.first
        self.end = end
        self.blocks = blocks
        self._key = index.key
        self._firsts = index.firsts
        self._places = index.places
        self._size = index.places[blocks] if blocks < len(index.places) else index.size
        self._map: memoryview | None = None

    def block_of(self, seq: int) -> int:
        """Return the number of the block that holds a sequence."""
        return bisect_right(self._firsts, seq, 0, self.blocks) - 1

    def first_of(self, block: int) -> int:
        """Return the first sequence of a block."""
        return self._firsts[block] if block < self.blocks else self.end

    def place_of(self, block: int) -> int:
        """Return the offset of a block in the file."""
        return self._places[block] if block < self.blocks else self._size

    def rows(self, start: int, stop: int) -> Iterator[Rows]:
        """Yield the rows of the blocks that overlap a range; they may extend beyond it at both ends.

        Raises FileNotFoundError if the file was sealed meanwhile.
        """
        start, stop = max(start, self.first), min(stop, self.end)
        if start >= stop:
            return
        buffer = self.mapped()
        number = self.block_of(start)
        while number < self.blocks and self._firsts[number] < stop:
            alike = self._alike(buffer, number, stop)
            yield gather(buffer, alike) if len(alike) > 1 else _rows_at(buffer, *alike[0], self.path)
            number += len(alike)

    def _alike(self, buffer: memoryview, number: int, stop: int) -> list[tuple[int, BlockHeader]]:
        """Return the run of single-event blocks of one form that starts here, or else one block of any form."""
        found: list[tuple[int, BlockHeader]] = []
        empty = plain_length(unpack_block(buffer, self._places[number], self._key, check=False).kinds, 0)
        # A limit, because a run of single events may be as long as the file.
        last = min(self.blocks, number + GATHERED)
        while number < last and self._firsts[number] < stop:
            at = self._places[number]
            header = unpack_block(buffer, at, self._key, check=False)
            single = header.events == 1 and is_plain(header.kinds)
            # Only equal kinds have their numbers at the same offsets, which `gather` relies on, as on the sizes.
            if found and (not single or header.kinds != found[0][1].kinds):
                break
            if single and header.length != empty + padded(header.payload_bytes):
                if found:
                    break
                single = False
            found.append((at, header))
            if not single:
                break
            number += 1
        return found

    def layout(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offset and the first sequence of each block, each list with that of the end."""
        places = np.append(np.array(self._places[: self.blocks]), self._size)
        return places, np.append(np.array(self._firsts[: self.blocks]), self.end)

    def mapped(self) -> memoryview:
        """Return the content of the file; raises FileNotFoundError if it was sealed meanwhile."""
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = memoryview(mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ))
        return self._map


def open_hot(path: Path) -> HotIndex:
    """Read the header of a hot file.

    Raises Unreadable if there is no whole header, and LogError if a newer version of meshbus wrote it.
    """
    with path.open("rb") as file:
        start = file.read(512)  # longer than any header: the fixed part is 64 bytes, a name at most 255
    try:
        header = unpack_file_header(start)
    except NewerVersion as error:
        raise LogError(LogFault.NEWER, f"{path}: {error}") from None
    return HotIndex(path, header)


def gather(buffer: memoryview, blocks: list[tuple[int, BlockHeader]]) -> Rows:
    """Combine single-event blocks of the same form into one batch of rows: one block at a time would be far slower."""
    first = blocks[0][1]
    numbers = scalars_at(first.kinds)
    places = np.array([at for at, _ in blocks], np.int64) + BLOCK_HEADER
    whole = np.frombuffer(buffer, np.uint8)
    cells = []
    for place, column in enumerate(STORED):
        kind = first.kinds[place]
        if place not in numbers:
            cells.append(NULL if kind == Kind.NULL else ZERO)
            continue
        # The number is at the same offset in every block: one indexing operation reads the column.
        raw = whole[(places + numbers[place])[:, None] + np.arange(8)]
        cells.append(Cells(Kind.EACH, array=raw.view("<i8")[:, 0].astype(column.dtype)))
    start = BLOCK_HEADER + 8 * len(numbers) + 8
    payloads = [buffer[at + start : at + start + header.payload_bytes] for at, header in blocks]
    offsets = np.zeros(len(blocks) + 1, np.int32)
    np.cumsum([len(payload) for payload in payloads], out=offsets[1:])
    return Rows(first.first, tuple(cells), offsets, memoryview(b"".join(payloads)))


def _rows_at(buffer: memoryview, at: int, header: BlockHeader, path: Path) -> Rows:
    try:
        return read_rows(buffer, at, header)
    except ValueError as error:
        raise LogError(
            LogFault.CORRUPT, f"{path}: the block at offset {at} is damaged: {error}; restore the file from a copy"
        ) from None


def _highest_claim(data: bytes, at: int, key: BlockKey, end: int) -> int:
    """Search for whole blocks after damage at the block of sequence `end`, and return their highest `durable`."""
    # The length of a damaged block is unknown, so the next one is found by its magic number and its checksum. Payloads
    # cannot contain the magic number except by chance, so few checksums are computed.
    claimed, damaged = 0, at
    buffer = memoryview(data)
    at = data.find(key.magic, at + 1)
    while at >= 0:
        header = _whole_block(buffer, at, key)
        if header is None:
            at = data.find(key.magic, at + 1)
            continue
        # Every event takes at least its offset: a block cannot follow more events than were written before it.
        written = end + (at - damaged) // OFFSET_BYTES
        if header.durable <= header.first <= written:
            claimed = max(claimed, header.durable)
        at = data.find(key.magic, at + header.size)
    return claimed


def _whole_block(buffer: memoryview, at: int, key: BlockKey) -> BlockHeader | None:
    try:
        return unpack_block(buffer, at, key) if at % ALIGNMENT == 0 else None
    except Unreadable:
        return None
