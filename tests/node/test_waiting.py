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
from meshbus.errors import HandshakeFault, Timeout
from meshbus.names.channel import ChannelName
from meshbus.node.waiting import Waiting, answered


async def test_an_event_wakes_everyone_who_waits_for_it() -> None:
    waiting = Waiting()
    first, second = waiting.for_("session", 1), waiting.for_("session", 1)
    other = waiting.for_("session", 2)
    waiting.wake("session", 1, PeerRecovered(1))
    assert await first == await second == PeerRecovered(1)
    assert not other.done()
    waiting.wake("session", 1, PeerRecovered(1))  # nobody waits: fine
    waiting.drop("session", 2)
    waiting.wake("session", 2, PeerRecovered(2))
    assert not other.done()


async def test_closing_cancels() -> None:
    waiting = Waiting()
    future = waiting.for_("ack", 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await future


A = ChannelName("a")


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("session", SessionUp(1, 2, True)),
        ("session", HandshakeFailed(1, HandshakeFault.TIMEOUT, "")),
        ("agreement", Negotiated(1, frozenset())),
        ("agreement", Announced(1, True)),
        ("ack", Acked(1, 2, A, True)),
        ("match", Matched(1, 2)),
        ("request", Replied(1, 2, b"", True)),
        ("request", RequestFailed(1, 2, A, RequestFault.BUSY)),
        ("history", HistoryOpened(1, 2, A)),
        ("history", HistoryEnded(1, 2, A)),
    ],
)
async def test_each_event_wakes_those_whom_it_is_for(kind: str, event: Control) -> None:
    waiting = Waiting()
    future, other = waiting.for_(kind, 1), waiting.for_("other", 1)
    waiting.tell(PeerRecovered(1))
    assert not future.done()
    waiting.tell(event)
    assert await future is event
    assert not other.done()


async def test_an_answer_counts_that_comes_before_it_is_awaited() -> None:
    waiting = Waiting()
    good, late = (answered(waiting.for_("match", request), 2.0) for request in (1, 2))
    waiting.tell(Matched(1, 7))
    waiting.tell(Matched(2, 7, timed_out=True))
    await good
    with pytest.raises(Timeout, match="publisher 0000000000000007: no answer within 2 s"):
        await late
