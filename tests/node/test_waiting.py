"""Waiting for what the engine reports."""

import asyncio

import pytest

from meshbus.engine.control import PeerRecovered
from meshbus.node.waiting import Waiting


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
