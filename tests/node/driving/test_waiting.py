"""Waiting for what the engine reports."""

import asyncio

import pytest

from meshbus.engine.base.notices import (
    Acked,
    Announced,
    Control,
    HandshakeFailed,
    HistoryEnded,
    HistoryOpened,
    Matched,
    Negotiated,
    PeerRecovered,
    Replied,
    RequestFailed,
    RequestFault,
    SessionUp,
)
from meshbus.errors import HandshakeFault, LocalProtocolError, Timeout
from meshbus.names.channel import ChannelName
from meshbus.node.driving.waiting import Kind, Waiting, answered


async def test_a_notice_wakes_all_its_waiters() -> None:
    waiting = Waiting()
    first, second = waiting.for_(Kind.SESSION, 1), waiting.for_(Kind.SESSION, 1)
    other = waiting.for_(Kind.SESSION, 2)
    waiting.wake(Kind.SESSION, 1, PeerRecovered(1))
    assert await first == await second == PeerRecovered(1)
    assert not other.done()
    waiting.wake(Kind.SESSION, 1, PeerRecovered(1))  # nobody waits: fine


async def test_a_canceled_waiter_does_not_affect_the_others() -> None:
    waiting = Waiting()
    first, second = waiting.for_(Kind.SESSION, 1), waiting.for_(Kind.SESSION, 1)
    first.cancel()
    waiting.wake(Kind.SESSION, 1, PeerRecovered(1))
    assert await second == PeerRecovered(1)
    alone = waiting.for_(Kind.SESSION, 2)
    alone.cancel()
    await asyncio.sleep(0)
    assert waiting._futures == {}, "nothing is kept of it"


async def test_closing_fails_all_waiters() -> None:
    waiting = Waiting()
    future = waiting.for_(Kind.ACK, 1)
    promise = waiting.promise()
    waiting.close()
    for one in (future, promise):
        with pytest.raises(LocalProtocolError, match="closed"):
            await one


A = ChannelName("a")


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (Kind.SESSION, SessionUp(1, 2, True)),
        (Kind.SESSION, HandshakeFailed(1, HandshakeFault.TIMEOUT, "")),
        (Kind.AGREEMENT, Negotiated(1, frozenset())),
        (Kind.AGREEMENT, Announced(1, True)),
        (Kind.ACK, Acked(1, 2, A, True)),
        (Kind.MATCH, Matched(1, 2)),
        (Kind.REQUEST, Replied(1, 2, b"", True)),
        (Kind.REQUEST, RequestFailed(1, 2, A, RequestFault.BUSY)),
        (Kind.HISTORY, HistoryOpened(1, 2, A)),
        (Kind.HISTORY, HistoryEnded(1, 2, A)),
    ],
)
async def test_each_notice_wakes_only_its_own_waiters(kind: Kind, event: Control) -> None:
    waiting = Waiting()
    future, other = waiting.for_(kind, 1), waiting.for_(kind, 2)
    waiting.tell(PeerRecovered(1))
    assert not future.done()
    waiting.tell(event)
    assert await future is event
    assert not other.done()


async def test_an_answer_before_the_wait_is_kept() -> None:
    waiting = Waiting()
    good, late = (answered(waiting.for_(Kind.MATCH, request), 2.0) for request in (1, 2))
    waiting.tell(Matched(1, 7))
    waiting.tell(Matched(2, 7, timed_out=True))
    await good
    with pytest.raises(Timeout, match="publisher 0000000000000007: no answer within 2 s"):
        await late
