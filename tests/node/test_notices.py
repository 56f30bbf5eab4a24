"""Notices: bounded, in order, and over when the node is."""

from meshbus.engine.control import PeerRecovered
from meshbus.node.notices import MAX_NOTICES, Notices


async def test_the_latest_are_kept_and_the_end_is_an_end() -> None:
    notices = Notices()
    for number in range(MAX_NOTICES + 5):
        notices.add(PeerRecovered(number))
    notices.close()
    got = [notice async for notice in notices.follow()]
    assert got == [PeerRecovered(number) for number in range(5, MAX_NOTICES + 5)]
