"""Fate of a packet: the names that tables and the command line show."""

from meshbus.policy.fate import Fate


def test_a_fate_reads_as_it_is_shown() -> None:
    assert {fate.name.lower(): int(fate) for fate in Fate} == {"forwarded": 0, "delivered": 1, "dropped": 2}
