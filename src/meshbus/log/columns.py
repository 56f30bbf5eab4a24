"""What a caller may say about the events of an append, beside their payloads.

Each is one number for the whole batch or an array of one for each event; what is left out takes the default of the log.
Nothing here makes an object per event.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

import numpy as np

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.arrow import from_binary
from meshbus.log.embedded.block import MAX_BLOCK_BYTES, OFFSET_BYTES, Form, pack_cells, scalars_at
from meshbus.log.headers import Headers
from meshbus.log.rows import NULL, OWN, PLACES, STORED, ZERO, Cells, Kind, Numbers, Own, as_headers, make_cells
from meshbus.log.rows import pack_payloads as pack_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

Events: TypeAlias = "Sequence[bytes] | tuple[NDArray[Any], Any] | Any"
"""Payloads: a list of bytes, (offsets, data) as numpy has them, or an Arrow array of binary or text."""

HeadersGiven: TypeAlias = "Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | None"


class Columns(TypedDict, total=False):
    """What can be said about events; see log/schema.py for what each column means."""

    pub_seq: Numbers | Own
    """The publisher's numbers; one number is the first, and the others count on. OWN, the default: the log's own."""
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
    """One mapping for all events, or one (or None) each."""


_TS, _RECV, _PUB = PLACES["ts_ns"], PLACES["recv_ts_ns"], PLACES["pub_seq"]
OWN_CELLS = Cells(Kind.COUNT, -1)
"""Stands for the log's own numbers until the first is known."""


class Defaults:
    """The cells of a log when nothing is said."""

    def __init__(self, *, recorder: int, origin: int) -> None:
        cells = [NULL if column.nullable else ZERO for column in STORED]
        cells[PLACES["recorder"]] = make_cells("recorder", recorder, 1)
        cells[PLACES["origin"]] = make_cells("origin", origin, 1)
        cells[_PUB] = OWN_CELLS
        self._cells = cells
        cells[_TS] = cells[_RECV] = Cells(Kind.SAME)
        self._kinds, _ = pack_cells(cells)
        places = sorted(scalars_at(self._kinds))
        numbers = [cells[place].value for place in places]
        self._between, self._after = numbers[1 : places.index(_TS)], numbers[places.index(_RECV) + 1 :]
        self._pack = struct.Struct(f"<{len(numbers)}q").pack

    def plain(self, first: int, now_ns: int) -> Form:
        """Give the form of events of which nothing is said: `pack_cells` of the defaults, but faster."""  # hot
        return self._kinds, (self._pack(first, *self._between, now_ns, now_ns, *self._after),)

    def cells(self, columns: Columns, count: int, now_ns: int) -> tuple[list[Cells], Headers | None]:
        """Make the cells of one append; both times are now unless said otherwise.

        Raises ConfigError for an unknown column, or one that does not fit.
        """
        cells = self._cells.copy()
        cells[_TS] = cells[_RECV] = Cells(Kind.SAME, now_ns)
        headers = None
        for name, given in columns.items():
            if name == "headers":
                headers = as_headers(cast("HeadersGiven", given), count)
            elif name not in PLACES or name == "recorder":
                raise ConfigError(name, f"is no column of an event; there are {', '.join(Columns.__annotations__)}")
            elif given is not OWN:
                cells[PLACES[name]] = make_cells(name, cast("Numbers", given), count)
        return cells, headers


def number(cells: list[Cells], first: int) -> list[Cells]:
    """Fill in the log's own numbers, where they are wanted."""
    if cells[_PUB] is OWN_CELLS:
        cells[_PUB] = Cells(Kind.COUNT, first)
    return cells


def pack_events(events: Events) -> tuple[memoryview, memoryview]:
    """Bring payloads to 32-bit offsets from 0 and data; raises ConfigError for no payloads, LogError for too many."""  # hot
    if isinstance(events, tuple) and len(events) == 2 and isinstance(events[0], np.ndarray):
        data = _bytes_of(events[1])
        edges = _checked(events[0], len(data))
    elif hasattr(events, "type") and hasattr(events, "null_count"):
        edges, data = from_binary(events)
    else:
        try:
            offsets, data = pack_list(events)
        except TypeError:
            raise ConfigError("events", "expected bytes, (offsets, data) or an Arrow array of binary") from None
        edges = offsets.data
    start, stop = edges[0], edges[-1]  # of a memoryview: numbers of numpy would cost more than all the rest
    if stop - start > MAX_BLOCK_BYTES:
        raise LogError(
            LogFault.TOO_LARGE,
            f"{stop - start} bytes in one append, at most {MAX_BLOCK_BYTES} fit: append less at once",
        )
    if start or edges.itemsize != OFFSET_BYTES:
        edges = (np.asarray(edges) - start).astype(np.int32).data
    return edges.cast("B"), data[start:stop]


def _bytes_of(data: Any) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError:
        raise ConfigError("events", "the data of (offsets, data) must be one piece of bytes") from None


def _checked(offsets: NDArray[Any], size: int) -> memoryview:
    """Refuse offsets that point outside the data, or backward."""
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        raise ConfigError("events", "the offsets must be whole numbers, one more than there are events")
    inside = int(offsets[0]) >= 0 and int(offsets[-1]) <= size
    if not inside or bool((offsets[1:] < offsets[:-1]).any()):
        raise ConfigError("events", f"the offsets must rise from 0 or more to {size} at most")
    return np.ascontiguousarray(offsets, np.int32 if offsets.dtype == np.int32 else np.int64).data
