"""Each policy for a slow consumer, live, for a minute without a read."""

from __future__ import annotations

import pytest

from meshbus import WhenFull
from tests.node.channels.slow import assert_memory_stays_bounded

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("policy", list(WhenFull))
async def test_memory_stays_bounded_when_a_subscriber_stops_reading_for_a_minute(policy: WhenFull) -> None:
    await assert_memory_stays_bounded(policy, seconds=60.0)
