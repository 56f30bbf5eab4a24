"""Joining: who is asked, with which token."""

import os
import time
from collections.abc import Iterator

from meshbus.engine.core import Engine
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.driver import Driver
from meshbus.node.joining import Joiner
from meshbus.node.subscribers import Router, Wish
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain
from tests.node.test_subscription import Desk


class Idle:
    """A node that is not running."""

    def __init__(self, *chains: tuple[PermissionToken, ...]) -> None:
        self.chains = chains

    def running(self) -> tuple[Engine, Driver] | None:
        return None

    def held_tokens(self) -> Iterator[tuple[PermissionToken, ...]]:
        return iter(self.chains)

    async def subscribe_channel(
        self, publisher: int, channel: str, *, token: bytes = b"", queue_group: str = ""
    ) -> None:
        raise AssertionError(publisher, channel, token, queue_group)

    async def matched(self, request: int) -> None:
        raise AssertionError(request)


class Named:
    """As much of an engine as a token is matched with."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity


async def test_a_node_that_is_not_running_asks_nobody() -> None:
    router = Router()
    joiner = Joiner(Idle(), router)
    subscription = Desk().subscription
    router.add(Wish("a"), subscription)
    await joiner.join(subscription)
    joiner.welcome(5)
    joiner.agreed(5)
    await joiner.leave(subscription)
    assert router.subscriptions() == []


def test_only_tokens_that_can_help_are_presented() -> None:
    issuer, me = (Identity.generate(os.urandom) for _ in range(2))

    def token(channel: str, scope: Scope, subject: Identity) -> PermissionToken:
        now = time.time_ns() / 1e9
        return PermissionToken.issue(issuer, subject.entity_id, scope, channel, ttl_s=60, now=now, entropy=os.urandom)

    good = token("a", Scope.SUBSCRIBE, me)
    others = [token("b", Scope.SUBSCRIBE, me), token("a", Scope.PUBLISH, me), token("a", Scope.SUBSCRIBE, issuer)]
    joiner = Joiner(Idle(*((one,) for one in others), (good,)), Router())
    engine: Engine = Named(me)  # type: ignore[assignment]
    assert joiner._tokens_for(engine, ChannelName("a")) == [encode_chain((good,))]
    assert joiner._tokens_for(engine, ChannelName("c")) == [b""]
