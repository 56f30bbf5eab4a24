"""The prepared form of default columns."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.columns import Defaults, number
from meshbus.log.embedded.block import block_key, pack_block, pack_cells
from meshbus.log.embedded.plain import PlainForm


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 2**62), st.integers(0, 2**62))
def test_it_equals_the_packed_cells_of_the_defaults(recorder: int, origin: int, now: int, first: int) -> None:
    defaults = Defaults(recorder=recorder, origin=origin)
    cells, _ = defaults.cells({}, 1, now)
    kinds, parts = pack_cells(number(cells, first))
    assert PlainForm(defaults).pack(first, now) == (kinds, (b"".join(parts),))


@given(st.binary(max_size=40), st.integers(0, 9), st.integers(0, 9), st.integers(1, 2**62))
def test_a_block_of_one_event_has_the_bytes_of_any_block(payload: bytes, recorder: int, origin: int, now: int) -> None:
    form, key = PlainForm(Defaults(recorder=recorder, origin=origin)), block_key(bytes(16))
    offsets = struct.pack("<ii", 0, len(payload))
    parts = pack_block(5, 1, form.pack(5, now), offsets, payload, key=key, written_ns=now, durable=3)
    assert form.pack_one(5, payload, key, now, 3) == b"".join(parts)
    assert form.pack_one(5, memoryview(payload), key, now, 3) == b"".join(parts)
