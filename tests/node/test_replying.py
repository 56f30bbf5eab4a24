"""Requests that are answered from outside of the node."""

import asyncio

import pytest

from meshbus import Node
from meshbus.errors import ChannelError, ConfigError
from meshbus.node.replying import Replies
from tests.patience import PATIENCE_S

PSK = "5a" * 32


async def test_requests_are_numbered_and_answered_by_their_number() -> None:
    async with Node.open(psk=PSK, ephemeral=True) as hub, Node.open(psk=PSK, ephemeral=True) as leaf:
        await leaf.connect(hub.address, public_key=hub.public_key)
        replies = Replies(hub)
        requests = replies.requests("plan")
        assert await anext(requests) is None
        asking = [
            asyncio.ensure_future(leaf.request(hub.node_id, "plan", text, timeout_s=PATIENCE_S))
            for text in (b"a", b"b")
        ]
        open_ = [await anext(requests), await anext(requests)]
        for request in reversed(open_):
            assert request is not None
            replies.answer(request[0], request[1].upper())
        assert await asyncio.gather(*asking) == [b"A", b"B"]
        with pytest.raises(ConfigError, match="request: 1 waits for no answer"):
            replies.answer(1, b"again")


async def test_requests_without_an_answer_fail_when_the_stream_ends() -> None:
    async with Node.open(psk=PSK, ephemeral=True) as hub, Node.open(psk=PSK, ephemeral=True) as leaf:
        await leaf.connect(hub.address, public_key=hub.public_key)
        requests = Replies(hub).requests("plan")
        await anext(requests)
        asking = asyncio.ensure_future(leaf.request(hub.node_id, "plan", b"a", timeout_s=PATIENCE_S))
        await anext(requests)
        await requests.aclose()
        with pytest.raises(ChannelError, match="the responder has gone"):
            await asking
