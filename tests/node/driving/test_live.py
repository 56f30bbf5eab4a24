"""Live: one call to the engine, and what it asks for is carried out."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from meshbus.engine.base.notices import Acked, SessionUp
from meshbus.engine.base.packets import Output
from meshbus.errors import LocalProtocolError, PeerError, PeerFault
from meshbus.names.channel import ChannelName
from meshbus.node.driving.live import Live
from meshbus.node.driving.waiting import Kind
from meshbus.node.node import Node
from meshbus.wire.constants import Subprotocol
from tests.node.test_node import QUICK, until
from tests.patience import PATIENCE_S

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


async def test_a_notice_of_the_call_itself_is_not_missed(live: Live) -> None:
    def call(_engine: object, _now: float, out: Output) -> int:
        out.control.append(Acked(5, 2, A, True))
        return 5

    assert (await live.begin(Kind.ACK, call)) == Acked(5, 2, A, True)


async def test_closing_fails_waiters_and_sends_nothing_more(live: Live) -> None:
    report = live.begin(Kind.ACK, lambda *_: 5)
    live.close()
    with pytest.raises(LocalProtocolError, match="the node was closed"):
        await report
    before = len(applied(live))
    live.act(lambda *_: None)
    assert len(applied(live)) == before


async def test_waits_for_the_negotiation_of_a_new_session() -> None:
    async with Node.open(**QUICK) as here, Node.open(**QUICK) as there:
        await here.live.settled(60.0)  # without peers there is nothing to wait for
        await here.connect(there.address, public_key=there.public_key)
        async with asyncio.timeout(PATIENCE_S):
            await here.live.settled(60.0)
        assert here.peers[0].profile
        assert await here.live.agreed(there.node_id, Subprotocol.REQUEST, 60.0)
        assert not await here.live.agreed(there.node_id, 0x7777, 0.01), "it does not last longer than was asked for"


async def test_a_plain_peer_is_not_waited_for() -> None:
    async with Node.open(**QUICK, profile=False) as plain, Node.open(**QUICK) as here:
        await plain.connect(here.address, public_key=here.public_key)
        await until(
            lambda: here.peers and here.live.engine.negotiator.is_plain(here.live.engine.peers.require(plain.node_id))
        )
        async with asyncio.timeout(PATIENCE_S):
            await plain.live.settled(60.0)
            await here.live.settled(60.0)
            assert not await here.live.agreed(plain.node_id, Subprotocol.REQUEST, 60.0)


async def test_waiting_for_an_agreement_fails_if_the_peer_leaves() -> None:
    async with Node.open(**QUICK) as here, Node.open(**QUICK) as there:
        await here.connect(there.address, public_key=there.public_key)
        await here.live.settled(60.0)
        waiting = asyncio.ensure_future(here.live.agreed(there.node_id, 0x7777, 600.0))
        await there.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerError):
                await waiting


async def test_a_session_that_was_just_begun_is_waited_for(live: Live) -> None:
    peers: dict[int, Any] = {}

    def require(node_id: int) -> Any:
        if node_id not in peers:
            raise PeerError(PeerFault.UNKNOWN, node_id, "connect to it first")
        return peers[node_id]

    live.engine.peers = SimpleNamespace(get=peers.get, require=require)  # type: ignore[assignment]
    live.engine.handshakes = SimpleNamespace(  # type: ignore[assignment]
        expected_up=lambda _: [node for node in (7,) if node not in peers]
    )
    waiting = asyncio.ensure_future(live.peer(7))
    await asyncio.sleep(0)
    peers[7] = there = object()
    live.waiting.tell(SessionUp(7, 1, False))
    assert await waiting is there
    assert await live.peer(7) is there
    live.engine.handshakes = SimpleNamespace(expected_up=lambda _: [])  # type: ignore[assignment]
    with pytest.raises(PeerError):
        await live.peer(8)
