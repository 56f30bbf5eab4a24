"""The format of a hot file of packets: a header that identifies the recorder, then blocks of rows.

    file header                                    block
    0   magic "MBPK"                               0   magic "MBPB"
    4   version u16                                4   4 zero bytes
    6   length of this header u16                  8   checksum u64: xxh3 of everything from byte 16 on
    8   checksum u64: xxh3 of bytes 16 on          16  number of the first row u64
    16  number of the first row u64                24  written i64, nanoseconds since 1970
    24  node id of the recorder u64                32  rows u32
    32  created i64, nanoseconds since 1970        36  bytes of names u32
    40  sampling rate u32                          40  bytes of rows u32
    44  4 zero bytes                               44  4 zero bytes
                                                   48  names: JSON, those that are in no earlier block of the file,
                                                       then the rows (log/packets/packed.py)

The first block that is cut off or damaged ends the file, because a crash tears only what follows the last whole block.
Pure: bytes in, values out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec
import numpy as np
import xxhash

from meshbus.errors import UNDECODABLE
from meshbus.formats import Format
from meshbus.log.packets.packed import BLOCK_ROWS, Packed, hashes_in
from meshbus.log.packets.runs import RecordInfo

FORMAT_VERSION = 3
"""Versions 1 (rows of 136 bytes) and 2 (no repetitions) were never released."""
ON_DISK = (
    Format(
        name="hot file of packets",
        where="`log_dir/_packets/*/_hot/*.hot`",
        what="the newest packets of the flight recorder",
        version=FORMAT_VERSION,
        oldest=FORMAT_VERSION,
        mark="a field of the file header",
        refused="the flight recorder and its readers",
    ),
)
FILE_MAGIC, BLOCK_MAGIC = b"MBPK", b"MBPB"
_FILE = struct.Struct("<4sHHQQQqI4x")
_BLOCK = struct.Struct("<4s4xQQqIII4x")
_CHECKED_FROM = 16
_NO_NAMES = b""


class UnknownFile(ValueError):
    """The bytes are not a hot file of packets."""


class NewerFile(ValueError):
    """A newer meshbus wrote the file; its rows must stay."""


class Content(msgspec.Struct, eq=False):
    """The content of the whole blocks of a hot file."""

    first: int
    info: RecordInfo
    created_ns: int
    blocks: list[tuple[int, Packed]]
    """Number of the first row, and the rows as views of the buffer."""
    names: dict[int, str]
    """Channels by canonical hash."""
    end: int
    """One past the last row."""
    size: int
    """Offset of the end of the last whole block."""
    written_ns: int
    """When the last block was written."""


def pack_file_header(first: int, info: RecordInfo, created_ns: int) -> bytes:
    """Return the bytes at the start of a hot file."""
    fields = (first, info.recorder, created_ns, info.sampling)
    packed = _FILE.pack(FILE_MAGIC, FORMAT_VERSION, _FILE.size, 0, *fields)
    return _sealed(packed, xxhash.xxh3_64_intdigest(packed[_CHECKED_FROM:]))


def pack_block(first: int, rows: Packed, names: Mapping[int, str], written_ns: int) -> list[bytes | memoryview]:
    """Return a block as the buffers to write one after the other; the rows are not copied."""
    text = msgspec.json.encode({str(number): name for number, name in names.items()}) if names else _NO_NAMES
    content = rows.data.data
    packed = _BLOCK.pack(BLOCK_MAGIC, 0, first, written_ns, rows.length, len(text), len(content))
    digest = xxhash.xxh3_64(packed[_CHECKED_FROM:])
    digest.update(text)
    digest.update(content)
    return [_sealed(packed, digest.intdigest()), text, content]


def read_content(data: bytes | memoryview) -> Content:
    """Parse a hot file up to the last whole block.

    Raises UnknownFile if it has no whole header, and NewerFile if a newer meshbus wrote it.
    """
    buffer = memoryview(data)
    if len(buffer) < _FILE.size:
        raise UnknownFile("the file is shorter than a header")
    magic, version, size, checksum, first, recorder, created_ns, sampling = _FILE.unpack_from(buffer)
    if magic != FILE_MAGIC:
        raise UnknownFile("not a hot file of packets")
    if version < FORMAT_VERSION:
        raise UnknownFile("a hot file of a version that was never released")
    if version > FORMAT_VERSION:
        raise NewerFile(ON_DISK[0].problem(version))
    if size != _FILE.size or xxhash.xxh3_64_intdigest(buffer[_CHECKED_FROM:size]) != checksum:
        raise UnknownFile("the file header is damaged")
    content = Content(first, RecordInfo(recorder, sampling), created_ns, [], {}, first, size, created_ns)
    while _take_block(buffer, content):
        pass
    return content


def _take_block(buffer: memoryview, content: Content) -> bool:
    """Parse one more block; return whether there was a whole one."""
    at = content.size
    if len(buffer) - at < _BLOCK.size:
        return False
    magic, checksum, first, written_ns, count, name_bytes, row_bytes = _BLOCK.unpack_from(buffer, at)
    names_at = at + _BLOCK.size
    rows_at = names_at + name_bytes
    end = rows_at + row_bytes
    if magic != BLOCK_MAGIC or first != content.end or len(buffer) < end:
        return False
    if not 0 < count <= BLOCK_ROWS:  # a forged count could repeat a row any number of times
        return False
    if xxhash.xxh3_64_intdigest(buffer[at + _CHECKED_FROM : end]) != checksum:
        return False
    rows = Packed(np.frombuffer(buffer, np.uint8, row_bytes, rows_at), count)
    # The checksum is right, but kernels read without bounds checks: the rows must be well-formed too.
    if hashes_in(rows) is None:
        return False
    try:
        names = _names(buffer[names_at:rows_at]) if name_bytes else {}
    except (*UNDECODABLE, ValueError):
        return False
    content.names.update(names)
    content.blocks.append((first, rows))
    content.end, content.size = first + count, end
    content.written_ns = written_ns
    return True


def _names(text: memoryview) -> dict[int, str]:
    """Return channels by canonical hash; raises ValueError, or what msgspec raises."""
    names = {int(number): name for number, name in msgspec.json.decode(text, type=dict[str, str]).items()}
    if not all(0 <= number < 1 << 64 for number in names):
        raise ValueError("a canonical hash has 64 bits")
    return names


def _sealed(packed: bytes, checksum: int) -> bytes:
    return packed[:8] + checksum.to_bytes(8, "little") + packed[_CHECKED_FROM:]
