"""The arguments of an append: payloads in several forms, and the optional columns.

A column is one number for the whole batch or an array with one number per event; a column that is left out has the
log's default. Nothing here creates an object per event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

import numpy as np

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.arrow import from_binary
from meshbus.log.headers import Headers
from meshbus.log.rows import NULL, OWN, PLACES, STORED, ZERO, Cells, Kind, Numbers, Own, as_headers, make_cells
from meshbus.log.rows import pack_payloads as pack_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

Events: TypeAlias = "Sequence[bytes] | tuple[NDArray[Any], Any] | Any"
"""Payloads: a list of bytes, a tuple of numpy arrays (offsets, data), or an Arrow array of binary or string."""

HeadersGiven: TypeAlias = "Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | None"

MAX_APPEND_BYTES = 1 << 30
"""Most payload bytes in one append: offsets have 32 bits, and backends write and check an append as a whole."""
OFFSET_BYTES = 4
"""Size of one offset into the payloads."""


class Columns(TypedDict, total=False):
    """Optional columns of an append; log/schema.py says what each means."""

    pub_seq: Numbers | Own
    """The publisher's numbers. One number is that of the first event, and the others count up from it. With OWN, the
    default, they equal the sequences in this log."""
    origin: Numbers
    ts_ns: Numbers
    recv_ts_ns: Numbers
    session_id: Numbers
    stream_id: Numbers
    packet_seq: Numbers
    event_index: Numbers
    src: Numbers
    dst: Numbers
    ttl: Numbers
    hops: Numbers
    flags: Numbers
    decision: Numbers
    headers: HeadersGiven
    """One mapping for all events, or a sequence with one mapping or None per event."""


_TS, _RECV, _PUB = PLACES["ts_ns"], PLACES["recv_ts_ns"], PLACES["pub_seq"]
OWN_CELLS = Cells(Kind.COUNT, -1)
"""Stands for the log's own numbers until the first sequence is known."""


class Defaults:
    """The values of columns that an append does not give."""

    def __init__(self, *, recorder: int, origin: int) -> None:
        cells = [NULL if column.nullable else ZERO for column in STORED]
        cells[PLACES["recorder"]] = make_cells("recorder", recorder, 1)
        cells[PLACES["origin"]] = make_cells("origin", origin, 1)
        cells[_PUB] = OWN_CELLS
        self._cells = cells

    def cells(self, columns: Columns, count: int, now_ns: int) -> tuple[list[Cells], Headers | None]:
        """Return the cells and headers of one append; both times are `now_ns` unless given.

        Raises ConfigError for an unknown column or a value that does not fit.
        """
        # The list, not its content: cells are immutable, and an append replaces only some of them.
        cells = self._cells.copy()
        # An event that this node publishes is received at the same moment.
        cells[_TS] = cells[_RECV] = Cells(Kind.SAME, now_ns)
        headers = None
        for name, given in columns.items():
            if name == "headers":
                headers = as_headers(cast("HeadersGiven", given), count)
            # The recorder is a property of the log, not of an append.
            elif name not in PLACES or name == "recorder":
                raise ConfigError(
                    name, f"is not a column of an event; choose from {', '.join(Columns.__annotations__)}"
                )
            elif given is not OWN:
                cells[PLACES[name]] = make_cells(name, cast("Numbers", given), count)
        return cells, headers


def number(cells: list[Cells], first: int) -> list[Cells]:
    """Fill in the publish numbers if they are to equal the sequences, the first of which is `first`."""
    if cells[_PUB] is OWN_CELLS:
        cells[_PUB] = Cells(Kind.COUNT, first)
    return cells


def pack_events(events: Events) -> tuple[memoryview, memoryview]:
    """Convert payloads to 32-bit offsets from 0 and data, without copying where that is possible.

    Raises ConfigError for anything but payloads, and LogError if there are too many bytes.
    """  # hot
    # A tuple of numpy arrays, not a tuple of two payloads.
    if isinstance(events, tuple) and len(events) == 2 and isinstance(events[0], np.ndarray):
        data = _bytes_of(events[1])
        edges = _checked(events[0], len(data))
    # Recognized by its attributes, so that pyarrow need not be imported.
    elif hasattr(events, "type") and hasattr(events, "null_count"):
        edges, data = from_binary(events)
    else:
        try:
            offsets, data = pack_list(events)
        except TypeError:
            raise ConfigError(
                "events", "must be a list of bytes, (offsets, data) or an Arrow array of binary"
            ) from None
        edges = offsets.data
    start, stop = edges[0], edges[-1]  # from a memoryview: numpy scalars would cost more than the rest of this function
    if stop - start > MAX_APPEND_BYTES:
        raise LogError(
            LogFault.TOO_LARGE,
            f"an append of {stop - start} bytes is too large, at most {MAX_APPEND_BYTES} fit; append fewer events at once",
        )
    # A slice that starts at 0 with 32-bit offsets, the usual case, is used as it is.
    if start or edges.itemsize != OFFSET_BYTES:
        edges = (np.asarray(edges) - start).astype(np.int32).data
    return edges.cast("B"), data[start:stop]


def _bytes_of(data: Any) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError:
        raise ConfigError("events", "the data of (offsets, data) must be a contiguous buffer of bytes") from None


def _checked(offsets: NDArray[Any], size: int) -> memoryview:
    """Return offsets as a contiguous array; raises ConfigError if they point outside the data or decrease."""
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        raise ConfigError(
            "events", "offsets must be a 1-dimensional array of integers with one more entry than there are events"
        )
    inside = int(offsets[0]) >= 0 and int(offsets[-1]) <= size
    if not inside or bool((offsets[1:] < offsets[:-1]).any()):
        raise ConfigError("events", f"offsets must not decrease and must be in [0, {size}]")
    return np.ascontiguousarray(offsets, np.int32 if offsets.dtype == np.int32 else np.int64).data
