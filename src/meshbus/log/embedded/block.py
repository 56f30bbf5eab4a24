"""The format of a hot file: a header that identifies the log, then one block for each append.

    file header                                    block
    0   magic "MBHT"                               0   magic, 4 bytes of the key
    4   version u16                                4   length u32, bytes after this header
    6   length of this header u16                  8   checksum u64: xxh3 of everything from byte 16 on
    8   checksum u64: xxh3 of bytes 16 on          16  first sequence u64
    16  first sequence u64                         24  written i64, nanoseconds since 1970
    24  canonical hash u64                         32  durable u64: every sequence below it had been synced
    32  log id, 16 bytes                           40  count u32
    48  created i64, nanoseconds since 1970        44  payload bytes u32
    56  length of the name u16, 6 zero bytes       48  kinds, 16 × u8: how each column is stored (log/rows.py),
    64  name, padded to 8                              and whether there are headers
                                                   64  columns, headers, offsets i32 × (count + 1), payloads

Numbers are little-endian and every part starts at a multiple of 8, so a mapped file can be used
as Arrow memory. `durable` tells a torn tail from damage: a crash cannot tear what a later block declares synced.

A block without events is a control block of a replicated log: after its header comes a record of so many payload bytes
(log/embedded/controls.py). It stands between the blocks in the order of the writes.

The key of the blocks follows from the log id, which is random. Whoever chooses a payload does not know it, so a payload
cannot contain something that looks like a block of its log. In version 1 the magic was "MBBK" and the checksum not keyed.

Compatibility: a reader accepts every version up to its own and refuses newer ones. Pure: bytes in, values out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import xxhash

from meshbus.formats import Format
from meshbus.log.headers import Headers, padded
from meshbus.log.rows import STORED, Cells, Kind, Rows
from meshbus.names.channel import ChannelName

FORMAT_VERSION = 2

ON_DISK = (
    Format(
        name="hot file of a log",
        where="`log_dir/*/*/_hot/*.hot`, `_aside/*.hot`",
        what="the newest events of a log, and those that a replica set aside; records of a replica between them",
        version=FORMAT_VERSION,
        mark="a field of the file header",
        refused="the log, as with its manifest; of events that were set aside, reading them",
    ),
)

FILE_MAGIC = b"MBHT"
BLOCK_HEADER = 64
ALIGNMENT = 8
"""Every block starts at a multiple of this."""
_CHECKED_FROM = 16

_FILE = struct.Struct("<4sHHQQQ16sqH6x")
FRONT = struct.Struct("<4sIQ")
"""The start of a block: magic, length and checksum."""
CHECKED = "QqQII16s"
"""The rest of its header, which the checksum covers with everything after it."""
_BLOCK = struct.Struct(FRONT.format + CHECKED)
_NUMBER = struct.Struct("<q")
_ZEROS = bytes(8)
_NUMBERED = (Kind.SAME, Kind.COUNT)
_SIZES_WRONG = "the sizes of the block's parts do not add up"
MAX_SEQ = (1 << 63) - 1
"""The last sequence: tables store them as signed numbers."""


Form: TypeAlias = "tuple[bytes, Sequence[bytes | memoryview]]"
"""The kinds of the columns of a block, and the bytes of its columns and headers."""


class BlockKey(NamedTuple):
    """What the blocks of a hot file are recognized by."""

    magic: bytes
    seed: int
    """Seed of the checksums."""


_KEY_1 = BlockKey(b"MBBK", 0)
"""The key of every log in version 1."""


def block_key(log_id: bytes, version: int = FORMAT_VERSION) -> BlockKey:
    """Return the key of the blocks of a log."""
    if version == 1:
        return _KEY_1
    digest = xxhash.xxh3_128_digest(log_id)
    return BlockKey(digest[:4], int.from_bytes(digest[8:], "little"))


class HotHeader(msgspec.Struct, frozen=True):
    """The header of a hot file: the log that it belongs to and its first sequence."""

    channel: str
    log_id: bytes
    first: int
    created_ns: int
    version: int = FORMAT_VERSION

    @property
    def size(self) -> int:
        """Size of the header in the file."""
        return _FILE.size + padded(len(self.channel.encode()))

    @property
    def key(self) -> BlockKey:
        """The key of the blocks in the file."""
        return block_key(self.log_id, self.version)


class BlockHeader(NamedTuple):
    """The header of a block."""

    length: int
    first: int
    written_ns: int
    durable: int
    events: int
    payload_bytes: int
    kinds: bytes

    @property
    def size(self) -> int:
        """Size of the whole block."""
        return BLOCK_HEADER + self.length


class Unreadable(ValueError):
    """The bytes are not a whole file header or block; the caller decides what that means."""


class NewerVersion(Unreadable):
    """A newer version of meshbus wrote the file."""


def pack_file_header(header: HotHeader) -> bytes:
    """Return the bytes at the start of a hot file."""
    name = header.channel.encode()
    size = header.size
    fields = (header.first, ChannelName(header.channel).hash, header.log_id, header.created_ns, len(name))
    packed = _FILE.pack(FILE_MAGIC, header.version, size, 0, *fields) + name.ljust(size - _FILE.size, b"\0")
    checksum = xxhash.xxh3_64_intdigest(packed[_CHECKED_FROM:])
    return packed[:8] + checksum.to_bytes(8, "little") + packed[_CHECKED_FROM:]


def unpack_file_header(buffer: bytes | memoryview) -> HotHeader:
    """Parse the start of a hot file; raises Unreadable if it is not a whole header."""
    if len(buffer) < _FILE.size:
        raise Unreadable("the file is shorter than a header")
    magic, version, size, checksum, first, _, log_id, created_ns, name_bytes = _FILE.unpack_from(buffer)
    if magic != FILE_MAGIC:
        raise Unreadable("not a hot file")
    if version > FORMAT_VERSION:
        raise NewerVersion(str(ON_DISK[0].problem(version)))
    # The version is compared first: a newer header may have another layout and another checksum.
    if not version or len(buffer) < size or xxhash.xxh3_64_intdigest(bytes(buffer[_CHECKED_FROM:size])) != checksum:
        raise Unreadable("the file header is damaged")
    if first > MAX_SEQ:
        raise Unreadable(f"the file starts at sequence {first}; the last one is {MAX_SEQ}")
    name = bytes(buffer[_FILE.size : _FILE.size + name_bytes]).decode("utf-8", "replace")
    return HotHeader(name, log_id, first, created_ns, version)


def pack_block(
    first: int,
    count: int,
    form: Form,
    offsets: bytes | memoryview,
    data: bytes | memoryview,
    *,
    key: BlockKey,
    written_ns: int,
    durable: int,
) -> list[bytes | memoryview]:
    """Return a block as the buffers to write one after the other; arrays and payloads are not copied.

    `offsets` are 32-bit numbers that start at 0.
    """  # hot
    kinds, columns = form
    size = len(data)
    parts = [b"", *columns, offsets, _ZEROS[: -len(offsets) & 7], data, _ZEROS[: -size & 7]]
    # The checksum covers what follows it; a changed magic or length makes the block unreadable as well.
    checked = _BLOCK.pack(key.magic, sum(map(len, parts)), 0, first, written_ns, durable, count, size, kinds)
    digest = xxhash.xxh3_64(checked[_CHECKED_FROM:], key.seed)
    for part in parts:
        digest.update(part)
    parts[0] = checked[:8] + digest.intdigest().to_bytes(8, "little") + checked[_CHECKED_FROM:]
    return parts


def pack_control(first: int, record: bytes, *, key: BlockKey, written_ns: int, durable: int) -> bytes:
    """Return a control block: a record in place of events, at the sequence that the next event has."""
    body = record + _ZEROS[: -len(record) & 7]
    checked = _BLOCK.pack(key.magic, len(body), 0, first, written_ns, durable, 0, len(record), bytes(16))
    whole = checked[_CHECKED_FROM:] + body
    return checked[:8] + xxhash.xxh3_64_intdigest(whole, key.seed).to_bytes(8, "little") + whole


def unpack_control(buffer: memoryview, at: int, header: BlockHeader) -> bytes:
    """Return the record of a control block that was checked."""
    start = at + BLOCK_HEADER
    return bytes(buffer[start : start + min(header.payload_bytes, header.length)])


def unpack_block(buffer: memoryview, at: int, key: BlockKey, *, check: bool = True) -> BlockHeader:
    """Parse the header of the block at an offset and verify the checksum; raises Unreadable if it is not whole."""
    if len(buffer) - at < BLOCK_HEADER:
        raise Unreadable("the block header is cut off")
    # The length is checked against the buffer before it is used, because it is not yet covered by the checksum.
    magic, length, checksum, *fields = _BLOCK.unpack_from(buffer, at)
    if magic != key.magic:
        raise Unreadable("the block header is missing")
    if len(buffer) - at - BLOCK_HEADER < length:
        raise Unreadable("the block is cut off")
    stop = at + BLOCK_HEADER + length
    if check and xxhash.xxh3_64_intdigest(buffer[at + _CHECKED_FROM : stop], key.seed) != checksum:
        raise Unreadable("the block checksum does not match")
    return BlockHeader(length, *fields)


def read_rows(buffer: memoryview, at: int, header: BlockHeader) -> Rows:
    """Return a block that was checked as rows; they are views of the buffer.

    Raises ValueError if its parts do not fit together, which no meshbus writer produces. Whoever changed the file could also
    write the right checksum, and Arrow reads where offsets lead without looking.
    """
    try:
        return _read_rows(buffer[: at + header.size], at, header)
    except struct.error:
        raise Unreadable(_SIZES_WRONG) from None


def _read_rows(buffer: memoryview, at: int, header: BlockHeader) -> Rows:
    count = header.events
    place = at + BLOCK_HEADER
    cells = []
    # `kinds` has 16 bytes: one per column, and the last one for headers.
    for kind, column in zip(header.kinds, STORED, strict=False):
        array = valid = None
        value = 0
        if kind in _NUMBERED:
            (value,) = _NUMBER.unpack_from(buffer, place)
            place += 8
        if kind == Kind.SOME:
            valid = np.frombuffer(buffer, np.uint8, (count + 7) // 8, place)
            place += padded((count + 7) // 8)
        if kind >= Kind.EACH:
            array = np.frombuffer(buffer, column.dtype, count, place)
            place += padded(count * column.dtype.itemsize)
        cells.append(Cells(Kind(kind), value, array, valid))
    headers = None
    if header.kinds[-1]:
        headers = Headers(buffer[place : place + Headers.size_at(buffer, place)])
        headers.check(count)
        place += len(headers.packed)
    offsets = np.frombuffer(buffer, "<i4", count + 1, place)
    place += padded(4 * count + 4)
    if place + padded(header.payload_bytes) != at + header.size or int(offsets[-1]) != header.payload_bytes:
        raise Unreadable(_SIZES_WRONG)
    if offsets[0] or (offsets[1:] < offsets[:-1]).any():
        raise Unreadable("the offsets of the block's payloads do not ascend")
    return Rows(header.first, tuple(cells), offsets, buffer[place : place + header.payload_bytes], headers)


def scalars_at(kinds: bytes) -> dict[int, int]:
    """Return the offset in the body of each SAME or COUNT column, for a block without arrays and headers."""
    numbered = [place for place, kind in enumerate(kinds[:-1]) if kind in _NUMBERED]
    return {place: 8 * position for position, place in enumerate(numbered)}


def pack_cells(cells: Sequence[Cells], headers: Headers | None = None) -> Form:
    """Return the form of a block; arrays are not copied."""
    parts: list[bytes | memoryview] = []
    for column in cells:
        if column.kind in _NUMBERED:
            parts.append(_NUMBER.pack(column.value))
        if column.valid is not None:
            _add(parts, column.valid.data)
        if column.array is not None:
            _add(parts, column.array.view(np.uint8).data)
    if headers is not None:
        parts.append(headers.packed)
    return bytes([*(column.kind for column in cells), headers is not None]), parts


def plain_length(kinds: bytes, payload_bytes: int) -> int:
    """Return the length of a block of one event that has neither arrays nor headers."""
    return 8 * len(scalars_at(kinds)) + 8 + padded(payload_bytes)


def is_plain(kinds: bytes) -> bool:
    """Return whether a block has neither arrays nor headers."""
    return max(kinds[:-1]) < Kind.EACH and not kinds[-1]


def _add(parts: list[bytes | memoryview], part: bytes | memoryview) -> None:
    parts.append(part)
    if rest := -len(part) & 7:
        parts.append(_ZEROS[:rest])
