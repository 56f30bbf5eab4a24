"""The form of a block whose columns all have their defaults: most appends are of this kind, so it is prepared once.

A block of a single event is packed by one call of struct as a whole (`pack_one`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from meshbus.log.embedded.block import BLOCK_HEADER, CHECKED, FRONT, pack_cells, scalars_at
from meshbus.log.rows import PLACES

if TYPE_CHECKING:
    from meshbus.log.columns import Defaults
    from meshbus.log.embedded.block import BlockKey, Form

_ZEROS = bytes(8)
_CHECKED_HEADER = BLOCK_HEADER - FRONT.size
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
        fixed = [struct.pack(f"<{len(part)}q", *part) for part in (self._between, self._after)]
        self._fixed_between, self._fixed_after = fixed
        self._pack_one = struct.Struct(f"<{CHECKED}q{len(fixed[0])}sqq{len(fixed[1])}sii").pack

    def pack(self, first: int, now_ns: int) -> Form:
        """Return the form of a block that starts at a sequence and was written at a time."""  # hot
        return self._kinds, (self._pack(first, *self._between, now_ns, now_ns, *self._after),)

    def pack_one(
        self, first: int, payload: bytes | memoryview, key: BlockKey, written_ns: int, durable: int
    ) -> bytes:  # hot: bench_log
        """Return a block of one event in one buffer: the bytes of `pack_block`, which takes longer for so little."""
        size = len(payload)
        body = self._pack_one(
            first,
            written_ns,
            durable,
            1,
            size,
            self._kinds,
            first,
            self._fixed_between,
            written_ns,
            written_ns,
            self._fixed_after,
            0,
            size,
        )
        body += payload
        if size & 7:
            body += _ZEROS[size & 7 :]
        return FRONT.pack(key.magic, len(body) - _CHECKED_HEADER, xxh3_64_intdigest(body, key.seed)) + body
