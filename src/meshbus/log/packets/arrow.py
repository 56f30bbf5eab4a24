"""Recorded rows as Arrow record batches in the schema of the table `packets` (log/schema.py), and as headers again.

Here a row gets its nulls: what played no part in a decision is null, whatever is in the row. A subnet played a part when
a gateway with a configuration judged a publication and got as far as looking at it, which is after the hops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshbus.log.arrow import Wanted
from meshbus.log.packets.row import JUDGED, NOT_ASKED, ROUTED
from meshbus.log.schema import PACKETS, Column, ColumnType, unsigned
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.policy.fate import BEFORE_GATEWAY
from meshbus.policy.verdict import DropReason
from meshbus.wire.constants import NET_MAGIC
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Cells = tuple[NDArray[Any], NDArray[np.bool_] | None]
    """Values, and which of them are not null; None when all are."""

_IN_HEADER = {
    "ttl": "hop_ttl",
    "hops": "hop_count",
    "chash": "channel_hash",
    "packet_seq": "sequence",
    "origin": "origin_hash",
    **{
        name: name
        for name in (
            "version", "flags", "priority", "frag_flags", "subprotocol_id", "nonce_prefix", "counter", "session_id",
            "stream_id", "subnet_id", "fragment_id", "fragment_offset", "payload_len", "event_count",
        )
    },
}  # fmt: skip
"""Columns of the header, and what the wire calls them."""
_IN_ROUTE = {
    "route_src": "src_id",
    "route_dst": "dest_id",
    "route_ttl": "ttl",
    "route_hops": "hop_count",
    "route_flags": "flags",
}
_COLUMNS = {column.name: column for column in PACKETS}
_STORED: dict[ColumnType, np.dtype[Any]] = {
    ColumnType.BIGINT: np.dtype(np.int64),
    ColumnType.INT: np.dtype(np.int32),
    ColumnType.SMALLINT: np.dtype(np.int16),
    ColumnType.TIMESTAMP: np.dtype(np.int64),
}
_US = 1_000
_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT)
_WIRE_MASK = np.uint64(0xFFFF)
_LOOKED_AT = np.ones(256, np.bool_)
"""By reason: whether subnets are looked at before it is found."""
_LOOKED_AT[[DropReason.TTL_EXPIRED, *BEFORE_GATEWAY]] = False


class Whose(NamedTuple):
    """What all rows of a file have in common."""

    recorder: int
    sampling: int


def to_batch(rows: NDArray[np.void], names: Mapping[int, str], whose: Whose, want: Wanted) -> Any:
    """Give rows as a `pyarrow.RecordBatch`; `names` are the channels by canonical hash."""
    import pyarrow as pa

    arrays = [_array(rows, names, whose, field) for field in want.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=want.schema)


def headers_of(batch: Any) -> NDArray[np.void]:
    """Give the headers of a record batch of packets as the kernels of policy take them."""
    headers = np.zeros(len(batch), HEADER_DTYPE)
    headers["magic"] = NET_MAGIC
    for name, field in _IN_HEADER.items():
        values = batch.column(name).to_numpy(zero_copy_only=False)
        headers[field] = unsigned(values) if _COLUMNS[name].bit_cast else values
    return headers


def _array(rows: NDArray[np.void], names: Mapping[int, str], whose: Whose, field: Any) -> Any:
    import pyarrow as pa

    if field.name == "channel":
        return _names_of(rows["chash64"], names, field.type)
    column = _COLUMNS[field.name]
    values, valid = _cells(rows, whose, column)
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(field.type, len(rows), [bitmap, pa.py_buffer(_stored(values, column))])


def _cells(rows: NDArray[np.void], whose: Whose, column: Column) -> Cells:
    name = column.name
    if name in _IN_HEADER:
        return rows["header"][_IN_HEADER[name]], None
    if name in _IN_ROUTE:
        return rows["route"][_IN_ROUTE[name]], rows["present"] & ROUTED != 0
    if name in _SPECIAL:
        return _SPECIAL[name](rows, whose)
    return rows[name], None


def _of_or_none(name: str) -> Callable[[NDArray[np.void], Whose], Cells]:
    return lambda rows, _: (rows[name], rows[name] != 0)


def _of_gateway(name: str) -> Callable[[NDArray[np.void], Whose], Cells]:
    return lambda rows, _: (rows[name], _played_a_part(rows))


_SPECIAL: dict[str, Callable[[NDArray[np.void], Whose], Cells]] = {
    "recorder": lambda rows, whose: (np.full(len(rows), whose.recorder, np.uint64), None),
    "sampling_rate": lambda rows, whose: (np.full(len(rows), whose.sampling, np.int32), None),
    "ts": lambda rows, _: (rows["ts_ns"] // _US, None),
    "previous_hop": _of_or_none("previous_hop"),
    "next_hop": _of_or_none("next_hop"),
    "chash64": _of_or_none("chash64"),
    "src": _of_gateway("src"),
    "dst": _of_gateway("dst"),
    "guard": lambda rows, _: (rows["guard"], rows["guard"] != NOT_ASKED),
}


def _played_a_part(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Say for which packets a gateway looked at the subnets."""
    headers = rows["header"]
    streams = headers["stream_id"]
    publication = (headers["subprotocol_id"] == 0) & (streams & _PUBLISH_BIT != 0)
    publication &= (streams & _WIRE_MASK) == headers["channel_hash"]
    publication &= rows["present"] & JUDGED != 0
    publication &= _LOOKED_AT[rows["reason"]]
    return np.asarray(publication)


def _stored(values: NDArray[Any], column: Column) -> NDArray[Any]:
    """Give the numbers as they are kept: ids of 64 and 32 bits bit-cast, smaller ones widened."""
    kind = _STORED[column.type]
    if column.bit_cast:
        return np.ascontiguousarray(values).view(kind)
    return values.astype(kind)


def _names_of(hashes: NDArray[np.uint64], names: Mapping[int, str], kind: Any) -> Any:
    import pyarrow as pa

    known = pa.array(np.ascontiguousarray(hashes), mask=hashes == 0).dictionary_encode()
    found = pa.array([names[number.as_py()] for number in known.dictionary], pa.string())
    column = pa.DictionaryArray.from_arrays(known.indices, found)
    return column if pa.types.is_dictionary(kind) else column.dictionary_decode()
