"""XXH3-64 of 16-byte keys, for whole columns of keys.

The `xxhash` package hashes one buffer per call, but checking a batch needs the hashes of thousands of `u64 ‖ u64` keys
(policy.md §3.1). For this length the hash is a short formula in 64-bit arithmetic. It is written so that the same code
runs on numpy arrays and, compiled, on single numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshbus import jit

# Words 3 to 6 of the default secret, combined in pairs as the algorithm does for 9 to 16 bytes.
_FLIP_LOW = np.uint64(0x1F67B3B7A4A44072 ^ 0x78E5C0CC4EE679CB)
_FLIP_HIGH = np.uint64(0x2172FFCC7DD05A82 ^ 0x8E2443F7744608B8)
_LENGTH = np.uint64(16)
_PRIME = np.uint64(0x165667919E3779F9)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_EVEN_PAIRS = np.uint64(0x0000FFFF0000FFFF)
_8, _16, _32, _37 = np.uint64(8), np.uint64(16), np.uint64(32), np.uint64(37)


@jit.helper
def hash_pair(low: Any, high: Any) -> Any:
    """Hash the 16 bytes `low ‖ high` (both little-endian u64, arrays or numbers) with XXH3, seed 0."""
    low = low ^ _FLIP_LOW
    high = high ^ _FLIP_HIGH
    # Reverse the bytes of `low`, in three steps: bytes, pairs, halves.
    swapped = ((low & _EVEN_BYTES) << _8) | ((low >> _8) & _EVEN_BYTES)
    swapped = ((swapped & _EVEN_PAIRS) << _16) | ((swapped >> _16) & _EVEN_PAIRS)
    swapped = (swapped << _32) | (swapped >> _32)
    # The 128-bit product of the two words, from four 64-bit products of their halves.
    a, b, c, d = low & _LOW_HALF, low >> _32, high & _LOW_HALF, high >> _32
    lowest, left, right, highest = a * c, b * c, a * d, b * d
    middle = (lowest >> _32) + (left & _LOW_HALF) + right
    top = (left >> _32) + (middle >> _32) + highest
    bottom = (middle << _32) | (lowest & _LOW_HALF)
    mixed = _LENGTH + swapped + high + (bottom ^ top)
    mixed = (mixed ^ (mixed >> _37)) * _PRIME
    return mixed ^ (mixed >> _32)
