"""Packed rows: what was packed is unpacked again, whatever changes, and an incomplete block is detected."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.packets import packed as module
from meshbus.log.packets.packed import COUNTER, PACKED_MOST, SEQUENCE, Packed, hashes_in, pack_rows, unpack_rows
from meshbus.log.packets.row import ROW, ROW_BYTES, ROW_WORDS
from meshbus.wire.header import HEADER_DTYPE
from tests.log.packets.making import changing_rows


@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 100), changes=st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_rows_are_unpacked_unchanged(seed: int, count: int, changes: float) -> None:
    rows = changing_rows(count, seed, changes)
    packed = pack_rows(rows)
    assert unpack_rows(packed).tobytes() == rows.tobytes()
    assert len(packed.data) <= count * PACKED_MOST
    some = seed % count
    assert unpack_rows(Packed(packed.data, some)).tobytes() == rows[:some].tobytes(), "the first ones"


def test_a_row_takes_as_much_as_it_changes() -> None:
    rows = np.zeros(4, ROW)
    rows["ts_ns"] = 7, 7, 8, 8
    rows["chash64"] = 9
    assert len(pack_rows(rows).data) == 4 * 4 + 3 * 8
    rows = np.zeros(1000, ROW)
    rows["header"]["counter"] = np.arange(5, 1005)
    rows["header"]["sequence"] = np.arange(1000, 0, -1)
    assert len(pack_rows(rows).data) == (4 + 2 * 8) + (4 + 2 * 8) + 4, "a train"
    assert len(pack_rows(np.full(1, np.frombuffer(b"\1" * ROW_BYTES, ROW)[0])).data) == PACKED_MOST
    assert ROW.fields is not None
    assert ROW.fields["chash64"][1] == 8 * module._HASH_WORD == 8 * (ROW_WORDS - 1)
    assert HEADER_DTYPE.fields is not None
    assert (HEADER_DTYPE.fields["counter"][1], HEADER_DTYPE.fields["sequence"][1]) == (8 * COUNTER, 8 * SEQUENCE)


@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 100), changes=st.sampled_from([0.05, 0.5]))
def test_hashes_are_found(seed: int, count: int, changes: float) -> None:
    rows = changing_rows(count, seed, changes)
    packed = pack_rows(rows)
    assert hashes_in(packed) == set(rows["chash64"].tolist())
    found = [np.zeros(count, np.uint64) for _ in range(2)]
    counts = [
        kernel(packed.data, count, hashes)
        for kernel, hashes in zip((module._walk.run, module._walk.reference), found, strict=True)
    ]
    assert counts[0] == counts[1]
    assert found[0].tolist() == found[1].tolist()


@given(seed=st.integers(0, 1 << 32), data=st.data())
def test_whatever_bytes_there_are_they_are_read_or_refused(seed: int, data: st.DataObject) -> None:
    """Whatever a block claims about itself, nothing is read beyond its end."""
    whole: Any = pack_rows(changing_rows(20, seed, 0.2)).data
    cut = data.draw(st.integers(0, len(whole)))
    count = data.draw(st.integers(0, 25))
    changed = whole[:cut].copy()
    if cut and data.draw(st.booleans()):
        changed[data.draw(st.integers(0, cut - 1))] ^= 1 << data.draw(st.integers(0, 7))
    room = np.zeros(25, np.uint64)
    found = module._walk.run(changed, count, room)
    assert found == module._walk.reference(changed, count, room.copy())
    if cut < len(whole) and count == 20:
        assert hashes_in(Packed(whole[:cut], count)) is None
