"""Joining: which tokens are presented. Who is asked and when is covered with live nodes in test_node.py."""

import os
import time
from types import SimpleNamespace

from meshbus.names.identity import Identity
from meshbus.node.joining import Joiner
from meshbus.node.live import Live
from meshbus.node.subscribers import Subscribers, SubscriptionSpec
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain


def test_only_tokens_that_can_help_are_presented() -> None:
    issuer, me = (Identity.generate(os.urandom) for _ in range(2))

    def token(channel: str, scope: Scope, subject: Identity) -> PermissionToken:
        now = time.time_ns() / 1e9
        return PermissionToken.issue(issuer, subject.entity_id, scope, channel, ttl_s=60, now=now, entropy=os.urandom)

    good = token("a", Scope.SUBSCRIBE, me)
    others = [token("b", Scope.SUBSCRIBE, me), token("a", Scope.PUBLISH, me), token("a", Scope.SUBSCRIBE, issuer)]
    live: Live = SimpleNamespace(engine=SimpleNamespace(identity=me))  # type: ignore[assignment]
    joiner = Joiner(live, Subscribers(), [*((one,) for one in others), (good,)])
    assert joiner.tokens_for(SubscriptionSpec("a")) == [encode_chain((good,))]
    assert joiner.tokens_for(SubscriptionSpec("a", token=b"mine")) == [b"mine"]
    assert joiner.tokens_for(SubscriptionSpec("c")) == [b""]
    assert joiner.tokens_for(SubscriptionSpec("a/")) == [b""], "an interest is judged channel by channel"
