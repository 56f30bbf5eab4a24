"""Recorded rows as Arrow record batches in the schema of the table `packets` (log/schema.py), and as headers again.

Here a row gets its nulls: what played no part in a decision is null, whatever is in the row. A subnet played a part when
a gateway with a configuration judged a publication and got as far as looking at it, which is after the hops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshbus.log.arrow import Wanted
from meshbus.log.packets.fields import IN_HEADER, IN_ROUTE, PRESENT, fields_of
from meshbus.log.packets.row import JUDGED, NOT_ASKED, ROUTED
from meshbus.log.schema import PACKETS, unsigned
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.policy.fate import BEFORE_GATEWAY
from meshbus.policy.verdict import DropReason
from meshbus.wire.constants import NET_MAGIC
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.packets.fields import Fields

    Cells = tuple[NDArray[Any], NDArray[np.bool_] | None]
    """Values, and which of them are not null; None when all are."""

_COLUMNS = {column.name: column for column in PACKETS}
_JUDGED_BY = "judged by"
"""Beside the fields: whether the subnets played a part."""
_SUBNETS_NEED = ("subprotocol_id", "stream_id", "chash", "reason", PRESENT)
_NEEDED: dict[str, tuple[str, ...]] = {
    "recorder": (),
    "sampling_rate": (),
    "ts": ("ts_ns",),
    "channel": ("chash64",),
    "src": ("src", *_SUBNETS_NEED),
    "dst": ("dst", *_SUBNETS_NEED),
    **{name: (name, PRESENT) for name in IN_ROUTE},
}
"""Fields that make a column, where it is not the one of its own name alone."""
_US = 1_000
_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT).astype(np.int64)
_WIRE_MASK = 0xFFFF
_LOOKED_AT = np.ones(256, np.bool_)
"""By reason: whether subnets are looked at before it is found."""
_LOOKED_AT[[DropReason.TTL_EXPIRED, *BEFORE_GATEWAY]] = False


class Whose(NamedTuple):
    """What all rows of a file have in common."""

    recorder: int
    sampling: int


def to_batch(blocks: Sequence[NDArray[np.void]], names: Mapping[int, str], whose: Whose, want: Wanted) -> Any:
    """Give rows as a `pyarrow.RecordBatch`; `names` are the channels by canonical hash."""
    import pyarrow as pa

    needed = dict.fromkeys(name for field in want.schema for name in _NEEDED.get(field.name, (field.name,)))
    fields = dict(fields_of(blocks, tuple(needed)))
    if "src" in fields or "dst" in fields:
        fields[_JUDGED_BY] = _played_a_part(fields)
    count = sum(map(len, blocks))
    arrays = [_array(fields, count, names, whose, field) for field in want.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=want.schema)


def headers_of(batch: Any) -> NDArray[np.void]:
    """Give the headers of a record batch of packets as the kernels of policy take them."""
    headers = np.zeros(len(batch), HEADER_DTYPE)
    headers["magic"] = NET_MAGIC
    for name, field in IN_HEADER.items():
        values = batch.column(name).to_numpy(zero_copy_only=False)
        headers[field] = unsigned(values) if _COLUMNS[name].bit_cast else values
    return headers


def _array(fields: Fields, count: int, names: Mapping[int, str], whose: Whose, field: Any) -> Any:
    import pyarrow as pa

    if field.name == "channel":
        return _names_of(fields["chash64"].view(np.uint64), names, field.type)
    values, valid = _cells(fields, count, whose, field.name)
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(field.type, count, [bitmap, pa.py_buffer(values)])


def _cells(fields: Fields, count: int, whose: Whose, name: str) -> Cells:
    match name:
        case "recorder":
            return np.full(count, whose.recorder, np.uint64), None
        case "sampling_rate":
            return np.full(count, whose.sampling, np.int32), None
        case "ts":
            return fields["ts_ns"] // _US, None
        case "previous_hop" | "next_hop" | "chash64":
            return fields[name], fields[name] != 0
        case "src" | "dst":
            return fields[name], fields[_JUDGED_BY]
        case "guard":
            return fields[name], fields[name] != NOT_ASKED
    return fields[name], fields[PRESENT] & ROUTED != 0 if name in IN_ROUTE else None


def _played_a_part(fields: Fields) -> NDArray[np.bool_]:
    """Say for which packets a gateway looked at the subnets."""
    streams = fields["stream_id"]
    publication = (fields["subprotocol_id"] == 0) & (streams & _PUBLISH_BIT != 0)
    publication &= (streams & _WIRE_MASK) == fields["chash"]
    publication &= fields[PRESENT] & JUDGED != 0
    reasons = fields["reason"]
    if reasons.any():
        publication &= _LOOKED_AT[reasons]
    return np.asarray(publication)


def _names_of(hashes: NDArray[np.uint64], names: Mapping[int, str], kind: Any) -> Any:
    import pyarrow as pa

    known = pa.array(hashes, mask=hashes == 0).dictionary_encode()
    found = pa.array([names[number.as_py()] for number in known.dictionary], pa.string())
    column = pa.DictionaryArray.from_arrays(known.indices, found)
    return column if pa.types.is_dictionary(kind) else column.dictionary_decode()
