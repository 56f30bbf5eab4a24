"""Token cache: trust, capacity, and the behavior of a reference node with `any_issuer`."""

from itertools import pairwise
from typing import Any

import msgspec
import net
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbus.errors import AuthError, AuthFault
from meshbus.names.channel import ChannelName, hash_name
from meshbus.names.identity import Identity
from meshbus.policy import tokens as tokens_module
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.channels import ChannelConfig
from meshbus.policy.tokens import MAX_PER_SLOT, TokenCache, verify_chain
from meshbus.wire.messages.token import MAX_CHAIN, PermissionToken, Scope, encode_token
from tests.vectors import load

CACHE_ROWS = load("policy")["token_cache"]["rows"]
PROMOTION_ROWS = load("policy")["token_promotion_and_expiry"]["rows"]

ROOT, ALICE, BOB, EVE, PUBLISHER = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3, 4, 5))
CHANNEL = "lab/secret"
HASH = hash_name(CHANNEL)
NOW = 5_000.0


def issue(
    issuer: Identity = ROOT,
    subject: Identity = ALICE,
    scope: int = Scope.SUBSCRIBE,
    *,
    nonce: int = 1,
    channel: str | None = CHANNEL,
    now: float = NOW,
    ttl_s: int = 100,
    **options: Any,
) -> PermissionToken:
    return PermissionToken.issue(
        issuer, subject.entity_id, scope, channel,
        now=now, ttl_s=ttl_s, entropy=lambda size: nonce.to_bytes(size, "little"), **options,
    )  # fmt: skip


def delegate(parent: PermissionToken, signer: Identity, subject: Identity, scope: int = Scope.ALL) -> PermissionToken:
    return parent.delegate(signer, subject.entity_id, scope, now=NOW, entropy=bytes)


def forge(signer: Identity, token: PermissionToken, **changes: Any) -> PermissionToken:
    """Sign something that `delegate` would not have signed."""
    unsigned = msgspec.structs.replace(token, issuer=signer.entity_id, **changes)
    return msgspec.structs.replace(unsigned, signature=signer.sign(unsigned.signed_bytes))


def allowed(cache: TokenCache, subject: Identity = ALICE, action: int = Scope.SUBSCRIBE, now: float = NOW) -> bool:
    return cache.check(subject.entity_id, action, HASH, now)


def fault_of(action: Any) -> AuthFault | None:
    try:
        action()
    except AuthError as error:
        return error.fault
    return None


# ── trust ───────────────────────────────────────────────────────────────────────────────────


def test_only_the_token_of_a_root_counts() -> None:
    cache = TokenCache([ROOT.entity_id])
    assert cache.insert(issue())
    assert allowed(cache)
    for stranger in (EVE, ALICE):
        assert fault_of(lambda issuer=stranger: cache.insert(issue(issuer, BOB))) is AuthFault.NOT_AUTHORIZED
    assert not allowed(cache, BOB)
    assert len(cache) == 1


def test_what_rests_on_an_issuer_ends_with_the_trust_in_it() -> None:
    cache = TokenCache([ROOT.entity_id, EVE.entity_id])
    cache.insert(issue())
    cache.insert(issue(EVE, BOB))
    cache.trust([ROOT.entity_id])
    assert allowed(cache)
    assert not allowed(cache, BOB)
    assert len(cache) == 1
    cache.trust([EVE.entity_id])
    assert not allowed(cache)
    assert len(cache) == 0
    anyone = TokenCache([], any_issuer=True)
    anyone.insert(issue(EVE, BOB))
    anyone.trust([ROOT.entity_id])
    assert allowed(anyone, BOB)


def test_without_roots_nothing_counts() -> None:
    assert fault_of(lambda: TokenCache().insert(issue())) is AuthFault.NOT_AUTHORIZED


def test_any_issuer_accepts_every_issuer() -> None:
    cache = TokenCache(any_issuer=True)
    assert cache.insert(issue(ALICE, ALICE))
    assert allowed(cache)


@pytest.mark.parametrize("any_issuer", [False, True])
def test_a_bad_signature_is_never_kept(any_issuer: bool) -> None:
    cache = TokenCache([ROOT.entity_id], any_issuer=any_issuer)
    tampered = msgspec.structs.replace(issue(), scope=int(Scope.ALL))
    assert fault_of(lambda: cache.insert(tampered)) is AuthFault.BAD_SIGNATURE
    assert len(cache) == 0


