"""Sealed files of packets: standard Parquet, written from runs (log/packets/runs.py) by log/parquet/pages.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from meshbus.log.arrow import has_arrow
from meshbus.log.packets.packed import hashes_in, pack_rows
from meshbus.log.packets.row import ROW
from meshbus.log.packets.runs import Piece, RecordInfo, runs_of
from meshbus.log.parquet.pages import MAGIC, Footer, column_pages, describe, no_words
from meshbus.log.schema import PACKETS, ColumnType

_NAMES = tuple(column.name for column in PACKETS)


class ParquetFile:
    """Encodes one file; returns its parts in order, and the caller writes them."""

    def __init__(self, info: RecordInfo) -> None:
        self._info = info
        self._footer = Footer(PACKETS)
        self._start = MAGIC

    def group(self, pieces: Sequence[Piece], names: Mapping[int, str]) -> bytes:
        """Return the bytes of a row group; `names` has the channels of its rows by canonical hash."""

        def name_of(number: int) -> bytes:
            return names[number % (1 << 64)].encode()

        count = sum(piece.last - piece.first for piece in pieces)
        columns = runs_of(pieces, self._info, _NAMES)
        pages = [
            column_pages(column, columns[column.name], count, name_of if column.type is ColumnType.STRING else no_words)
            for column in PACKETS
        ]
        self._footer.add([each.chunk for each in pages], count)
        start, self._start = self._start, b""
        return b"".join([start, *(part for each in pages for part in each.parts)])

    def footer(self) -> bytes:
        """Return the end of the file, which must have at least one row group."""
        return self._footer.encode()


def warm_sealing() -> None:
    """Load every kernel that sealing needs, and pyarrow, so that no packet waits for them later."""
    rows = np.zeros(2, ROW)
    rows["header"]["counter"] = 0, 1  # so that differences are encoded too; the other columns are constant
    packed = pack_rows(rows)
    hashes_in(packed)
    ParquetFile(RecordInfo(0, 1)).group([Piece(packed, 0, 2)], {})
    if has_arrow():
        describe(PACKETS)
