"""The publisher's time in a packet header: 32 bits, in the two fragment fields that nothing else uses.

The 0.23 wire carries and authenticates the fragment fields and never interprets them (transport.md §3). Between nodes
that negotiated presence (0x4D08) they hold the low bits of the publisher's wall clock, in units of 1024 ns, when the
events were published; 0 means that the time is not known. The clock wraps every 73 minutes, so the receiver restores
the full time from its estimate of the publisher's clock, which presence measures to within a round trip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshbus.wire.constants import HEADER_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNIT_BITS = 10
"""A unit is 1024 ns: finer than any latency between two processes, and a clock may be wrong by up to 36 minutes."""
STAMP_AT = HEADER_DTYPE.fields["fragment_id"][1]  # type: ignore[index]  # it has fields
"""Where the stamp is in a header: the two fragment fields are neighbors."""
_COLUMN = np.dtype({"names": ["stamp"], "formats": ["<u4"], "offsets": [STAMP_AT], "itemsize": HEADER_BYTES})
_MASK = 0xFFFFFFFF


def stamp_of(wall_ns: int) -> int:
    """Return the stamp of a time; never 0, which means unknown."""
    # 0 means unknown, so one stamp in 2^32 is off by a unit.
    return (wall_ns >> UNIT_BITS) & _MASK or 1


def restore_time(stamp: int, clock_ns: int) -> int:
    """Return the Unix nanoseconds of a stamp that is not 0; the same as `restore_times`, for one."""
    units = clock_ns >> UNIT_BITS
    behind = (stamp - units) & _MASK
    return (units + (behind - _MASK - 1 if behind > _MASK >> 1 else behind)) << UNIT_BITS


def stamps_of(rows: bytes | NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the stamps of packed headers, as a view of them."""
    stamps: NDArray[np.uint32] = np.frombuffer(rows, _COLUMN)["stamp"]
    return stamps


def restore_times(stamps: NDArray[np.uint32], clock_ns: int) -> NDArray[np.int64]:
    """Return the Unix nanoseconds of stamps, each the time nearest to the publisher's clock now.

    The stamps must not be 0. A time is exact to one unit.
    """
    units = clock_ns >> UNIT_BITS
    # The difference modulo 2^32, read as signed: the time nearest to the clock, before or after it.
    behind = (stamps - np.uint32(units & _MASK)).view(np.int32).astype(np.int64)
    return (behind + units) << UNIT_BITS