def test_a_token_serves_its_subject_its_action_its_channel_and_its_time() -> None:
    cache = TokenCache([ROOT.entity_id])
    cache.insert(issue())
    assert not allowed(cache, BOB)
    assert not allowed(cache, action=Scope.PUBLISH)
    assert not cache.check(ALICE.entity_id, Scope.SUBSCRIBE, HASH + 1, NOW)
    assert not allowed(cache, now=NOW - 1)
    assert not allowed(cache, now=NOW + 100)
    assert TokenCache([ROOT.entity_id]).get(ALICE.entity_id, HASH, NOW) is None


def test_clocks_may_differ_by_the_skew() -> None:
    cache = TokenCache([ROOT.entity_id], skew_s=60)
    cache.insert(issue())
    assert allowed(cache, now=NOW - 60)
    assert allowed(cache, now=NOW + 159)
    assert not allowed(cache, now=NOW + 160)
    assert cache.evict_expired(NOW + 159) == 0
    assert cache.evict_expired(NOW + 160) == 1


def test_a_wildcard_serves_every_channel_and_a_zero_hash_only_itself() -> None:
    cache = TokenCache([ROOT.entity_id])
    cache.insert(issue(scope=Scope.SUBSCRIBE | Scope.WILDCARD, channel=None))
    cache.insert(forge(ROOT, issue(subject=BOB), channel_hash=0))
    assert all(cache.check(ALICE.entity_id, Scope.SUBSCRIBE, channel, NOW) for channel in (0, 5, HASH))
    assert not cache.check(ALICE.entity_id, Scope.PUBLISH, 0, NOW)
    assert [cache.check(BOB.entity_id, Scope.SUBSCRIBE, channel, NOW) for channel in (0, 5, HASH)] == [
        True,
        False,
        False,
    ]


def test_raising_the_floor_revokes_older_generations_for_good() -> None:
    cache = TokenCache([ROOT.entity_id])
    cache.insert(issue(generation=3))
    cache.revoke_below(ROOT.entity_id, 3)
    assert allowed(cache)
    cache.revoke_below(ROOT.entity_id, 4)
    cache.revoke_below(ROOT.entity_id, 1)
    assert cache.floor(ROOT.entity_id) == 4
    assert cache.floor(EVE.entity_id) == 0
    assert not allowed(cache)
    cache.insert(issue(generation=4))
    assert allowed(cache)


# ── chains ──────────────────────────────────────────────────────────────────────────────────

PARENT = issue(scope=Scope.SUBSCRIBE | Scope.PUBLISH | Scope.DELEGATE, delegation_depth=3)
CHILD = delegate(PARENT, ALICE, BOB)
GRANDCHILD = delegate(CHILD, BOB, EVE, Scope.SUBSCRIBE)


def test_a_chain_from_a_root_counts() -> None:
    verify_chain([PARENT], {ROOT.entity_id}, NOW)
    verify_chain([PARENT, CHILD, GRANDCHILD], {ROOT.entity_id}, NOW)
    cache = TokenCache([ROOT.entity_id])
    assert cache.insert_chain([PARENT, CHILD, GRANDCHILD])
    assert allowed(cache, EVE)
    assert not allowed(cache, EVE, Scope.PUBLISH)
    assert not allowed(cache, ALICE), "the parents were shown as proof, not to be used"
    assert fault_of(lambda: TokenCache([EVE.entity_id]).insert_chain([PARENT, CHILD])) is AuthFault.NOT_AUTHORIZED


def test_a_cached_parent_proves_a_child_presented_alone() -> None:
    cache = TokenCache([ROOT.entity_id])
    assert fault_of(lambda: cache.insert(CHILD)) is AuthFault.NOT_AUTHORIZED
    cache.insert(PARENT)
    assert cache.insert(CHILD)
    assert cache.insert(GRANDCHILD)
    assert allowed(cache, BOB)
    assert allowed(cache, EVE)


def test_a_cached_token_that_may_not_delegate_proves_nothing() -> None:
    cache = TokenCache([ROOT.entity_id])
    cache.insert(issue())
    assert fault_of(lambda: cache.insert(CHILD)) is AuthFault.NOT_AUTHORIZED


