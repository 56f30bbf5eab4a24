"""What is revoked at one node: a set that only grows, and the questions that it answers."""

import pytest

from meshbus.names.identity import Identity
from meshbus.policy import revocations as subject
from meshbus.policy.revocations import KEPT_S, Revocations, is_over
from meshbus.policy.tokens import TokenCache
from meshbus.wire.messages.revocation import Revocation, Revoked
from meshbus.wire.messages.token import PermissionToken, Scope

NOW = 1_700_000_000
ISSUER, ROVER = Identity.from_seed(bytes(range(32))), Identity.from_seed(bytes(32))


def record(what: Revoked, who: Identity = ROVER, reason: str = "stolen") -> Revocation:
    return Revocation.sign(ISSUER, what, who.entity_id, at=NOW, reason=reason)


def token(scope: int = Scope.SUBSCRIBE, *, entropy: bytes = bytes(8)) -> PermissionToken:
    return PermissionToken.issue(
        ISSUER, ROVER.entity_id, scope, "sensors/lidar", ttl_s=60, now=NOW, entropy=lambda _: entropy
    )


def of_token(one: PermissionToken) -> Revocation:
    return Revocation.sign(ISSUER, Revoked.TOKEN, one.signed_bytes, at=NOW, reason="leaked")


def test_a_node_loses_everything_and_a_right_only_itself() -> None:
    held = Revocations(TokenCache())
    assert (len(held), held.version, held.full) == (0, 0, False)
    assert held.add(record(Revoked.PUBLISH))
    assert (held.nodes, held.subscribers) == (set(), set())
    assert (held.publishers, held.origins) == ({ROVER.node_id}, {ROVER.origin_hash})
    assert held.add(record(Revoked.SUBSCRIBE, ISSUER))
    assert (held.publishers, held.subscribers) == ({ROVER.node_id}, {ISSUER.node_id})
    assert held.add(record(Revoked.NODE))
    assert held.nodes == {ROVER.node_id}
    assert held.subscribers == {ROVER.node_id, ISSUER.node_id}
    assert (len(held), held.version) == (3, 3)
    assert {one.what for one in held.of(ROVER.node_id)} == {Revoked.NODE, Revoked.PUBLISH}


def test_what_is_known_changes_nothing_but_the_record() -> None:
    first, later = record(Revoked.NODE), record(Revoked.NODE, reason="found again, broken")
    held = Revocations(TokenCache(), [first])
    version = held.version
    assert not held.add(later)
    assert (len(held), held.version) == (1, version)
    assert list(held) == [later]
    assert later.id in held
    assert held.get(later.id) == later
    assert held.get(bytes(16)) is None


def test_a_token_is_revoked_in_the_cache_until_nobody_needs_that() -> None:
    cache = TokenCache([ISSUER.entity_id])
    leaked, other = token(), token(entropy=b"another!")
    for one in (leaked, other):
        assert cache.insert(one)
    held = Revocations(cache, [of_token(leaked), record(Revoked.NODE)])
    assert [cache.revoked(one) for one in (leaked, other)] == [True, False]
    assert not is_over(of_token(leaked), NOW + 60 + KEPT_S - 1)
    assert is_over(of_token(leaked), NOW + 60 + KEPT_S)
    assert not is_over(record(Revoked.NODE), NOW + 10 * KEPT_S)
    assert not is_over(of_token(token(scope=Scope.SUBSCRIBE | Scope.RENEWABLE)), NOW + 10 * KEPT_S), (
        "its line may go on"
    )
    version = held.version
    assert held.expire(NOW + KEPT_S) == 0
    assert held.version == version
    cache.evict_expired(NOW + 2 * KEPT_S)  # a clock that was set ahead, and then back
    assert cache.revoked(leaked)
    assert held.expire(NOW + 60 + KEPT_S) == 1
    assert not cache.revoked(leaked)
    assert (len(held), held.version) == (1, version + 1)


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Revocations(TokenCache(), [record(Revoked.NODE)])
    assert not held.full
    monkeypatch.setattr(subject, "MAX_REVOCATIONS", 1)
    assert held.full
