"""Traffic is counted by channel, and channels beyond the bound are counted together."""

from meshbus.engine.base.tally import MAX_TALLIED, Tally, Volume


def test_channels_are_counted_one_by_one() -> None:
    tally = Tally()
    tally.add("a", 2, 20)
    tally.add("b", 1, 5)
    tally.add("a", 1, 1)
    assert list(tally) == [Volume("a", 3, 21), Volume("b", 1, 5)]


def test_channels_beyond_the_bound_share_a_count_and_nothing_is_forgotten() -> None:
    tally = Tally()
    for number in range(MAX_TALLIED + 7):
        tally.add(f"c/{number}", 1, 10)
    tally.add("c/0", 1, 10)
    rows = list(tally)
    assert len(rows) == MAX_TALLIED + 1
    assert (rows[0], rows[-1]) == (Volume("c/0", 2, 20), Volume(None, 7, 70))
    assert sum(row.events for row in rows) == MAX_TALLIED + 8
