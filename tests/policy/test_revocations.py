"""What is revoked at one node: a set that only grows, and the questions that it answers."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


KEYS = tuple(Identity.from_seed(bytes((number,)) * 32) for number in range(1, 7))
A, B, C, D, *_ = KEYS


def heir(old: Identity, new: Identity) -> Revocation:
    return Revocation.succeed(old, new, at=NOW, reason="new key")


def test_an_heir_takes_the_place_of_a_key_that_has_nothing_left() -> None:
    cache = TokenCache([ISSUER.entity_id])
    held = Revocations(cache)
    assert (held.heir_of(A.entity_id), held.heir_id(A.node_id), held.earlier_of(B.entity_id)) == (None, A.node_id, [])
    assert held.add(heir(A, B))
    assert held.nodes == held.publishers == held.subscribers == {A.node_id}
    assert held.origins == set()  # its events are those of its heir
    assert (held.heir_of(A.entity_id), held.heir_id(A.node_id)) == (B.entity_id, B.node_id)
    assert held.add(heir(B, C))
    assert (held.heir_of(A.entity_id), held.heir_of(B.entity_id)) == (C.entity_id, C.entity_id)
    assert held.earlier_of(C.entity_id) == [B.entity_id, A.entity_id]
    assert held.earlier_of(B.entity_id) == []


def test_a_fork_and_a_circle_have_no_heir() -> None:
    held = Revocations(TokenCache(), [heir(A, B), heir(A, C), heir(D, A)])
    assert (held.heir_of(A.entity_id), held.heir_of(D.entity_id)) == (None, None)
    assert held.earlier_of(B.entity_id) == held.earlier_of(C.entity_id) == []
    assert held.nodes == {A.node_id, D.node_id}
    held = Revocations(TokenCache(), [heir(A, B), heir(B, A), heir(C, A)])
    assert [held.heir_of(one.entity_id) for one in (A, B, C)] == [None, None, None]
    assert held.nodes == {A.node_id, B.node_id, C.node_id}


def test_tokens_count_for_the_heir_and_a_lost_right_stays_lost() -> None:
    cache = TokenCache([ISSUER.entity_id])
    one = token()
    assert cache.insert(one)
    assert not cache.check(A.entity_id, Scope.SUBSCRIBE, "sensors/lidar", NOW)
    held = Revocations(cache, [heir(ROVER, B), heir(B, A)])
    assert cache.check(A.entity_id, Scope.SUBSCRIBE, "sensors/lidar", NOW)
    assert cache.names(one, A.entity_id)
    assert not cache.names(one, B.entity_id)
    assert not cache.names(one, None)
    presented = TokenCache([ISSUER.entity_id])
    presented.earlier_of = held.earlier_of
    assert presented.present([one]).check(A.entity_id, Scope.SUBSCRIBE, "sensors/lidar", NOW)
    held.add(of_token(one))
    assert not cache.check(A.entity_id, Scope.SUBSCRIBE, "sensors/lidar", NOW)
    held.add(record(Revoked.PUBLISH))
    assert {ROVER.node_id, A.node_id, B.node_id} == held.publishers
    held.add(heir(A, C))
    assert C.node_id in held.publishers
    assert C.node_id not in held.nodes | held.subscribers


def state(held: Revocations) -> object:
    keys = [one.entity_id for one in KEYS]
    return (
        {one.id for one in held},
        (held.nodes, held.publishers, held.subscribers, held.origins),
        [held.heir_of(key) for key in keys],
        [sorted(held.earlier_of(key)) for key in keys],
    )


def test_every_order_of_a_few_records_gives_the_same_state() -> None:
    some = [heir(A, B), heir(B, C), heir(A, D), record(Revoked.PUBLISH, A), record(Revoked.NODE, C)]
    expected = state(Revocations(TokenCache(), some))
    assert all(state(Revocations(TokenCache(), order)) == expected for order in permutations(some))


PAIRS = [(old, new) for old in KEYS for new in KEYS if old != new]
ANY = [*(heir(*pair) for pair in PAIRS), *(record(what, one) for what in list(Revoked)[:3] for one in KEYS)]


@given(
    st.lists(st.sampled_from(ANY), max_size=12).flatmap(lambda some: st.tuples(st.just(some), st.permutations(some)))
)
def test_any_order_and_any_replay_gives_the_same_state(orders: tuple[list[Revocation], list[Revocation]]) -> None:
    first, second = orders
    assert state(Revocations(TokenCache(), [*first, *first])) == state(Revocations(TokenCache(), second))
    held = Revocations(TokenCache(), first)
    for one in KEYS:  # what a key inherits and who inherits from it are two views of the same
        for before in held.earlier_of(one.entity_id):
            assert held.heir_of(before) == one.entity_id


def test_successions_without_an_issuer_leave_room_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_UNENDORSED", 1)
    endorsed = Revocation.succeed(A, B, at=NOW, reason="new key", issuer=ISSUER.entity_id).endorse(ISSUER)
    held = Revocations(TokenCache(), [endorsed])
    assert not held.crowded
    held.add(heir(A, B))
    assert (held.crowded, held.full) == (True, False)
