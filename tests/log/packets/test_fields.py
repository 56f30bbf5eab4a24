"""Rows as columns of numbers: the kernel equals its reference, for any fields and any cut into blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.packets import fields
from meshbus.log.packets.fields import IN_HEADER, IN_ROUTE, PRESENT, fields_of, warm_fields
from meshbus.log.packets.row import ROW, ROW_BYTES
from meshbus.log.schema import PACKETS
from meshbus.policy.transit import ROUTE_DTYPE
from meshbus.wire.header import HEADER_DTYPE

NO_FIELDS = {"recorder", "sampling_rate", "ts", "channel"}
NAMES = [*(column.name for column in PACKETS if column.name not in NO_FIELDS), PRESENT]


def random_rows(count: int, seed: int) -> Any:
    return np.frombuffer(bytearray(np.random.default_rng(seed).bytes(count * ROW_BYTES)), ROW)


def plainly(rows: Any, name: str, width: int) -> list[int]:
    """Read a field by its name in the row, as a number of so many bits."""
    if name in IN_HEADER:
        values = rows["header"][IN_HEADER[name]]
    else:
        values = rows["route"][IN_ROUTE[name]] if name in IN_ROUTE else rows[name]
    return [int(value) % (1 << width) for value in values]


@given(
    seed=st.integers(0, 1 << 32),
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    read_only=st.booleans(),
)
def test_fields_are_what_is_in_the_rows(seed: int, lengths: list[int], names: list[str], read_only: bool) -> None:
    rows = random_rows(sum(lengths), seed)
    rows.flags.writeable = not read_only
    blocks = np.split(rows, np.cumsum(lengths)[:-1])
    found = fields_of(blocks, tuple(names))
    for name in names:
        width = 8 * found[name].dtype.itemsize
        assert [int(value) % (1 << width) for value in found[name]] == plainly(rows, name, width)
        assert found[name].dtype.kind == "i"
        assert found[name].flags.c_contiguous


@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 300), room=st.integers(0, 20))
def test_the_kernel_equals_its_reference(seed: int, count: int, room: int) -> None:
    rows = random_rows(count, seed).view(np.uint8)
    _, places = fields._plan_for(tuple(NAMES))
    results = []
    for kernel in (fields._spread.run, fields._spread.reference):
        shorts, ints, longs = (
            np.full((len(place), count + room), 0xA5, f"u{width}")
            for place, width in zip(places, fields._WIDTHS, strict=True)
        )
        kernel(rows, room, shorts, ints, longs, *places)
        results.append([array.tolist() for array in (shorts, ints, longs)])
    assert results[0] == results[1]


def test_every_number_of_a_row_has_a_column() -> None:
    """What a row holds and no column tells is named here."""
    assert HEADER_DTYPE.names is not None
    assert ROUTE_DTYPE.names is not None
    assert set(HEADER_DTYPE.names) - set(IN_HEADER.values()) == {"magic"}
    assert set(ROUTE_DTYPE.names) - set(IN_ROUTE.values()) == {"magic", "reserved"}
    assert ROW.names is not None
    assert set(ROW.names) - set(NAMES) == {"header", "route", "unused"}
    warm_fields()