def test_revoking_a_parent_revokes_what_came_of_it() -> None:
    for issuer in (ROOT, ALICE, BOB):
        cache = TokenCache([ROOT.entity_id])
        cache.insert_chain([PARENT, CHILD, GRANDCHILD])
        cache.revoke_below(issuer.entity_id, 1)
        assert not allowed(cache, EVE), issuer


def test_a_wildcard_parent_may_have_children_for_single_channels() -> None:
    parent = issue(scope=Scope.SUBSCRIBE | Scope.DELEGATE | Scope.WILDCARD, channel=None, delegation_depth=1)
    child = forge(ALICE, CHILD, scope=int(Scope.SUBSCRIBE), delegation_depth=0)
    verify_chain([parent, child], {ROOT.entity_id}, NOW)
    cache = TokenCache([ROOT.entity_id])
    cache.insert(parent)
    assert cache.insert(child)
    assert allowed(cache, BOB)
    assert not cache.check(BOB.entity_id, Scope.SUBSCRIBE, HASH + 1, NOW)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"scope": int(Scope.ADMIN)}, AuthFault.NOT_AUTHORIZED),
        ({"scope": int(Scope.SUBSCRIBE | Scope.WILDCARD)}, AuthFault.NOT_AUTHORIZED),
        ({"scope": 0x80000002}, AuthFault.NOT_AUTHORIZED),
        ({"channel_hash": HASH + 1}, AuthFault.NOT_AUTHORIZED),
        ({"not_before": PARENT.not_before - 1}, AuthFault.NOT_AUTHORIZED),
        ({"not_after": PARENT.not_after + 1}, AuthFault.NOT_AUTHORIZED),
        ({"delegation_depth": PARENT.delegation_depth}, AuthFault.DELEGATION_EXHAUSTED),
    ],
    ids=str,
)
def test_a_child_that_reaches_beyond_its_parent_breaks_the_chain(changes: dict[str, int], fault: AuthFault) -> None:
    chain = [PARENT, forge(ALICE, CHILD, **changes)]
    assert fault_of(lambda: verify_chain(chain, {ROOT.entity_id}, NOW)) is fault
    cache = TokenCache([ROOT.entity_id])
    assert fault_of(lambda: cache.insert_chain(chain)) is fault
    cache.insert(PARENT)
    assert fault_of(lambda: cache.insert(chain[1])) is AuthFault.NOT_AUTHORIZED


def test_a_child_must_come_from_the_parents_subject_with_leave_to_delegate() -> None:
    stolen = [PARENT, forge(EVE, CHILD)]
    assert fault_of(lambda: verify_chain(stolen, {ROOT.entity_id}, NOW)) is AuthFault.NOT_AUTHORIZED
    no_leave = [issue(scope=Scope.SUBSCRIBE, delegation_depth=3), forge(ALICE, CHILD, scope=int(Scope.SUBSCRIBE))]
    assert fault_of(lambda: verify_chain(no_leave, {ROOT.entity_id}, NOW)) is AuthFault.DELEGATION_NOT_ALLOWED


def test_every_signature_and_time_of_a_chain_is_checked() -> None:
    roots = {ROOT.entity_id}
    tampered = msgspec.structs.replace(PARENT, nonce=99)
    assert fault_of(lambda: verify_chain([tampered, CHILD], roots, NOW)) is AuthFault.BAD_SIGNATURE
    assert fault_of(lambda: TokenCache(roots).insert_chain([tampered, CHILD])) is AuthFault.BAD_SIGNATURE
    assert fault_of(lambda: verify_chain([PARENT, CHILD], roots, NOW + 100)) is AuthFault.EXPIRED
    assert fault_of(lambda: verify_chain([PARENT, CHILD], roots, NOW - 1)) is AuthFault.NOT_YET_VALID
    assert fault_of(lambda: verify_chain([PARENT, CHILD], roots, NOW + 100, skew_s=10)) is None


