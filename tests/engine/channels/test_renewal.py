"""Tokens renew themselves before they expire, where their issuer allows it, and subscriptions never notice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from meshbus.engine.base.notices import TokenIssued, TokenNotRenewed, TokenRenewed, Unsubscribed
from meshbus.engine.channels import renewal as subject
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.revocation import Revocation, Revoked
from meshbus.wire.messages.rotation import (
    NotRenewed,
    Present,
    Refusal,
    Renew,
    Renewed,
    RotationMessage,
    encode_rotation,
)
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain, encode_token
from tests.engine.channels.test_rotation import SECURE, count, join
from tests.engine.fleet import CHANNEL, numbered, subscribed

TTL_S = 300
RENEWABLE = Scope.SUBSCRIBE | Scope.RENEWABLE


class Trio:
    """An issuer, a publisher that trusts it, and the holder of a token."""

    def __init__(self, limit_s: int | None = 10**9, publisher: dict[str, Any] | None = None, **issuer: Any) -> None:
        self.net = FakeNet(11)
        self.issuer = self.net.create("issuer", renew_tokens_s=limit_s, **{**SECURE, **issuer})
        trusting = {**SECURE, "trusted_issuers": (self.issuer.engine.identity.entity_id,), **(publisher or {})}
        self.publisher = self.net.create("publisher", **trusting)
        self.holder = self.net.create("holder", **SECURE)
        join(self.issuer, self.publisher, self.holder)
        registry = ChannelConfigRegistry()
        registry.insert(ChannelConfig(name=ChannelName(CHANNEL), require_token=True))
        with self.publisher.turn() as (engine, now, out):
            engine.set_channel_configs(registry, now, out)
            own = self.token(Scope.PUBLISH, self.publisher, ttl_s=10**9)
            engine.tokens.insert(own)

    def token(self, scope: int = RENEWABLE, holder: FakeNode | None = None, **fields: Any) -> PermissionToken:
        whom = (holder or self.holder).engine.identity.entity_id
        given = {"ttl_s": TTL_S, "now": self.unix, "entropy": self.net.entropy("token"), "channel": CHANNEL, **fields}
        return PermissionToken.issue(self.issuer.engine.identity, whom, scope, **given)

    @property
    def unix(self) -> int:
        return self.net.clock.wall(self.net.clock.now) // 10**9

    def hold(self, token: PermissionToken) -> None:
        with self.holder.turn() as (engine, now, _out):
            engine.hold_token(token, now)

    def apply_renewals(self) -> None:
        """Do what a node does when its token was renewed."""
        for renewed in self.holder.happened(TokenRenewed)[self.applied :]:
            self.applied += 1
            with self.holder.turn() as (engine, now, out):
                engine.token_renewed(encode_token(renewed.old), encode_token(renewed.new), now, out)

    applied = 0

    def say(self, sender: FakeNode, receiver: FakeNode, message: RotationMessage) -> None:
        with sender.turn() as (engine, now, out):
            peer = engine.peers.require(receiver.node_id)
            engine.streams.send_reliable(peer, Subprotocol.ROTATION, encode_rotation(message), now, out)
        self.net.run(for_s=1)


@pytest.mark.parametrize("rotation_at_publisher", [True, False])
def test_a_subscription_lives_longer_than_its_token_without_a_gap(rotation_at_publisher: bool) -> None:
    trio = Trio(publisher=None if rotation_at_publisher else {"carries": frozenset()})
    token = trio.token()
    trio.hold(token)
    subscribed(trio.holder, trio.publisher, token=encode_chain((token,)))
    sent = 0
    while trio.net.clock.now < 5 * TTL_S:
        trio.publisher.publish(CHANNEL, numbered(1, first=sent), reliable=True)
        sent += 1
        trio.net.run(for_s=10)
        trio.apply_renewals()
    assert trio.holder.payloads(CHANNEL) == numbered(sent)
    assert not trio.publisher.happened(Unsubscribed)
    renewed = trio.holder.happened(TokenRenewed)
    assert len(renewed) == len(trio.issuer.happened(TokenIssued)) >= 6
    assert all(one.new.not_after - one.new.not_before == TTL_S for one in renewed)
    assert renewed[0].new.not_before == pytest.approx(token.not_before + TTL_S * 2 / 3, abs=2)
    assert not trio.holder.happened(TokenNotRenewed)


def test_an_issuer_that_was_away_is_asked_when_it_is_back_and_one_that_stays_away_is_not_missed_by_others() -> None:
    trio = Trio()
    trio.hold(trio.token())
    trio.net.partition(["issuer"], ["publisher", "holder"])
    trio.net.run(for_s=TTL_S * 0.8)
    assert not trio.holder.happened(TokenRenewed)
    trio.net.heal()
    trio.net.run(for_s=subject.RETRY_S + 1)
    assert len(trio.holder.happened(TokenRenewed)) == 1
    trio.net.partition(["issuer"], ["publisher", "holder"])
    trio.net.run(for_s=2 * TTL_S)
    assert len(trio.holder.happened(TokenRenewed)) == 1
    service = trio.holder.engine.rotation
    assert service is not None
    assert service.next_timer() is None, "an expired token is not asked for any more"


def test_an_issuer_that_connects_late_is_asked_at_once() -> None:
    trio = Trio()
    token = trio.token()
    trio.net.run(for_s=TTL_S * 0.7)
    with trio.holder.turn() as (engine, now, out):
        engine.disconnect(trio.issuer.node_id, now, out)
    trio.hold(token)
    trio.net.run(for_s=1)
    join(trio.issuer, trio.holder)
    trio.net.run(for_s=1)
    assert len(trio.holder.happened(TokenRenewed)) == 1


def test_the_issuers_limit_shortens_what_follows() -> None:
    trio = Trio(limit_s=100)
    trio.hold(trio.token(ttl_s=120))
    trio.net.run(for_s=90)
    (renewed,) = trio.holder.happened(TokenRenewed)
    assert renewed.new.not_after - renewed.new.not_before == 100


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("nothing, the node renews none", Refusal.OFF),
        ("issuer", Refusal.FOREIGN),
        ("subject", Refusal.FOREIGN),
        ("signature", Refusal.FOREIGN),
        ("scope", Refusal.NOT_RENEWABLE),
        ("expired", Refusal.EXPIRED),
        ("revoked", Refusal.REVOKED),
        ("early", Refusal.EARLY),
    ],
)
def test_what_is_refused_and_why(change: str, why: Refusal) -> None:
    trio = Trio(limit_s=None if why is Refusal.OFF else 1000)
    now = trio.unix - TTL_S + 60
    issued: dict[str, dict[str, Any]] = {
        "subject": {"holder": trio.publisher},
        "scope": {"scope": Scope.SUBSCRIBE},
        "expired": {"now": trio.unix - TTL_S},
        "early": {"now": trio.unix},
    }
    token = trio.token(**{"now": now, **issued.get(change, {})})
    spoiled = {"issuer": {"issuer": bytes(32)}, "signature": {"signature": bytes(64)}}
    token = msgspec.structs.replace(token, **spoiled.get(change, {}))
    if change == "revoked":
        trio.issuer.engine.tokens.revoke_below(trio.issuer.engine.identity.entity_id, 1)
    trio.say(trio.holder, trio.issuer, Renew(token))
    assert count(trio.issuer, Reason.REFUSE_RENEWAL) == 1
    assert not trio.issuer.happened(TokenIssued)
    if change in {"revoked", "nothing, the node renews none"}:
        trio.hold(token)
        trio.net.run(for_s=1)
        assert [told.why for told in trio.holder.happened(TokenNotRenewed)] == [why.name.lower()]
    else:
        assert count(trio.holder, Reason.RENEWAL_UNEXPECTED) == 1, "the holder does not hold it"


def test_a_refusal_is_reported_once_and_a_later_version_may_have_other_reasons() -> None:
    trio = Trio(limit_s=None)
    token = trio.token(now=trio.unix - TTL_S + 90)
    trio.hold(token)
    trio.net.run(for_s=85)
    assert count(trio.issuer, Reason.REFUSE_RENEWAL) > 1
    trio.say(trio.issuer, trio.holder, NotRenewed(token.nonce, 99))
    assert [told.why for told in trio.holder.happened(TokenNotRenewed)] == ["off", "reason 99"]


def test_only_the_issuer_can_renew_or_refuse() -> None:
    trio = Trio()
    token = trio.token()
    trio.hold(token)
    forged = msgspec.structs.replace(token, not_after=token.not_after + 1)
    others: list[RotationMessage] = [
        Renewed(forged),
        Renewed(trio.token(ttl_s=TTL_S - 10)),
        Renewed(trio.token(holder=trio.publisher, ttl_s=2 * TTL_S)),
        Renewed(trio.token(RENEWABLE | Scope.PUBLISH, ttl_s=2 * TTL_S)),
        NotRenewed(token.nonce, Refusal.OFF),
    ]
    for message in others:
        trio.say(trio.publisher, trio.holder, message)
    assert count(trio.holder, Reason.RENEWAL_UNEXPECTED) == len(others)
    assert not trio.holder.happened(TokenRenewed)
    assert not trio.holder.happened(TokenNotRenewed)


def test_presented_tokens_replace_kept_ones_of_their_subject_only() -> None:
    trio = Trio()
    token = trio.token()
    holder = trio.holder.engine.identity.entity_id
    cache = trio.publisher.engine.tokens
    trio.say(trio.holder, trio.publisher, Present(trio.token(ttl_s=900)))
    assert cache.get(holder, token.channel_hash, trio.unix) is None, "nothing is kept that was not there before"
    subscribed(trio.holder, trio.publisher, token=encode_chain((token,)))
    trio.say(trio.issuer, trio.publisher, Present(trio.token(ttl_s=901)))
    assert count(trio.publisher, Reason.TOKEN_WRONG_SUBJECT) == 1
    wrong = msgspec.structs.replace(trio.token(ttl_s=902), signature=bytes(64))
    trio.say(trio.holder, trio.publisher, Present(wrong))
    assert count(trio.publisher, Reason.TOKEN_BAD_SIGNATURE) == 1
    assert cache.get(holder, token.channel_hash, trio.unix) == token
    longer = trio.token(ttl_s=903)
    trio.say(trio.holder, trio.publisher, Present(longer))
    assert cache.get(holder, token.channel_hash, trio.unix) == longer


def test_a_peer_that_asks_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    trio = Trio()
    monkeypatch.setattr(
        type(trio.issuer.engine.peers.require(trio.holder.node_id).work),
        "afford",
        lambda _, cost_us, _now: cost_us != subject.SIGN_US,
    )
    trio.say(trio.holder, trio.issuer, Renew(trio.token(now=trio.unix - TTL_S + 60)))
    assert count(trio.issuer, Reason.REFUSE_RENEWAL) == 1
    trio.say(trio.holder, trio.publisher, Present(trio.token()))
    assert count(trio.publisher, Reason.PEER_SHARE) >= 1


def test_tokens_that_are_not_renewable_or_of_others_are_not_held() -> None:
    trio = Trio()
    for token in (trio.token(Scope.SUBSCRIBE), trio.token(holder=trio.publisher)):
        trio.hold(token)
    service = trio.holder.engine.rotation
    assert service is not None
    assert service.next_timer() is None
    plain = trio.net.create("plain")
    with plain.turn() as (engine, now, _out):
        engine.hold_token(trio.token(holder=plain), now)  # a node without 0x4D0D renews nothing


def test_a_token_for_a_prefix_serves_every_channel_below_it() -> None:
    trio = Trio()
    wide = trio.token(channel="sensors/")
    subscribed(trio.holder, trio.publisher, token=encode_chain((wide,)))
    trio.publisher.publish(CHANNEL, numbered(1))
    trio.net.run(for_s=1)
    assert trio.holder.payloads(CHANNEL) == numbered(1)
    other = trio.net.create("other", **SECURE)
    join(trio.publisher, other)
    narrow = trio.token(holder=other, channel="sensors/lidar/")
    with other.turn() as (engine, now, out):
        engine.subscribe(trio.publisher.node_id, ChannelName(CHANNEL), now, out, token=encode_chain((narrow,)))
    trio.net.run(for_s=1)
    assert count(trio.publisher, Reason.TOKEN_WRONG_SCOPE) == 1


def test_an_issuer_gets_another_key_and_its_tokens_follow_without_a_gap() -> None:
    """In the window both issuers are trusted; afterwards the old one is refused, and no event was lost."""
    trio = Trio()
    old_key = trio.issuer.engine.identity.entity_id
    new = trio.net.create("new issuer", renew_tokens_s=10 * TTL_S, renew_issuers=(old_key,), **SECURE)
    new_key = new.engine.identity.entity_id
    token = trio.token()
    trio.hold(token)
    subscribed(trio.holder, trio.publisher, token=encode_chain((token,)))
    join(new, trio.holder)
    for node in (trio.publisher, trio.holder):
        node.engine.tokens.trust((node.engine.identity.entity_id, old_key, new_key))
    trio.publisher.engine.tokens.insert(
        trio.token(Scope.PUBLISH, trio.publisher, ttl_s=10**9).renewed(new.engine.identity, now=trio.unix, max_s=10**9)
    )
    with trio.issuer.turn() as (engine, now, out):  # the old issuer's node is switched off
        engine.close(now, out)
    trio.net.run(for_s=1)
    trio.net.remove("issuer")
    sent = 0
    while trio.net.clock.now < 3 * TTL_S:
        trio.publisher.publish(CHANNEL, numbered(1, first=sent), reliable=True)
        sent += 1
        trio.net.run(for_s=10)
        trio.apply_renewals()
    renewed = trio.holder.happened(TokenRenewed)
    assert [(one.old.issuer, one.new.issuer) for one in renewed][:2] == [(old_key, new_key), (new_key, new_key)]
    with trio.publisher.turn() as (engine, now, out):  # the end of the window: a policy without the old issuer
        engine.tokens.trust((engine.identity.entity_id, new_key))
        engine.recheck(now, out)
    trio.publisher.publish(CHANNEL, numbered(1, first=sent), reliable=True)
    trio.net.run(for_s=1)
    assert trio.holder.payloads(CHANNEL) == numbered(sent + 1)
    assert not trio.publisher.happened(Unsubscribed)
    late = trio.net.create("late", **SECURE)
    join(late, trio.publisher)
    with late.turn() as (engine, now, out):
        mine = encode_chain((trio.token(holder=late),))
        engine.subscribe(trio.publisher.node_id, ChannelName(CHANNEL), now, out, token=mine)
    trio.net.run(for_s=1)
    assert count(trio.publisher, Reason.TOKEN_UNTRUSTED) == 1


@pytest.mark.parametrize("named", ["the first", "the present"])
@pytest.mark.parametrize("after_s", [0, 10 * 86_400])
def test_a_revoked_token_takes_all_tokens_of_its_line_with_it(named: str, after_s: int) -> None:
    """A token in a lost file was renewed meanwhile, perhaps for days, and is revoked by any of its forms."""
    fleet = Identity.from_seed(bytes([78]) * 32)
    trusting: dict[str, Any] = {
        "policy_issuers": (fleet.entity_id,),
        "carries": frozenset({Subprotocol.ROTATION, Subprotocol.REVOCATION}),
    }
    trio = Trio(publisher=trusting, **trusting)
    first = trio.token(ttl_s=TTL_S + after_s)
    trio.hold(first)
    subscribed(trio.holder, trio.publisher, token=encode_chain((first,)))
    trio.net.run(for_s=1)
    present = first
    for _ in range(3):
        trio.net.clock.unix_s += (present.not_after - present.not_before) * 3 // 4
        trio.net.run(for_s=subject.RETRY_S + 1)
        trio.apply_renewals()
        trio.net.run(for_s=1)
        present = trio.holder.happened(TokenRenewed)[-1].new
    assert len(trio.holder.happened(TokenRenewed)) == 3
    assert first.expired(trio.unix)
    other = trio.token(entropy=trio.net.entropy("other"))  # what the issuer gives it on purpose is another token
    record = Revocation.sign(
        fleet, Revoked.TOKEN, (first if named == "the first" else present).signed_bytes, at=0, reason="in a log file"
    )
    with trio.publisher.turn() as (engine, now, out):
        assert engine.revoking is not None
        assert engine.revoking.revoke(record, now, out)
    trio.net.run(for_s=1)
    assert trio.publisher.happened(Unsubscribed)
    for node in (trio.issuer, trio.publisher):
        assert node.engine.tokens.revoked(present)
        assert node.engine.tokens.revoked(first)
        assert not node.engine.tokens.revoked(other)
    trio.net.clock.unix_s += (present.not_after - present.not_before) * 3 // 4
    trio.net.run(for_s=subject.RETRY_S + 1)
    assert len(trio.holder.happened(TokenRenewed)) == 3
    assert [told.why for told in trio.holder.happened(TokenNotRenewed)] == ["revoked"]


def test_a_trusted_issuer_that_does_not_replace_the_old_one_refuses_and_a_stranger_is_not_asked() -> None:
    trio = Trio()
    other = trio.net.create("other issuer", renew_tokens_s=1000, **SECURE)
    join(other, trio.holder)
    with trio.holder.turn() as (engine, now, out):
        engine.disconnect(trio.issuer.node_id, now, out)
    trio.hold(trio.token(now=trio.unix - TTL_S + 60))
    trio.net.run(for_s=subject.RETRY_S / 2)
    assert count(other, Reason.REFUSE_RENEWAL) == 0, "its key is not trusted as an issuer"
    trio.holder.engine.tokens.trust((other.engine.identity.entity_id,))
    trio.hold(trio.token(now=trio.unix - TTL_S + 60, ttl_s=TTL_S + 1))
    trio.net.run(for_s=1)
    assert [told.why for told in trio.holder.happened(TokenNotRenewed)] == ["foreign"]


def test_a_fleet_of_five_gets_another_issuer_under_load_with_loss() -> None:
    """Three holders, a publisher, and the node of the issuer, which comes back with another key."""
    net = FakeNet(12, path=FakePath(loss=0.05, jitter_s=0.01))
    first, second = net.create("first", renew_tokens_s=TTL_S, **SECURE), Identity.from_seed(bytes([77]) * 32)
    keys = (first.engine.identity.entity_id, second.entity_id)
    trusting = {**SECURE, "trusted_issuers": keys}
    publisher, *holders = [net.create(f"node {number}", **trusting) for number in range(4)]
    join(first, publisher, *holders)
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName(CHANNEL), subscribe_caps=None, require_token=True))
    with publisher.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)

    def issue(whom: FakeNode, issuer: Identity, scope: int, ttl_s: int) -> PermissionToken:
        subject_id, unix = whom.engine.identity.entity_id, net.clock.wall(net.clock.now) // 10**9
        return PermissionToken.issue(
            issuer, subject_id, scope, "sensors/", ttl_s=ttl_s, now=unix, entropy=net.entropy(whom.name)
        )

    publisher.engine.tokens.insert(issue(publisher, second, Scope.PUBLISH, 10**9))
    for holder in holders:
        token = issue(holder, first.engine.identity, RENEWABLE, TTL_S)
        with holder.turn() as (engine, now, _out):
            engine.hold_token(token, now)
        subscribed(holder, publisher, token=encode_chain((token,)))
    applied = dict.fromkeys(holders, 0)
    sent = 0
    while net.clock.now < 3 * TTL_S:
        publisher.publish(CHANNEL, numbered(1, first=sent), reliable=True)
        sent += 1
        if sent == 15:
            with first.turn() as (engine, now, out):
                engine.close(now, out)
            net.run(for_s=1)
            net.remove("first")
            successor = net.create("second", identity=second, renew_tokens_s=TTL_S, renew_issuers=keys[:1], **SECURE)
            join(successor, *holders)
        net.run(for_s=5)
        for holder in holders:
            for renewed in holder.happened(TokenRenewed)[applied[holder] :]:
                applied[holder] += 1
                with holder.turn() as (engine, now, out):
                    engine.token_renewed(encode_token(renewed.old), encode_token(renewed.new), now, out)
    net.run(for_s=20)
    for holder in holders:
        assert holder.payloads(CHANNEL) == numbered(sent)
        assert holder.happened(TokenRenewed)[0].new.issuer == second.entity_id
    assert not publisher.happened(Unsubscribed)
