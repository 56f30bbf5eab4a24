"""Live: one call to the engine, and what it asks for is carried out."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from meshbus.engine.base.notices import Acked
from meshbus.engine.base.packets import Output
from meshbus.names.channel import ChannelName
from meshbus.node.live import Live
from meshbus.node.waiting import Kind

A = ChannelName("a")


class ScriptedDriver:
    """As much of a driver as a Live uses; reports are told at once, as by a node."""

    def __init__(self) -> None:
        self.closed = False
        self.applied: list[Output] = []
        self.live: Live | None = None

    def apply(self, out: Output) -> None:
        self.applied.append(out)
        for event in out.control:
            assert self.live is not None
            self.live.waiting.tell(event)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def live() -> Live:
    driver: Any = ScriptedDriver()
    engine: Any = SimpleNamespace(tick=lambda _: Output())
    driver.live = Live(engine, driver)
    return driver.live  # type: ignore[no-any-return]


def applied(live: Live) -> list[Output]:
    return live.driver.applied  # type: ignore[attr-defined, no-any-return]


def test_a_call_returns_its_result_and_its_output_is_carried_out(live: Live) -> None:
    given: list[Output] = []

    def call(engine: object, now: float, out: Output) -> str:
        assert engine is live.engine
        assert now > 0
        given.append(out)
        return "done"

    assert live.act(call) == "done"
    assert applied(live) == given
    live.tick()
    assert len(applied(live)) == 2


async def test_a_report_in_the_output_of_the_call_itself_is_not_missed(live: Live) -> None:
    def call(_engine: object, _now: float, out: Output) -> int:
        out.control.append(Acked(5, 2, A, True))
        return 5

    assert (await live.begin(Kind.ACK, call)) == Acked(5, 2, A, True)


async def test_closing_cancels_those_who_wait_and_sends_nothing_more(live: Live) -> None:
    report = live.begin(Kind.ACK, lambda *_: 5)
    live.close()
    with pytest.raises(asyncio.CancelledError):
        await report
    before = len(applied(live))
    live.act(lambda *_: None)
    assert len(applied(live)) == before
