"""Histories of daemons through many more partitions."""

from __future__ import annotations

import pytest

from tests.compute.test_reconciling import heal_after_partitions
from tests.seeds import for_each_seed

pytestmark = pytest.mark.soak


@for_each_seed(range(1000, 6000))
def test_five_thousand_partitions_leave_one_history_and_lose_nothing(seed: int) -> None:
    heal_after_partitions(seed)
