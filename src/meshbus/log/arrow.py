"""Convert the rows of a log to Arrow record batches in the schema of log/schema.py, and Arrow arrays to payloads.

Payloads, headers and columns that are stored as arrays are not copied. Columns that are stored as one number, and those
that follow from others (seq, the microsecond timestamps, what is constant in a log), are computed when they are
requested. pyarrow is imported at the first conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.rows import PLACES, Rows
from meshbus.log.schema import EVENTS, Table, arrow_schema
from meshbus.names.channel import hash_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_US = 1_000
_OFFSETS: dict[str, tuple[Literal["i", "q"], int]] = {
    "binary": ("i", 4), "string": ("i", 4), "large_binary": ("q", 8), "large_string": ("q", 8),
}  # fmt: skip
"""For each type of payloads: the format of its offsets in a memoryview, and their size."""
_NO_OFFSETS = bytes(4)


class Wanted(NamedTuple):
    """The columns that a reader requests."""

    names: tuple[str, ...]
    schema: Any
    """The `pyarrow.Schema` of those columns, in their order."""


class Owner(Protocol):
    """The log that rows belong to."""

    @property
    def channel(self) -> str:
        """The channel's name."""

    @property
    def log_id(self) -> bytes:
        """16 bytes, drawn when the log was created."""


def wanted(columns: Sequence[str] | None = None, *, dictionaries: bool = True, table: Table = EVENTS) -> Wanted:
    """Select columns of a table by name, all by default; without `dictionaries` the channel is a plain string.

    Raises ConfigError for an unknown column, and LogError if pyarrow is not installed.
    """
    all_names = tuple(column.name for column in table)
    names = all_names if columns is None else tuple(columns)
    unknown = [name for name in names if name not in all_names]
    if unknown:
        raise ConfigError("columns", f"unknown column {', '.join(unknown)}; choose from {', '.join(all_names)}")
    require_arrow()
    whole = arrow_schema(table, dictionaries=dictionaries)
    import pyarrow as pa

    return Wanted(names, pa.schema([whole.field(name) for name in names], whole.metadata))


def has_arrow() -> bool:
    """Return whether pyarrow is installed."""
    from importlib.util import find_spec

    return find_spec("pyarrow") is not None


def release_memory() -> None:
    """Return what Arrow freed to the system: its allocator keeps it for the next time, which may be hours away."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def require_arrow() -> None:
    """Raise LogError if pyarrow is not installed."""
    if not has_arrow():
        raise LogError(LogFault.FAILED, "pyarrow is not installed; run: pip install 'meshbus[arrow]'")


def to_batch(rows: Rows, owner: Owner, want: Wanted, start: int, stop: int) -> Any:
    """Return the rows of a range, which must be within `rows`, as a `pyarrow.RecordBatch`."""
    import pyarrow as pa

    builder = _ArrayBuilder(rows, owner)
    arrays = [builder.array(field) for field in want.schema]
    # Built for all rows and then sliced: a slice copies nothing.
    batch = pa.RecordBatch.from_arrays(arrays, schema=want.schema)
    return batch.slice(start - rows.first, stop - start)


class _ArrayBuilder:
    """Builds the Arrow arrays of some rows."""

    def __init__(self, rows: Rows, owner: Owner) -> None:
        self._rows = rows
        self._owner = owner
        self._count = len(rows)

    def array(self, field: Any) -> Any:
        """Return one column."""
        import pyarrow as pa

        name = field.name
        if name in PLACES:
            return self._numbers(field.type, *self._rows.values(name))
        match name:
            case "seq":
                return pa.array(np.arange(self._rows.first, self._rows.end, dtype=np.int64))
            case "ts" | "recv_ts":
                # spark.md §3: tables have microseconds for people and nanoseconds as stored, so the first is derived.
                ns, valid = self._rows.values(f"{name}_ns")
                return self._numbers(field.type, None if ns is None else ns // _US, valid)
            case "payload":
                offsets, data = (pa.py_buffer(part) for part in (self._rows.offsets, self._rows.data))
                return pa.Array.from_buffers(field.type, self._count, [None, offsets, data])
            case "headers":
                return self._headers(field.type)
            case _:
                return self._constant(name, field.type)

    def _numbers(self, kind: Any, values: NDArray[Any] | None, valid: NDArray[np.uint8] | None) -> Any:
        import pyarrow as pa

        if values is None:
            return pa.nulls(self._count, kind)
        bitmap = None if valid is None else pa.py_buffer(valid)
        return pa.Array.from_buffers(kind, self._count, [bitmap, pa.py_buffer(values)])

    def _headers(self, kind: Any) -> Any:
        import pyarrow as pa

        headers = self._rows.headers
        if headers is None:
            return pa.nulls(self._count, kind)
        valid, rows, keys, values, key_data, value_data = headers.parts()
        entries = len(keys) - 1
        text = pa.Array.from_buffers(pa.string(), entries, [None, pa.py_buffer(keys), pa.py_buffer(key_data)])
        raw = pa.Array.from_buffers(pa.binary(), entries, [None, pa.py_buffer(values), pa.py_buffer(value_data)])
        pairs = pa.StructArray.from_arrays([text, raw], fields=[kind.key_field, kind.item_field])
        packed = pa.Array.from_buffers(kind, headers.rows, [pa.py_buffer(valid), pa.py_buffer(rows)], children=[pairs])
        # A single row of headers stands for all events.
        if headers.rows == self._count:
            return packed
        return packed.take(pa.array(np.zeros(self._count, np.int64)))

    def _constant(self, name: str, kind: Any) -> Any:
        import pyarrow as pa

        channel = self._owner.channel
        match name:
            case "channel" if pa.types.is_dictionary(kind):
                return pa.DictionaryArray.from_arrays(np.zeros(self._count, np.int32), pa.array([channel]))
            case "channel":
                return pa.repeat(pa.scalar(channel, kind), self._count)
            case "log_id":
                return pa.repeat(pa.scalar(self._owner.log_id, kind), self._count)
            case "chash64":
                return pa.array(np.full(self._count, hash_name(channel), np.uint64).view(np.int64))
            case _:
                return pa.array(np.full(self._count, hash_name(channel) & 0xFFFF, np.int32))


def from_binary(column: Any) -> tuple[memoryview, memoryview]:
    """Return the payloads of a binary or string array (or chunked array) of pyarrow as offsets and data, not copied.

    Raises ConfigError for another type, or if there are nulls.
    """  # hot
    whole = column if hasattr(column, "buffers") else column.combine_chunks()
    kind = str(whole.type)
    if kind not in _OFFSETS:
        raise ConfigError("events", f"must be an Arrow array of binary or string, got {kind}")
    if whole.null_count:
        raise ConfigError(
            "events", f"must not have nulls, got {whole.null_count}; drop them, or replace them by empty payloads"
        )
    if not len(whole):
        return memoryview(_NO_OFFSETS).cast("i"), memoryview(b"")
    # The first buffer is the validity bitmap, and there are no nulls.
    _, offsets, data = whole.buffers()
    code, width = _OFFSETS[kind]
    # A slice of an array shares the buffers of the whole one.
    start = whole.offset * width
    edges = memoryview(offsets)[start : start + (len(whole) + 1) * width].cast(code)
    return edges, memoryview(data) if data is not None else memoryview(b"")
