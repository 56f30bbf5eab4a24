"""The prepared form of default columns."""

from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.columns import Defaults, number
from meshbus.log.embedded.block import pack_cells
from meshbus.log.embedded.plain import PlainForm


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 2**62), st.integers(0, 2**62))
def test_it_equals_the_packed_cells_of_the_defaults(recorder: int, origin: int, now: int, first: int) -> None:
    defaults = Defaults(recorder=recorder, origin=origin)
    cells, _ = defaults.cells({}, 1, now)
    kinds, parts = pack_cells(number(cells, first))
    assert PlainForm(defaults).pack(first, now) == (kinds, (b"".join(parts),))
