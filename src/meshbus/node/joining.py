"""Keeping publishers informed of what this node's subscriptions want: who is asked, with which token, and when.

The router knows the local subscriptions; this file carries their wishes to peers: at once when a subscription starts,
when a peer comes later, and to those that were asked when the last subscription of a channel ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Protocol

from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.errors import ChannelError
from meshbus.names.channel import ChannelName
from meshbus.node.driver import Driver
from meshbus.node.subscribers import Router, Wish
from meshbus.node.subscription import Subscription
from meshbus.wire.constants import Subprotocol
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

    def matched(self, request: int) -> Awaitable[None]:
        """Wait for the answer to an interest, from now on."""


class Joiner:
    """Asks publishers for channels on behalf of local subscriptions."""

    def __init__(self, node: Joining, router: Router) -> None:
        self._node = node
        self._router = router
        self._interests: dict[str, list[tuple[int, int]]] = {}
        """By prefix: the publishers that were told, and under which number."""

    async def join(self, subscription: Subscription) -> None:
        """Ask every peer that may publish what a subscription wants; raises when there are some and all refuse."""
        running = self._node.running()
        if running is None:
            return
        engine, wish = running[0], self._router.wish_of(subscription)
        asked = [peer.node_id for peer in engine.peers if wish.publisher in {None, peer.node_id}]
        if wish.publisher is not None:
            engine.peers.require(wish.publisher)
        if wish.is_prefix:
            asks = [
                self._node.matched(request)
                for node_id in asked
                if (request := self._follow(wish, node_id, explicit=wish.publisher is not None)) is not None
            ]
        else:
            asks = [self._ask(node_id, wish) for node_id in asked]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        refusals = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if refusals and len(refusals) == len(outcomes):
            raise refusals[0]

    async def leave(self, subscription: Subscription) -> None:
        """Stop what nobody here wants any more."""
        wish, running = self._router.remove(subscription), self._node.running()
        if wish is None or running is None:
            return
        engine, driver = running
        out = Output()
        if wish.is_prefix:
            for node_id, request in self._interests.pop(wish.topic, ()):
                engine.following.unfollow(node_id, request, Driver.now(), out)
        else:
            channel = ChannelName(wish.topic)
            for peer in engine.peers:
                if engine.joined.holds(peer.node_id, channel):
                    engine.unsubscribe(peer.node_id, channel, Driver.now(), out)
        driver.apply(out)

    def hold(self, subscription: Subscription, held: bool) -> None:
        """Stop granting credit to the publishers of a subscription that is full, or go on."""
        running = self._node.running()
        if running is None:
            return
        engine, driver = running
        now, wish = Driver.now(), Wish(subscription.topic)
        for peer in engine.peers:
            for channel in engine.joined.channels_of(peer.node_id):
                if wish.covers(channel):
                    engine.delivery.hold(peer.node_id, channel.stream_id, now, held=held)
        if not held:
            driver.apply(engine.tick(now))

    def welcome(self, node_id: int) -> None:
        """Ask a peer that just came for the channels that every peer is asked for."""
        running = self._node.running()
        if running is None:
            return
        engine, driver = running
        out = Output()
        for wish in self._router.wishes():
            if not wish.is_prefix and wish.publisher in {None, node_id}:
                channel = ChannelName(wish.topic)
                token = wish.token if wish.token is not None else self._tokens_for(engine, channel)[0]
                engine.subscribe(node_id, channel, Driver.now(), out, token=token, queue_group=wish.queue_group)
        if out.trains:
            driver.apply(out)

    def agreed(self, node_id: int) -> None:
        """Tell a peer that now speaks the profile about the prefixes that it was not told about yet."""
        for wish in self._router.wishes():
            told = {told for told, _ in self._interests.get(wish.topic, ())}
            if wish.is_prefix and node_id not in told and wish.publisher in {None, node_id}:
                self._follow(wish, node_id, explicit=False)

    def _follow(self, wish: Wish, node_id: int, *, explicit: bool) -> int | None:
        """Tell one publisher about a prefix; None when it does not speak of prefixes, unless it was named."""
        running = self._node.running()
        if running is None:
            return None
        engine, driver = running
        if not (explicit or engine.peers.require(node_id).uses(Subprotocol.INTEREST)):
            return None
        out = Output()
        request = engine.interest(
            node_id, wish.topic, Driver.now(), out, token=wish.token or b"", queue_group=wish.queue_group
        )
        self._interests.setdefault(wish.topic, []).append((node_id, request))
        driver.apply(out)
        return request

    def tokens_for(self, wish: Wish) -> list[bytes]:
        """Give what to present for the channel of a wish, in the order to try."""
        running = self._node.running()
        if wish.token is not None or running is None or wish.is_prefix:
            return [wish.token or b""]
        return self._tokens_for(running[0], ChannelName(wish.topic))

    async def _ask(self, node_id: int, wish: Wish) -> None:
        """Subscribe at one peer, with each of our tokens until one is good."""
        tokens = self.tokens_for(wish)
        for number, one in enumerate(tokens):
            try:
                await self._node.subscribe_channel(node_id, wish.topic, token=one, queue_group=wish.queue_group)
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
