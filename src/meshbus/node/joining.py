"""Keeping publishers informed of what this node's subscriptions want: who is asked, with which token, and when.

The router knows the local subscriptions; this file carries their wishes to peers: at once when a subscription starts,
when a peer comes later, and to those that were asked when the last subscription of a channel ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from meshbus.engine.core import Engine
from meshbus.engine.packets import Output
from meshbus.errors import ChannelError
from meshbus.names.channel import ChannelName
from meshbus.node.driver import Driver
from meshbus.node.router import Router
from meshbus.node.subscription import Subscription
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain


class Joining(Protocol):
    """What the joiner needs of its node."""

    def running(self) -> tuple[Engine, Driver] | None:
        """Give the engine and its driver, if the node is running."""

    def held_tokens(self) -> Iterator[tuple[PermissionToken, ...]]:
        """Give the chains of tokens that the node holds."""

    async def subscribe_channel(
        self, publisher: int, channel: str, *, token: bytes = b"", queue_group: str = ""
    ) -> None:
        """Subscribe to one channel of one peer."""


class Joiner:
    """Asks publishers for channels on behalf of local subscriptions."""

    def __init__(self, node: Joining, router: Router) -> None:
        self._node = node
        self._router = router

    async def join(self, channel: ChannelName, subscription: Subscription) -> None:
        """Ask every peer that may publish a channel; raises when there are some and all refuse."""
        running = self._node.running()
        if running is None:
            return
        engine, wish = running[0], self._router.wish_of(subscription)
        asked = [peer.node_id for peer in engine.peers if wish.publisher in {None, peer.node_id}]
        if wish.publisher is not None and not asked:
            engine.peers.require(wish.publisher)
        outcomes = await asyncio.gather(
            *(self._ask(node_id, channel, wish.token, wish.queue_group) for node_id in asked), return_exceptions=True
        )
        refusals = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if refusals and len(refusals) == len(outcomes):
            raise refusals[0]

    async def leave(self, subscription: Subscription) -> None:
        """Stop what nobody here wants any more."""
        channel, running = self._router.remove(subscription), self._node.running()
        if channel is None or running is None:
            return
        engine, driver = running
        out = Output()
        for peer in engine.peers:
            if engine.joined.holds(peer.node_id, channel):
                engine.unsubscribe(peer.node_id, channel, Driver.now(), out)
        driver.apply(out)

    def welcome(self, node_id: int) -> None:
        """Ask a peer that just came for the channels that every peer is asked for."""
        running = self._node.running()
        if running is None:
            return
        engine, driver = running
        out = Output()
        for channel, wish in self._router.wishes():
            if wish.publisher in {None, node_id}:
                token = wish.token if wish.token is not None else self._tokens_for(engine, channel)[0]
                engine.subscribe(node_id, channel, Driver.now(), out, token=token, queue_group=wish.queue_group)
        if out.trains:
            driver.apply(out)

    async def _ask(self, node_id: int, channel: ChannelName, token: bytes | None, queue_group: str) -> None:
        """Subscribe at one peer, with each of our tokens until one is good."""
        running = self._node.running()
        if running is None:
            return
        tokens = [token] if token is not None else self._tokens_for(running[0], channel)
        for number, one in enumerate(tokens):
            try:
                await self._node.subscribe_channel(node_id, channel, token=one, queue_group=queue_group)
            except ChannelError:
                if number + 1 == len(tokens):
                    raise
            else:
                return

    def _tokens_for(self, engine: Engine, channel: ChannelName) -> list[bytes]:
        """Give what to present for a channel, in the order to try; a refusal counts against us, so nothing else.

        A net-mesh 0.23 node reads no chains, but takes their last token by itself.
        """
        presented: list[bytes] = []
        for chain in self._node.held_tokens():
            if chain[-1].subject == engine.identity.entity_id and chain[-1].authorizes(Scope.SUBSCRIBE, channel.hash):
                presented += [encode_chain(chain), encode_chain(chain[-1:])][: len(chain)]
        return presented or [b""]
