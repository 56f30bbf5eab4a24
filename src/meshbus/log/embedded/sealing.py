"""Write a hot file as a sealed segment: Parquet, from runs of equal values, without the interpreter's lock.

A batch has most of its columns as one number, and nearly all of a segment is payloads. So columns are encoded from runs
(log/parquet/pages.py), and payloads are copied, compressed if that is worth it, checksummed and written a page at a time.
pyarrow would expand and hash 24 values per event. It writes hot files with application headers, which are maps, and all
of them where loops cannot be compiled: it is faster than their references.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus import jit
from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import to_batch, wanted
from meshbus.log.embedded.blockruns import RunFinder
from meshbus.log.embedded.blockscan import Damaged, Parts, survey
from meshbus.log.folder import segment_name
from meshbus.log.parquet.pages import (
    MAGIC,
    UNCOMPRESSED,
    ZSTD,
    Chunk,
    Footer,
    Pages,
    bytes_chunk,
    column_pages,
    data_page,
    no_words,
    null_map_pages,
)
from meshbus.log.parquet.runs import Runs, one_run
from meshbus.log.schema import EVENTS
from meshbus.log.segment import Segment, Sink, group_rows, new_segment, write_segment
from meshbus.names.channel import hash_name

if TYPE_CHECKING:
    from meshbus.log.embedded.block import HotHeader
    from meshbus.log.embedded.hot import HotIndex
    from meshbus.log.files import Files

_PAGE = 1 << 20
"""Bytes of payloads in a page: the usual size, and small enough to stay in the processor's cache until it is written."""
_SAMPLE = 1 << 16
"""Bytes that are compressed to find out whether that is worth it."""
_WORTH = 0.75
"""Payloads are compressed if that leaves less than this part of them: every later read has to decompress them."""
_US = 1_000
*_BEFORE, _PAYLOAD, _HEADERS = EVENTS


def seal_hot(files: Files, folder: Path, hot: HotIndex, *, compress: bool) -> Segment:
    """Write a hot file that is no longer appended to as a segment under a temporary name, and sync and describe it.

    Without `compress`, payloads are stored as they are. Raises LogError if a block is damaged.
    """
    view, header = hot.view(), hot.header
    per_group = group_rows(hot.end - header.first, hot.size)
    try:
        # The last block of a file whose end was replaced may have rows too many, which only the other way leaves out.
        parts = survey(view) if jit.available() and not hot.is_cut else None
        if parts is None:
            want = wanted()
            batches = (
                to_batch(rows, header, want, rows.first, min(rows.end, hot.end))
                for rows in view.rows(header.first, hot.end)
            )
            return write_segment(
                files,
                folder,
                batches,
                first=header.first,
                end=hot.end,
                per_group=per_group,
                written_ns=hot.written_ns,
                hot_bytes=hot.size,
                compress=compress,
            )
        with new_segment(files, folder / segment_name(header.first, hot.end)) as sink:
            _write(sink, header, parts, per_group, compress=compress)
    except Damaged as error:
        raise LogError(
            LogFault.CORRUPT,
            f"{hot.path}: the block at offset {error.at} is damaged: its sizes do not add up; restore the file from a copy",
        ) from None
    name = segment_name(header.first, hot.end)
    return Segment(name, header.first, hot.end, sink.size, per_group, hot.written_ns, hot_bytes=hot.size)


def _write(sink: Sink, header: HotHeader, parts: Parts, per_group: int, *, compress: bool) -> None:
    """Write all rows of a hot file."""
    footer, finder, held = Footer(EVENTS), RunFinder(parts), [MAGIC]
    for low in range(0, parts.rows, per_group):
        high = min(low + per_group, parts.rows)
        columns = _columns(header, low, high - low, finder.runs(low, high))
        maps = null_map_pages(_HEADERS, high - low)
        # Small parts are written together with a page of payloads.
        held += [part for column in columns for part in column.parts]
        payloads = _write_payloads(sink, held, parts, low, high, compress=compress)
        held = [part for leaf in maps for part in leaf.parts]
        footer.add([*(column.chunk for column in columns), payloads, *(leaf.chunk for leaf in maps)], high - low)
    sink.put([*held, footer.encode()])


def _columns(header: HotHeader, low: int, count: int, stored: Mapping[str, Runs]) -> list[Pages]:
    """Return the pages of all columns before the payloads, for `count` rows from the row `low` on."""
    chash = hash_name(header.channel)
    columns = {
        "channel": one_run(0),
        "log_id": one_run(0),
        "seq": one_run(header.first + low, step=1),
        "chash64": one_run(np.uint64(chash).astype(np.int64).item()),
        "chash": one_run(chash & 0xFFFF),
        **stored,
    }
    for name in ("ts", "recv_ts"):
        # spark.md §3: tables have microseconds for people and nanoseconds as stored, so the first is derived.
        times = columns[f"{name}_ns"]
        columns[name] = times._replace(values=times.values // _US)
    words = {"channel": lambda _: header.channel.encode(), "log_id": lambda _: header.log_id}
    return [column_pages(column, columns[column.name], count, words.get(column.name, no_words)) for column in _BEFORE]


def _write_payloads(sink: Sink, held: list[bytes], parts: Parts, low: int, high: int, *, compress: bool) -> Chunk:
    """Write the pages of the payloads of a range of rows after what is held, and describe them."""
    raw, begin, codec = 0, sink.size + sum(map(len, held)), None
    for number, (page, rows) in enumerate(parts.payloads(low, high, _PAGE)):
        # By the first page: a column has one codec in a row group.
        codec = _codec(page) if compress and not number else codec
        content = page if codec is None else codec.compress(page, asbytes=True)
        header = data_page(content, rows, len(page))
        sink.put([*held, header, content])
        sink.begin_sync()
        raw += len(header) + len(page)
        held = []
    name = UNCOMPRESSED if codec is None else ZSTD
    return bytes_chunk(_PAYLOAD, high - low, sink.size - begin, raw=raw, codec=name)


def _codec(page: memoryview) -> Any:
    """Return what payloads like these are compressed with; None if that is not worth it."""
    import pyarrow as pa

    codec, sample = pa.Codec("zstd"), page[:_SAMPLE]
    return codec if len(codec.compress(sample)) < _WORTH * len(sample) else None