def test_chains_are_bounded() -> None:
    roots = {ROOT.entity_id}
    people = [Identity.from_seed(bytes([100 + n]) * 32) for n in range(MAX_CHAIN + 1)]
    chain = [issue(subject=people[0], scope=Scope.ALL, delegation_depth=20)]
    for signer, subject in pairwise(people):
        chain.append(delegate(chain[-1], signer, subject))
    verify_chain(chain[:MAX_CHAIN], roots, NOW)
    for bad in ([], chain):
        assert fault_of(lambda bad=bad: verify_chain(bad, roots, NOW)) is AuthFault.NOT_AUTHORIZED
        assert fault_of(lambda bad=bad: TokenCache(roots).insert_chain(bad)) is AuthFault.NOT_AUTHORIZED
    cache = TokenCache(roots)
    for token in chain[:MAX_CHAIN]:
        assert cache.insert(token)
    assert fault_of(lambda: cache.insert(chain[MAX_CHAIN])) is AuthFault.NOT_AUTHORIZED


def test_with_the_switch_a_chain_is_worth_its_last_token() -> None:
    cache = TokenCache(any_issuer=True)
    assert cache.insert_chain([PARENT, CHILD])
    assert allowed(cache, BOB)


# ── room ────────────────────────────────────────────────────────────────────────────────────


def test_a_good_token_is_not_lost_to_a_worse_one() -> None:
    cache = TokenCache([ROOT.entity_id, EVE.entity_id])
    cache.insert(issue(ttl_s=100))
    cache.insert(issue(ttl_s=10, nonce=2))
    cache.insert(issue(now=NOW + 50, ttl_s=500, nonce=3))
    cache.insert(issue(EVE, ttl_s=500, nonce=4))
    cache.revoke_below(EVE.entity_id, 1)
    assert all(allowed(cache, now=NOW + later) for later in (0, 20, 99, 100, 549))
    assert len(cache) == 4


def test_the_same_token_takes_one_place() -> None:
    cache = TokenCache([ROOT.entity_id])
    assert cache.insert(issue())
    assert cache.insert(issue())
    assert len(cache) == 1


def test_in_a_full_slot_the_first_to_expire_makes_room_for_a_longer_one() -> None:
    cache = TokenCache([ROOT.entity_id])
    for number in range(MAX_PER_SLOT):
        cache.insert(issue(ttl_s=100 + number, nonce=number))
    assert not cache.insert(issue(ttl_s=100, nonce=99))
    assert cache.dropped == 1
    assert cache.insert(issue(ttl_s=1000, nonce=100))
    assert len(cache) == MAX_PER_SLOT
    nonces = {chain[-1].nonce for chain in cache._slots[ALICE.entity_id, HASH]}
    assert nonces == {*range(1, MAX_PER_SLOT), 100}


def test_slots_are_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "MAX_SLOTS", 2)
    cache = TokenCache([ROOT.entity_id])
    assert cache.insert(issue(channel="a", ttl_s=10))
    assert cache.insert(issue(channel="b"))
    assert not cache.insert(issue(channel="c"))
    assert cache.dropped == 1
    assert cache.evict_expired(NOW + 10) == 1
    assert cache.insert(issue(channel="c"))
    assert len(cache) == 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.sampled_from([1, 2, 3])), max_size=20))
@settings(max_examples=30)
def test_the_cache_allows_what_any_inserted_token_allows(specs: list[tuple[int, int, int]]) -> None:
    cache = TokenCache([ROOT.entity_id])
    tokens = [issue(scope=scope, now=NOW + start, ttl_s=ttl_s) for start, ttl_s, scope in specs]
    for token in tokens:
        cache.insert(token)
    for later in range(16):
        for action in (Scope.PUBLISH, Scope.SUBSCRIBE):
            expected = any(token.valid(NOW + later) and token.authorizes(action, HASH) for token in tokens)
            assert allowed(cache, action=action, now=NOW + later) == expected


# ── the reference's habits ──────────────────────────────────────────────────────────────────


