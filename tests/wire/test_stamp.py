"""Stamps: the publisher's time is restored from 32 bits, also if the clocks differ."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.stamp import UNIT_BITS, restore_times, stamp_of, stamps_of

HALF_WRAP_NS = 1 << 31 << UNIT_BITS
TIMES = st.integers(1 << 60, 1 << 62)


@given(TIMES, st.integers(-HALF_WRAP_NS + (1 << UNIT_BITS), HALF_WRAP_NS - (2 << UNIT_BITS)))
def test_a_time_is_restored_to_one_unit(sent_ns: int, later_ns: int) -> None:
    (restored,) = restore_times(np.array([stamp_of(sent_ns)], np.uint32), sent_ns + later_ns).tolist()
    if sent_ns >> UNIT_BITS & 0xFFFFFFFF:
        assert 0 <= sent_ns - restored < 1 << UNIT_BITS
    else:
        assert abs(sent_ns - restored) <= 1 << UNIT_BITS, "0 means unknown, so it is written as 1"


@given(TIMES)
def test_a_stamp_fits_the_header_and_is_never_zero(sent_ns: int) -> None:
    assert 0 < stamp_of(sent_ns) <= 0xFFFFFFFF


def test_many_are_restored_at_once_across_a_wrap() -> None:
    wrap_ns = 1 << 32 << UNIT_BITS
    edge = 400_000 * wrap_ns
    times = [edge - 3 * 1024, edge - 1024, edge + 1024, edge + 7 * 1024]
    stamps = np.array([stamp_of(time) for time in times], np.uint32)
    assert restore_times(stamps, edge + 9 * 1024).tolist() == times


def test_the_stamps_of_headers_are_their_fragment_fields() -> None:
    headers = np.zeros(3, HEADER_DTYPE)
    headers["fragment_id"], headers["fragment_offset"] = [1, 0x8001, 0xFFFF], [0, 2, 0xFFFF]
    assert stamps_of(headers.tobytes()).tolist() == [1, 0x28001, 0xFFFFFFFF]
