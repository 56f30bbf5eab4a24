"""The CRC of a page, in the time that it takes to read it.

zlib computes it byte by byte with tables, which took a third of the processor time of sealing. Processors multiply without
carries, which is what a CRC consists of: 64 bytes are folded into the next 64, whose CRC is then the same, until less than
128 are left. Only these go through a table. The folding is one step of `jit.fold_crc`; where it cannot be compiled, zlib
computes everything.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from meshbus import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Table = NDArray[np.uint32]

_WORTH: Final = 16 << 10
"""Bytes from which folding saves more than the call costs."""
_FOLDED: Final = 64
"""Bytes that `jit.fold_crc` takes at a time."""
_ONES: Final = 0xFFFFFFFF
"""What the register starts with, and what the result is combined with."""


def crc32(content: Any) -> int:
    """Return the CRC-32 of a buffer, as zlib.crc32 does."""
    if len(content) < _WORTH:
        return zlib.crc32(content)
    data = np.frombuffer(content, np.uint8)
    # A read-only buffer would need a kernel of its own. Such pages are compressed, and therefore small.
    if not data.flags.writeable or not jit.can_fold():
        return zlib.crc32(content)
    return int(_crc32.run(data, _table()))


@cache
def _table() -> Table:
    """Return what each byte does to a register of zeros."""
    return np.array([zlib.crc32(bytes([byte]), _ONES) ^ _ONES for byte in range(256)], np.uint32)


def _crc32_reference(data: Bytes, table: Table) -> int:  # noqa: ARG001 - zlib has its own
    """Return the CRC-32 of bytes."""
    return zlib.crc32(data.data)


@jit.kernel(_crc32_reference)
def _crc32(data: Bytes, table: Table) -> int:
    """Return the CRC-32 of bytes."""
    register, done = np.uint32(_ONES), 0
    if len(data) >= 2 * _FOLDED:
        folded = data[:_FOLDED].copy()
        for place in range(4):
            folded[place] ^= 0xFF  # the register is combined with the first bytes
        target, source = folded.ctypes.data, data.ctypes.data
        done = _FOLDED
        while done + _FOLDED <= len(data):
            jit.fold_crc(target, source + done)
            done += _FOLDED
        register = np.uint32(0)
        for place in range(_FOLDED):
            register = table[(register ^ folded[place]) & 0xFF] ^ (register >> np.uint32(8))
    for place in range(done, len(data)):
        register = table[(register ^ data[place]) & 0xFF] ^ (register >> np.uint32(8))
    return register ^ np.uint32(_ONES)  # type: ignore[return-value]  # an int in a compiled loop