def test_the_switch_keeps_and_replaces_as_the_reference_does() -> None:
    """Compare with the reference. It uses the machine's clock, so tokens are valid from 1970 to 2100."""
    theirs = net.Identity.generate()
    ours = TokenCache(any_issuer=True)
    forever: dict[str, Any] = {"now": 1, "ttl_s": 4102444799}
    steps = {
        "valid": issue(**forever),
        "same_again": issue(**forever),
        "same_scope_new_nonce": issue(nonce=2, **forever),
        "other_scope": issue(scope=Scope.PUBLISH, **forever),
        "same_scope_other_issuer_replaces": issue(EVE, nonce=0x58, **forever),
        "expired_is_still_cached": issue(scope=Scope.ADMIN, now=1000, ttl_s=1000),
        "tampered": msgspec.structs.replace(issue(**forever), nonce=77),
        "wildcard": issue(scope=Scope.SUBSCRIBE | Scope.WILDCARD, **forever),
    }
    for row in CACHE_ROWS[: len(steps)]:
        token = steps[row["case"]]
        fault = fault_of(lambda token=token: ours.insert(token))
        if row["result"] == "ok":
            assert fault is None
            theirs.install_token(encode_token(token))
        else:
            assert fault is AuthFault.BAD_SIGNATURE
            with pytest.raises(net.TokenError, match=row["result"]):
                theirs.install_token(encode_token(token))
        assert len(ours) == theirs.token_cache_len == row["cache_len_after"]
    lookup, overflow = CACHE_ROWS[len(steps) :]
    found = ours.get(ALICE.entity_id, HASH, NOW)
    assert found is not None
    assert (found.nonce, found.scope) == (int(lookup["result_nonce"], 16), lookup["result_scope"])
    assert theirs.lookup_token(ALICE.entity_id, CHANNEL) == encode_token(found)
    for number in range(40):
        token = issue(scope=number << 5 | 2, channel="lab/crowded", **forever)
        assert ours.insert(token) == (number < MAX_PER_SLOT)
        theirs.install_token(encode_token(token))
    assert len(ours) == theirs.token_cache_len == overflow["cache_len_after"]
    assert ours.dropped == 8


def test_the_lookup_falls_back_to_a_token_that_is_not_valid() -> None:
    cache = TokenCache([ROOT.entity_id])
    cache.insert(issue(nonce=1))
    cache.insert(issue(now=NOW + 500, nonce=2))
    found = [cache.get(ALICE.entity_id, HASH, NOW + later) for later in (0, 200, 500)]
    assert [token and token.nonce for token in found] == [1, 1, 2]


class Gate:
    """The decisions of a publisher about one token-gated channel, and what an accepted subscribe leaves behind."""

    def __init__(self, cache: TokenCache) -> None:
        self.cache = cache
        self.config = ChannelConfig(name=ChannelName(CHANNEL), require_token=True)

    def subscribe(self, token: PermissionToken | None, now: float) -> bool:
        scratch = TokenCache(self.cache.trusted_issuers, any_issuer=self.cache.any_issuer)
        good = token is not None and fault_of(lambda: scratch.insert(token)) is None
        accepted = any(
            self.config.can_subscribe(CHANNEL, CapabilitySet(), ALICE.entity_id, cache, now)
            for cache in (scratch, self.cache)
        )
        if accepted and good and token is not None:
            self.cache.insert(token)
        return accepted

    def publish(self, now: float) -> int | None:
        """Return the number of recipients, or None if the publisher itself may not publish."""
        if not self.config.can_publish(CHANNEL, CapabilitySet(), PUBLISHER.entity_id, self.cache, now):
            return None
        return int(allowed(self.cache, ALICE, now=now))


def play(gate: Gate) -> list[object]:
    own = issue(EVE if gate.cache.any_issuer else ROOT, ALICE)
    planted = issue(EVE, PUBLISHER, Scope.PUBLISH)
    expired = issue(EVE if gate.cache.any_issuer else ROOT, ALICE, now=NOW - 500)
    short = issue(EVE if gate.cache.any_issuer else ROOT, ALICE, now=NOW, ttl_s=2)
    return [
        gate.subscribe(own, NOW),
        gate.publish(NOW),
        gate.subscribe(planted, NOW),
        gate.publish(NOW),
        gate.subscribe(expired, NOW),
        gate.publish(NOW),
        gate.subscribe(None, NOW),
        gate.subscribe(short, NOW),
        gate.publish(NOW + 1),
        gate.publish(NOW + 2),
    ]


