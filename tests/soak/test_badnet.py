"""Fifty more bad networks; the first five are in tests/engine/test_badnet.py."""

from __future__ import annotations

import pytest

from tests.engine.badnet import assert_exactly_once_and_in_order
from tests.seeds import for_each_seed

pytestmark = pytest.mark.soak


@for_each_seed(range(100, 150))
def test_a_reliable_stream_arrives_exactly_once_and_in_order(seed: int) -> None:
    assert_exactly_once_and_in_order(seed)
