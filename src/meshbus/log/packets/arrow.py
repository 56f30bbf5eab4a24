"""Convert recorded rows to Arrow record batches in the schema of the table `packets`, and batches back to headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.log.arrow import Wanted
from meshbus.log.packets.runs import IN_HEADER, Piece, RecordInfo, runs_of
from meshbus.log.parquet.runs import Runs
from meshbus.log.schema import PACKETS, unsigned
from meshbus.wire.constants import NET_MAGIC
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS = {column.name: column for column in PACKETS}


def to_batch(pieces: Sequence[Piece], names: Mapping[int, str], info: RecordInfo, want: Wanted) -> Any:
    """Return rows as a `pyarrow.RecordBatch`; `names` has the channels by canonical hash."""
    import pyarrow as pa

    count = sum(piece.last - piece.first for piece in pieces)
    columns = runs_of(pieces, info, want.names)
    arrays = [_array(columns[field.name], count, names, field) for field in want.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=want.schema)


def headers_of(batch: Any) -> NDArray[np.void]:
    """Return the headers of a record batch of packets in the form that the kernels of policy take."""
    headers = np.zeros(len(batch), HEADER_DTYPE)
    # The table has no column for the magic.
    headers["magic"] = NET_MAGIC
    for name, field in IN_HEADER.items():
        values = batch.column(name).to_numpy(zero_copy_only=False)
        headers[field] = unsigned(values) if _COLUMNS[name].bit_cast else values
    return headers


def _array(runs: Runs, count: int, names: Mapping[int, str], field: Any) -> Any:
    import pyarrow as pa

    lengths = runs.lengths(count)
    valid = None if runs.valid.all() else np.repeat(runs.valid, lengths)
    if field.name == "channel":
        # The column holds hashes; each becomes one dictionary entry with the name of the channel.
        hashes = np.unique(runs.values[runs.valid])
        found = pa.array([names[number] for number in hashes.view(np.uint64).tolist()], pa.string())
        places = np.searchsorted(hashes, runs.values).astype(np.int32)
        indices = pa.array(np.repeat(places, lengths), mask=None if valid is None else ~valid)
        column = pa.DictionaryArray.from_arrays(indices, found)
        return column if pa.types.is_dictionary(field.type) else column.dictionary_decode()
    cells = runs.cells(count).astype(f"i{field.type.bit_width // 8}")
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(field.type, count, [bitmap, pa.py_buffer(cells)])
