"""The form of a block whose columns all have their defaults: most appends are of this kind, so it is prepared once."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from meshbus.log.embedded.block import pack_cells, scalars_at
from meshbus.log.rows import PLACES

if TYPE_CHECKING:
    from meshbus.log.columns import Defaults
    from meshbus.log.embedded.block import Form

_PUB, _TS, _RECV = PLACES["pub_seq"], PLACES["ts_ns"], PLACES["recv_ts_ns"]


class PlainForm:
    """Packs the default columns of a log with one call of struct; equal to `pack_cells` of the defaults."""

    def __init__(self, defaults: Defaults) -> None:
        cells, _ = defaults.cells({}, 1, 1)  # any time but 0, which would be stored as nothing
        self._kinds, _ = pack_cells(cells)
        places = sorted(scalars_at(self._kinds))
        # `pack` relies on this: the publish number is the first scalar, and the two times are neighbors.
        assert places[0] == _PUB
        assert places.index(_RECV) == places.index(_TS) + 1
        numbers = [cells[place].value for place in places]
        self._between, self._after = numbers[1 : places.index(_TS)], numbers[places.index(_RECV) + 1 :]
        self._pack = struct.Struct(f"<{len(numbers)}q").pack

    def pack(self, first: int, now_ns: int) -> Form:
        """Return the form of a block that starts at a sequence and was written at a time."""  # hot
        return self._kinds, (self._pack(first, *self._between, now_ns, now_ns, *self._after),)
