"""What became of a request: an answer, or the error that it is."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from meshbus.engine.base.notices import PeerRecovered, Replied, RequestFailed, RequestFault
from meshbus.errors import Backpressure, ChannelError, PeerError, Timeout
from meshbus.names.channel import ChannelName
from meshbus.node.channels.answer import Answers, answer_of
from meshbus.node.driving.live import Live
from meshbus.node.node import Node
from tests.node.test_node import QUICK
from tests.patience import PATIENCE_S

CHANNEL = ChannelName("planner/plan")


def test_every_outcome_of_a_request_has_its_error() -> None:
    assert answer_of(Replied(1, 2, b"yes", last=True), CHANNEL, 1.0) == b"yes"
    with pytest.raises(Timeout, match="planner/plan"):
        answer_of(RequestFailed(1, 2, CHANNEL, RequestFault.TIMEOUT), CHANNEL, 1.0)
    with pytest.raises(ChannelError, match="no_responder"):
        answer_of(RequestFailed(1, 2, CHANNEL, RequestFault.NO_RESPONDER), CHANNEL, 1.0)
    with pytest.raises(ChannelError, match="failed: it broke"):
        answer_of(RequestFailed(1, 2, CHANNEL, RequestFault.FAILED, "it broke"), CHANNEL, 1.0)
    with pytest.raises(AssertionError):
        answer_of(PeerRecovered(1), CHANNEL, 1.0)


def test_canceling_without_a_request_does_nothing() -> None:
    live: Live = SimpleNamespace()  # type: ignore[assignment]
    Answers(live).cancel()


async def test_a_request_right_after_connect_waits_for_the_negotiation() -> None:
    async def echo(payload: bytes) -> bytes:
        return payload

    async with Node.open(**QUICK) as responder, Node.open(**QUICK) as asker, responder.respond(CHANNEL, echo):
        await asker.connect(responder.address, public_key=responder.public_key)
        assert await asker.request(responder.node_id, CHANNEL, b"at once") == b"at once"


def breaks() -> bytes:
    raise ValueError("no plan")


def gives_up() -> bytes:
    raise asyncio.CancelledError("the planner was stopped")


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (lambda: bytes((16 << 20) + 1), "LocalProtocolError: a reply of 16777217 bytes is too large"),
        (lambda: None, "TypeError: the handler must return bytes, got NoneType"),
        (lambda: "text", "TypeError: the handler must return bytes, got str"),
        (breaks, "ValueError: no plan"),
        (gives_up, "CancelledError: the planner was stopped"),
    ],
)
async def test_a_reply_that_cannot_be_sent_reaches_the_asker_as_an_error_at_once(
    reply: Callable[[], bytes], problem: str
) -> None:
    async def handler(_payload: bytes) -> bytes:
        return reply()

    async with Node.open(**QUICK) as responder, Node.open(**QUICK) as asker, responder.respond(CHANNEL, handler):
        await asker.connect(responder.address, public_key=responder.public_key)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ChannelError, match=f"failed: {problem}"):
                await asker.request(responder.node_id, CHANNEL, b"", timeout_s=600.0)


async def test_a_request_to_a_plain_peer_is_refused_at_once() -> None:
    async with Node.open(**QUICK, profile=False) as plain, Node.open(**QUICK) as asker:
        await asker.connect(plain.address, public_key=plain.public_key)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerError, match="does not accept requests"):
                await asker.request(plain.node_id, CHANNEL, b"", timeout_s=600.0)


async def test_a_handler_that_runs_when_its_node_closes_is_cancelled() -> None:
    running = asyncio.Event()
    ended: list[str] = []

    async def handler(_payload: bytes) -> bytes:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return b""

    async with Node.open(**QUICK) as responder, Node.open(**QUICK) as asker, responder.respond(CHANNEL, handler):
        await asker.connect(responder.address, public_key=responder.public_key)
        asking = asyncio.ensure_future(asker.request(responder.node_id, CHANNEL, b"", timeout_s=600.0))
        await running.wait()
        await responder.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ChannelError, match="peer_gone"):
                await asking
        assert ended == ["cancelled"]


async def test_a_requester_that_takes_no_replies_costs_a_counter_and_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def echo(payload: bytes) -> bytes:
        answered.set()
        return payload

    def full(*_: object) -> None:
        raise Backpressure(0, 100)

    async with Node.open(**QUICK) as responder, Node.open(**QUICK) as asker, responder.respond(CHANNEL, echo):
        await asker.connect(responder.address, public_key=responder.public_key)
        assert await asker.request(responder.node_id, CHANNEL, b"taken") == b"taken"
        monkeypatch.setattr(responder.live.engine.requests.responder, "_send", full)
        answered.clear()
        with pytest.raises(Timeout):
            await asker.request(responder.node_id, CHANNEL, b"not taken", timeout_s=0.5)
        assert answered.is_set()
        assert responder.counters["drop"]["refusal_unsent"] == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
