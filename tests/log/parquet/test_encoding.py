"""Values of pages: every kernel equals its reference; that readers understand them is tests/log/parquet/test_pages.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.parquet import encoding
from meshbus.log.parquet.encoding import FEW, delta, hybrid, index

LENGTHS = st.lists(st.one_of(st.just(1), st.integers(1, 40), st.just(1000)), min_size=1, max_size=200)


def both(kernel: Any, call: Any, *arguments: Any) -> Any:
    """Return the result of a function, and check that it is the same with the kernel and its reference."""
    found = call(*arguments)
    run, kernel.run = kernel.run, kernel.reference
    try:
        plain = call(*arguments)
    finally:
        kernel.run = run
    if isinstance(found, tuple):
        assert [part.tolist() for part in found] == [part.tolist() for part in plain]
    else:
        assert found == plain
    return found


def numbers(lengths: list[int], seed: int, bits: int) -> Any:
    """Return a number for each run: near each other, far from each other, or at the limits."""
    random, size = np.random.default_rng(seed), len(lengths)
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    kinds = (
        np.arange(size) * 3 - 7,
        random.integers(low, high, size, np.int64, endpoint=True),
        random.choice(np.array([low, high, 0, -1], np.int64), size),
        random.integers(0, 1500, size),
    )
    return kinds[seed % len(kinds)].astype(np.int64)


@given(
    lengths=LENGTHS,
    seed=st.integers(0, 1 << 32),
    bits=st.sampled_from([32, 64]),
    steps=st.lists(st.sampled_from([0, 1, 1, -1, 5, 1 << 20]), min_size=1, max_size=5),
)
def test_differences(lengths: list[int], seed: int, bits: int, steps: list[int]) -> None:
    values = numbers(lengths, seed, bits)
    apart = np.resize(steps, len(values)).astype(np.int64)
    edge = 1 << bits - 1
    ends = values.astype(object) + apart.astype(object) * (np.array(lengths) - 1)
    apart[(ends < -edge) | (ends >= edge)] = 0
    both(encoding._delta, delta, np.array(lengths), values, apart, bits)


@given(lengths=LENGTHS, seed=st.integers(0, 1 << 32), width=st.integers(1, 18))
def test_runs_and_bits(lengths: list[int], seed: int, width: int) -> None:
    values = np.random.default_rng(seed).integers(0, 1 << width, len(lengths))
    data = both(encoding._hybrid, hybrid, np.array(lengths), values, width)
    assert data[0] & 1 == (len(lengths) * FEW > sum(lengths)), "bits where runs are short"


@given(
    values=st.lists(st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=100),
    most=st.integers(1, 120),
)
def test_a_dictionary(values: list[int], most: int) -> None:
    found = both(encoding._index, index, np.array(values, np.int64), most)
    if len(set(values)) > most:
        assert found is None
    else:
        different, places = found
        assert different[places].tolist() == values
        assert len(set(different.tolist())) == len(different)


@pytest.mark.parametrize("bits", [32, 64])
def test_what_repeats_itself_takes_next_to_nothing(bits: int) -> None:
    count = 65_536
    counters = delta(np.ones(count, np.int64), np.arange(count), np.zeros(count, np.int64), bits)
    assert len(counters) < count // 16
    assert delta(np.array([count]), np.array([0]), np.array([1]), bits) == counters
    assert len(hybrid(np.array([count]), np.array([0]), 1)) == 4
