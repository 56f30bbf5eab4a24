"""Slices of parts: calls at one time share one, and the next call has another."""

from __future__ import annotations

from meshbus.engine.streams.partslice import SLICE_PARTS, SLICE_S, PartSlice


def test_calls_at_one_time_share_a_slice() -> None:
    slice_ = PartSlice()
    assert slice_.left(1.0) == SLICE_PARTS
    slice_.take(SLICE_PARTS - 1)
    assert slice_.left(1.0) == 1
    slice_.take(1)
    assert slice_.left(1.0) == 0


def test_the_next_call_has_another() -> None:
    slice_ = PartSlice()
    slice_.left(1.0)
    slice_.take(SLICE_PARTS)
    assert slice_.left(1.0 + SLICE_S) == SLICE_PARTS
