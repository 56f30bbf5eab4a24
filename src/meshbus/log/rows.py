"""Rows as columns: numpy arrays for many events, on the way into and out of storage.

A column of a batch rarely has a different value in each row. `Cells` says how its values are given, and a block stores
only that: nothing for NULL and ZERO, one number for SAME and COUNT (which counts up from it), an array for EACH, and an
array with a bitmap for SOME (the other rows are null).

Columns that are constant in a log (channel, log id, hashes) or follow from others (seq, the microsecond timestamps) are
added in log/arrow.py. The bytes of a stored block are in log/embedded/block.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from meshbus.errors import ConfigError
from meshbus.log.headers import Headers
from meshbus.log.schema import EVENTS, ColumnType

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "int | NDArray[Any] | Sequence[int] | None"
"""A column as a caller gives it: one number for all rows or one per row; a masked array if some are null."""


class Own(Enum):
    """The type of OWN, which is its only value."""

    OWN = "own"
    """The publish number equals the sequence in this log, as in the log of the channel's publisher."""


OWN = Own.OWN


class Kind(IntEnum):
    """How the values of a column are given; the numbers are part of the file format."""

    NULL = 0
    ZERO = 1
    SAME = 2
    COUNT = 3
    EACH = 4
    SOME = 5


class Cells(NamedTuple):
    """The values of one column."""

    kind: Kind
    value: int = 0
    """For SAME and COUNT."""
    array: NDArray[Any] | None = None
    """For EACH and SOME, in the stored type."""
    valid: NDArray[np.uint8] | None = None
    """For SOME: one bit per row, the lowest first, as in Arrow."""


NULL = Cells(Kind.NULL)
ZERO = Cells(Kind.ZERO)

_DTYPES = {ColumnType.BIGINT: "<i8", ColumnType.INT: "<i4", ColumnType.SMALLINT: "<i2"}
# The order is part of the file format (log/embedded/block.py).
_NAMES = (
    "pub_seq", "origin", "ts_ns", "recv_ts_ns", "recorder", "session_id", "stream_id", "packet_seq", "event_index",
    "src", "dst", "ttl", "hops", "flags", "decision",
)  # fmt: skip


class Stored(NamedTuple):
    """One column of a block."""

    name: str
    dtype: np.dtype[Any]
    nullable: bool
    bit_cast: bool


_BY_NAME = {column.name: column for column in EVENTS}
STORED = tuple(
    Stored(name, np.dtype(_DTYPES[_BY_NAME[name].type]), _BY_NAME[name].nullable, _BY_NAME[name].bit_cast)
    for name in _NAMES
)
"""The columns of a block in their order; a change needs a new format version."""
PLACES = {column.name: place for place, column in enumerate(STORED)}


class Rows(msgspec.Struct, frozen=True, eq=False):
    """Consecutive events of a log, as columns."""

    first: int
    """Sequence of the first row; the others follow."""
    cells: tuple[Cells, ...]
    """One for each of STORED."""
    offsets: NDArray[np.int32]
    """Payload `i` is `data[offsets[i] : offsets[i + 1]]`."""
    data: memoryview
    headers: Headers | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def end(self) -> int:
        """One past the sequence of the last row."""
        return self.first + len(self)

    def payloads(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield some payloads as bytes; creates an object per event."""
        if start >= stop:
            return iter(())
        edges = self.offsets[start : stop + 1].tolist()
        raw, base = bytes(self.data[edges[0] : edges[-1]]), edges[0]
        return (raw[a - base : b - base] for a, b in pairwise(edges))

    def values(self, name: str) -> tuple[NDArray[Any] | None, NDArray[np.uint8] | None]:
        """Return a column as an array of its stored type and its bitmap; (None, None) if all values are null."""
        place = PLACES[name]
        return expand(self.cells[place], len(self), STORED[place].dtype)


def expand(cells: Cells, count: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any] | None, NDArray[np.uint8] | None]:
    """Return the values of cells as an array, and their bitmap if there are nulls; EACH and SOME are not copied."""
    match cells.kind:
        case Kind.NULL:
            return None, None
        case Kind.ZERO:
            return np.zeros(count, dtype), None
        case Kind.SAME:
            return np.full(count, cells.value, dtype), None
        case Kind.COUNT:
            return np.arange(cells.value, cells.value + count, dtype=dtype), None
        case Kind.EACH | Kind.SOME:
            return cells.array, cells.valid


def make_cells(name: str, given: Numbers, count: int) -> Cells:
    """Check a column and convert it to its stored type; arrays of the right type are not copied.

    Raises ConfigError if the length, the type or a value does not fit.
    """
    column = STORED[PLACES[name]]
    if given is None:
        if not column.nullable:
            raise ConfigError(name, "must not be null; pass one number, or one per event")
        return NULL
    if isinstance(given, int | np.integer):
        return _same(column, int(given))
    if isinstance(given, np.ma.MaskedArray):
        return _some(column, given, count)
    return Cells(Kind.EACH, array=_array(column, np.asarray(given), count))


def _same(column: Stored, number: int) -> Cells:
    value = _wrapped(column, number)
    # One publish number is that of the first event; the others count up.
    if column.name == "pub_seq":
        return Cells(Kind.COUNT, value)
    # ZERO takes no byte in a block.
    return Cells(Kind.SAME, value) if value else ZERO


def _some(column: Stored, given: np.ma.MaskedArray[Any, Any], count: int) -> Cells:
    array = _array(column, given.filled(0), count)
    valid = ~np.ma.getmaskarray(given)
    if valid.all():
        return Cells(Kind.EACH, array=array)
    if not column.nullable:
        raise ConfigError(column.name, "must not be null; fill the masked values")
    if not valid.any():
        return NULL
    return Cells(Kind.SOME, array=array, valid=np.packbits(valid, bitorder="little"))


def _wrapped(column: Stored, number: int) -> int:
    """Check the range of a number and wrap it if the column is bit-cast."""
    bits = 8 * column.dtype.itemsize
    low, high = -(1 << bits - 1), (1 << bits if column.bit_cast else 1 << bits - 1) - 1
    if not low <= number <= high:
        raise ConfigError(column.name, f"must be in [{low}, {high}], got {number}")
    # spark.md §3: unsigned values are stored bit-cast in the signed type of equal width.
    return number - (1 << bits) if number >= 1 << bits - 1 else number


def _array(column: Stored, given: NDArray[Any], count: int) -> NDArray[Any]:
    if given.shape != (count,):
        raise ConfigError(column.name, f"must have one number for each of {count} events, got shape {given.shape}")
    if given.dtype == column.dtype:
        return np.ascontiguousarray(given)
    if given.dtype.kind not in "iu":
        raise ConfigError(column.name, f"must be integers, got {given.dtype}")
    # A narrower type always fits.
    if count and given.dtype.itemsize >= column.dtype.itemsize:
        _wrapped(column, int(given.min()))
        _wrapped(column, int(given.max()))
    return given.astype(column.dtype)  # wraps if the column is bit-cast


def pack_payloads(events: Sequence[bytes]) -> tuple[NDArray[np.int64], memoryview]:
    """Join payloads into one buffer with offsets."""
    offsets = np.zeros(len(events) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, events), np.int64, len(events)), out=offsets[1:])
    return offsets, memoryview(b"".join(events))


def as_headers(given: Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | None, count: int) -> Headers | None:
    """Check and pack application headers: one mapping for all events, or one mapping or None per event."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return Headers.of([given])
    if len(given) != count:
        raise ConfigError("headers", f"must be one mapping for all events or one for each of {count}, got {len(given)}")
    return Headers.of(given)
