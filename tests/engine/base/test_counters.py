"""Counters only grow, and tell what and why."""

from meshbus.engine.base.counters import Counters


def test_counts_by_what_and_why() -> None:
    counters = Counters()
    counters.add("drop", "bad_tag")
    counters.add("drop", "bad_tag", 4)
    counters.add("drop", "replayed")
    counters.add("refuse", "unauthorized", 2)
    counters.add("refuse", "never", 0)
    assert counters.get("drop", "bad_tag") == 5
    assert counters.get("drop", "unknown") == 0
    assert counters.total("drop") == 6
    assert counters.snapshot() == {"drop": {"bad_tag": 5, "replayed": 1}, "refuse": {"unauthorized": 2}}
