"""Test that counters only grow, and are kept by what and why."""

from meshbus.engine.base.counters import Counters
from meshbus.policy.reason import Reason


def test_counts_by_reason_and_by_name() -> None:
    counters = Counters()
    counters.count(Reason.BAD_TAG)
    counters.count(Reason.BAD_TAG, 4)
    counters.count(Reason.REPLAYED)
    counters.count(Reason.REFUSE_TOKEN, 0)
    counters.add("relay", "inside", 2)
    counters.add("relay", "never", 0)
    assert counters.get("drop", "bad_tag") == 5
    assert counters.get("drop", "unknown") == 0
    assert counters.total("drop") == 6
    assert counters.snapshot() == {"drop": {"bad_tag": 5, "replayed": 1}, "relay": {"inside": 2}}