def test_with_the_switch_tokens_are_planted_and_overwritten_as_observed() -> None:
    observed: list[object] = []
    for row in PROMOTION_ROWS:
        if "ack" in row:
            observed.append(row["ack"]["accepted"])
        else:
            observed.append(row["publish"]["attempted"] if isinstance(row["publish"], dict) else None)
    assert play(Gate(TokenCache(any_issuer=True))) == observed


def test_without_it_nothing_is_planted_and_a_valid_token_survives() -> None:
    cache = TokenCache([ROOT.entity_id])
    assert play(Gate(cache)) == [True, None, True, None, True, None, True, True, None, None]
    cache.insert(issue(ROOT, PUBLISHER, Scope.PUBLISH))
    assert Gate(cache).publish(NOW + 50) == 1


# ── presented and not kept ──────────────────────────────────────────────────────────────────


def test_a_presented_token_answers_for_itself_and_is_kept_only_when_asked() -> None:
    cache = TokenCache([ROOT.entity_id])
    presented = cache.present([issue()])
    assert presented.token == issue()
    assert presented.check(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW)
    assert not presented.check(BOB.entity_id, Scope.SUBSCRIBE, HASH, NOW)
    assert not presented.check(ALICE.entity_id, Scope.PUBLISH, HASH, NOW)
    assert not presented.check(ALICE.entity_id, Scope.SUBSCRIBE, HASH + 1, NOW)
    assert not presented.check(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW + 100)
    assert not allowed(cache)
    assert presented.keep()
    assert allowed(cache)


def test_a_presented_chain_is_proven_and_its_revocation_counts() -> None:
    parent = issue(subject=BOB, scope=Scope.ALL, delegation_depth=1)
    child = delegate(parent, BOB, ALICE)
    cache = TokenCache([ROOT.entity_id])
    presented = cache.present([parent, child])
    assert presented.check(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW)
    cache.revoke_below(ROOT.entity_id, 1)
    assert not presented.check(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW)
    for stranger in (issue(EVE), child):
        with pytest.raises(AuthError):
            cache.present([stranger])
    with pytest.raises(AuthError):
        cache.present([])


def test_a_permission_lasts_as_long_as_the_last_token_that_gives_it() -> None:
    cache = TokenCache([ROOT.entity_id], skew_s=5)
    assert cache.permitted_until(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW) == 0
    cache.insert(issue(ttl_s=50))
    assert cache.permitted_until(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW) == NOW + 55
    cache.insert(issue(scope=Scope.SUBSCRIBE | Scope.PUBLISH, ttl_s=80, nonce=2))
    cache.insert(issue(scope=Scope.PUBLISH, ttl_s=99, nonce=3))
    assert cache.permitted_until(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW) == NOW + 85
    assert cache.permitted_until(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW + 85) == 0
    cache.revoke_below(ROOT.entity_id, 1)
    assert cache.permitted_until(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW) == 0


def test_a_token_that_was_revoked_itself_ends_with_all_that_was_delegated_by_it() -> None:
    cache = TokenCache([ROOT.entity_id])
    parent, other = issue(scope=Scope.ALL, delegation_depth=1, nonce=1), issue(nonce=2, subject=EVE)
    child = delegate(parent, ALICE, BOB)
    for chain in ((parent,), (parent, child), (other,)):
        assert cache.insert_chain(chain)
    assert [allowed(cache, who) for who in (ALICE, BOB, EVE)] == [True, True, True]
    presented = cache.present((parent, child))
    cache.revoke(parent)
    assert [allowed(cache, who) for who in (ALICE, BOB, EVE)] == [False, False, True]
    assert not presented.check(BOB.entity_id, Scope.SUBSCRIBE, HASH, NOW)
    assert cache.permitted_until(ALICE.entity_id, Scope.SUBSCRIBE, HASH, NOW) == 0
    # The signature does not name it: the same token signed in another way is the same token.
    assert cache.revoked(msgspec.structs.replace(parent, signature=bytes(64)))
    assert not cache.revoked(issue(scope=Scope.ALL, delegation_depth=1, nonce=3))
    cache.evict_expired(NOW + 200)
    assert cache.revoked(parent), "whatever the clock says: its record decides how long"
    cache.revoke_only([])
    assert not cache.revoked(parent)


