"""Test that rows are grouped as a plain loop would, in the order of their first appearance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.grouping import group_rows

ROWS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 1 << 63, (1 << 64) - 1]), st.booleans()), max_size=40)


@given(rows=ROWS)
def test_rows_are_grouped_as_a_plain_loop_would(rows: list[tuple[int, bool]]) -> None:
    expected: dict[tuple[int, bool], list[int]] = {}
    for place, row in enumerate(rows):
        expected.setdefault(row, []).append(place)
    keys, flags = np.array([key for key, _ in rows], np.uint64), np.array([flag for _, flag in rows], np.bool_)
    assert [group.tolist() for group in group_rows(keys, flags)] == list(expected.values())


@pytest.mark.parametrize("keys", [[], [7], [7, 7, 7], [3, 2, 1]])
def test_one_column_is_enough(keys: list[int]) -> None:
    groups = group_rows(np.array(keys, np.int64))
    assert [keys[group[0]] for group in groups] == list(dict.fromkeys(keys))
    assert sorted(row for group in groups for row in group.tolist()) == list(range(len(keys)))
