"""Notices: bounded, in order, and over when the node is."""

from meshbus.engine.base.notices import PeerRecovered
from meshbus.node.peers.noticelog import MAX_NOTICES, NoticeLog


async def test_the_latest_notices_are_kept_and_iteration_ends_at_close() -> None:
    notices = NoticeLog()
    for number in range(MAX_NOTICES + 5):
        notices.add(PeerRecovered(number))
    notices.close()
    got = [notice async for notice in notices.follow()]
    assert got == [PeerRecovered(number) for number in range(5, MAX_NOTICES + 5)]


async def test_watching_does_not_consume_notices() -> None:
    notices = NoticeLog()
    seen: list[object] = []
    unwatch = notices.watch(seen.append)
    notices.add(PeerRecovered(1))
    unwatch()
    notices.add(PeerRecovered(2))
    notices.close()
    assert seen == [PeerRecovered(1)]
    assert [notice async for notice in notices.follow()] == [PeerRecovered(1), PeerRecovered(2)]