def test_a_token_is_revoked_with_all_of_its_line() -> None:
    cache = TokenCache([ROOT.entity_id])
    first = issue(nonce=1)
    second = first.renewed(ROOT, now=NOW + 60, max_s=1000)
    third = second.renewed(EVE, now=NOW + 120, max_s=1000)  # the issuer got another key
    for named in (first, second, third):
        cache.revoke_only([named])
        assert all(map(cache.revoked, (first, second, third)))
        others = (
            issue(nonce=2),
            issue(nonce=1, subject=BOB),
            issue(nonce=1, channel="x"),
            issue(nonce=1, scope=Scope.ALL),
        )
        assert not any(map(cache.revoked, others))


# ── prefixes and renewal ────────────────────────────────────────────────────────────────────


def test_a_token_for_a_prefix_permits_every_channel_below_it() -> None:
    cache = TokenCache([ROOT.entity_id])
    token = issue(channel="lab/", scope=Scope.SUBSCRIBE)
    assert token.is_prefix
    assert cache.insert(token)
    for name, permitted in (("lab/a", True), ("lab/a/b", True), ("lab", False), ("labs/a", False), ("other", False)):
        channel = ChannelName(name)
        assert cache.check(ALICE.entity_id, Scope.SUBSCRIBE, channel, NOW) is permitted
        assert (cache.permitted_until(ALICE.entity_id, Scope.SUBSCRIBE, channel, NOW) == token.not_after) is permitted
        assert cache.present((token,)).check(ALICE.entity_id, Scope.SUBSCRIBE, channel, NOW) is permitted
        assert not cache.check(ALICE.entity_id, Scope.PUBLISH, channel, NOW)
        assert not cache.check(ALICE.entity_id, Scope.SUBSCRIBE, channel.hash, NOW), "a hash has no prefixes"
        assert not cache.check(BOB.entity_id, Scope.SUBSCRIBE, channel, NOW)
    assert not cache.check(ALICE.entity_id, Scope.SUBSCRIBE, ChannelName("lab/a"), NOW + 100), "it expires"


def test_a_delegated_prefix_stays_that_prefix() -> None:
    cache = TokenCache([ROOT.entity_id])
    parent = issue(channel="lab/", scope=Scope.SUBSCRIBE | Scope.DELEGATE, delegation_depth=1)
    child = delegate(parent, ALICE, BOB, Scope.SUBSCRIBE)
    assert child.is_prefix
    assert cache.insert_chain((parent, child))
    assert cache.check(BOB.entity_id, Scope.SUBSCRIBE, ChannelName("lab/a"), NOW)
    wider = forge(ALICE, child, channel_hash=issue(channel="other/").channel_hash)
    assert fault_of(lambda: cache.insert_chain((parent, wider))) is AuthFault.NOT_AUTHORIZED
    exact = issue(scope=Scope.SUBSCRIBE | Scope.DELEGATE, delegation_depth=1)
    widened = forge(ALICE, delegate(exact, ALICE, BOB), scope=Scope.SUBSCRIBE | Scope.PREFIX)
    assert fault_of(lambda: cache.insert_chain((exact, widened))) is AuthFault.NOT_AUTHORIZED


def test_a_token_that_follows_replaces_the_one_that_is_kept() -> None:
    cache = TokenCache([ROOT.entity_id])
    old = issue()
    new = old.renewed(ROOT, now=NOW + 60, max_s=1000)
    assert new.follows(old)
    assert not old.follows(new)
    assert (new.not_before, new.not_after) == (5060, 5160)
    assert not cache.renew(new), "there is none to replace"
    cache.insert(old)
    assert cache.renew(new)
    assert len(cache) == 1
    assert allowed(cache, now=NOW + 159)
    assert not cache.renew(new), "it does not follow itself"
    later = new.renewed(ROOT, now=NOW + 130, max_s=10)
    assert later.not_after == 5140
    assert not cache.renew(later), "it would end earlier"
    foreign = new.renewed(EVE, now=NOW + 130, max_s=1000)
    assert not cache.renew(foreign)
    forged = msgspec.structs.replace(new, not_after=9000)
    assert fault_of(lambda: cache.renew(forged)) is AuthFault.BAD_SIGNATURE
    for other in (issue(scope=Scope.ALL, ttl_s=9999), issue(subject=BOB, ttl_s=9999), issue(channel="x", ttl_s=9999)):
        assert not cache.renew(other)
