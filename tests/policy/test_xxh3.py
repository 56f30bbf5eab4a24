"""XXH3 of 16-byte keys, compared with the xxhash library."""

import struct

import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from meshbus.policy.xxh3 import hash_pair

words = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=50))
def test_equals_the_library(pairs: list[tuple[int, int]]) -> None:
    low, high = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    expected = [xxhash.xxh3_64_intdigest(struct.pack("<QQ", *pair)) for pair in pairs]
    assert hash_pair(low, high).tolist() == expected


def test_equals_the_library_on_many_keys() -> None:
    rng = np.random.default_rng(1)
    low, high = rng.integers(0, 2**64, (2, 20_000), dtype=np.uint64)
    raw = np.stack([low, high], axis=1).tobytes()
    expected = [xxhash.xxh3_64_intdigest(raw[i : i + 16]) for i in range(0, len(raw), 16)]
    assert hash_pair(low, high).tolist() == expected
