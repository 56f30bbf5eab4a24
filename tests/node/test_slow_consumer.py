"""Each policy for a slow consumer, live, for two seconds; for a minute in tests/soak."""

from __future__ import annotations

import pytest

from meshbus import WhenFull
from tests.node.slow import assert_memory_stays_bounded


@pytest.mark.parametrize("policy", list(WhenFull))
async def test_memory_stays_bounded_when_a_subscriber_stops_reading(policy: WhenFull) -> None:
    await assert_memory_stays_bounded(policy, seconds=2.0)
