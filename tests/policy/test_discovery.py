"""Capability index: versions, lifetimes, scopes, limits, and searches compared with a plain scan."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.discovery import CapabilityIndex, ScopeFilter, ScopeKind
from meshbus.policy.tag import chain_range_tag, chain_tag
from tests.vectors import load

SCOPES = load("policy")["scope_filters_observed"]["rows"]
VERSIONS = load("policy")["announcement_versions_observed"]["rows"]
TTL = load("policy")["announcement_ttl_observed"]
FILTERS = load("policy")["capability_filters_observed"]

ALL = CapabilityFilter()
ANNOUNCED = {
    "untagged": [],
    "explicit_global": ["scope:global"],
    "tenant_a": ["scope:tenant:a"],
    "tenants_ab": ["scope:tenant:a", "scope:tenant:b"],
    "region_eu": ["scope:region:eu"],
    "tenant_a_region_eu": ["scope:tenant:a", "scope:region:eu"],
    "subnet_local": ["scope:subnet-local"],
    "subnet_local_and_tenant_a": ["scope:subnet-local", "scope:tenant:a"],
    "empty_tenant": ["scope:tenant:"],
    "unknown_scope": ["scope:galaxy:x"],
}


def scope_of(spec: dict[str, Any]) -> ScopeFilter:
    match spec:
        case {"kind": "tenant", "tenant": name}:
            return ScopeFilter.tenants(name)
        case {"kind": "tenants", "tenants": names}:
            return ScopeFilter.tenants(*names)
        case {"kind": "region", "region": name}:
            return ScopeFilter.regions(name)
        case {"kind": "regions", "regions": names}:
            return ScopeFilter.regions(*names)
    return ScopeFilter(ScopeKind[spec["kind"].upper()])


# ── versions and time ───────────────────────────────────────────────────────────────────────


def test_only_a_higher_version_replaces_an_entry() -> None:
    index = CapabilityIndex()
    for number, row in enumerate(VERSIONS):
        content = CapabilitySet([f"content-{number}"])
        assert index.apply(1, content, row["version"], 300, now=0.0) == row["indexed"], row["case"]
        entry = index.get(1)
        assert entry is not None
        assert (entry.capabilities == content) == row["indexed"]


def test_version_0_counts_as_1() -> None:
    index = CapabilityIndex()
    assert index.apply(1, CapabilitySet(), 0, 300, now=0.0)
    assert not index.apply(1, CapabilitySet(), 1, 300, now=0.0)
    assert index.apply(1, CapabilitySet(), 2, 300, now=0.0)


def test_entries_live_for_their_announced_time() -> None:
    index = CapabilityIndex()
    index.apply(1, CapabilitySet(), 9, 1, now=10.0)
    assert (index.query(ALL, now=10.3) == [1]) == TTL["ttl_1s_visible_at_0.3s"]
    assert (index.query(ALL, now=11.9) == [1]) == TTL["ttl_1s_visible_at_1.9s"]
    assert index.apply(1, CapabilitySet(), 2, 1, now=11.9) == TTL["lower_version_accepted_once_entry_expired"]
    index.apply(2, CapabilitySet(), 1, 0, now=20.0)
    assert (index.query(ALL, now=20.0) == [2]) == TTL["ttl_0_visible_immediately"]
    assert (index.query(ALL, now=20.85) == [2]) == TTL["ttl_0_visible_at_0.85s"]


def test_expiring_removes_and_returns_nodes() -> None:
    index = CapabilityIndex()
    for node_id, ttl_s in [(1, 10), (2, 20), (3, 20)]:
        index.apply(node_id, CapabilitySet(["x"]), 1, ttl_s, now=0.0)
    index.apply(2, CapabilitySet(["y"]), 2, 100, now=5.0)
    assert index.expire(10.0) == []
    assert index.expire(10.1) == [1]
    assert index.expire(50.0) == [3]
    assert len(index) == 1
    assert 2 in index
    assert 1 not in index
    assert index.get(1) is None
    assert set(index._by_claim) == {"y"}


def test_removing_forgets_and_lets_any_version_back_in() -> None:
    index = CapabilityIndex()
    index.apply(1, CapabilitySet(["x"]), 9, 10, now=0.0)
    assert index.remove(1)
    assert not index.remove(1)
    assert index.query(CapabilityFilter(require_tags=("x",)), now=0.0) == []
    assert index.apply(1, CapabilitySet(), 1, 10, now=0.0)
    assert index.expire(11.0) == [1]


# ── scopes ──────────────────────────────────────────────────────────────────────────────────


def test_scopes_find_what_was_observed() -> None:
    assert len(SCOPES) == 70
    for announced, scope_text, hit in SCOPES:
        index = CapabilityIndex()
        index.apply(1, CapabilitySet(ANNOUNCED[announced]), 1, 300, now=0.0)
        scope = scope_of(json.loads(scope_text))
        assert (index.query(ALL, scope=scope, now=0.0) == [1]) == hit, (announced, scope_text)


@pytest.mark.parametrize("announced", ANNOUNCED)
def test_within_the_subnet_everything_is_found(announced: str) -> None:
    index = CapabilityIndex()
    for node_id in (1, 2):
        index.apply(node_id, CapabilitySet(ANNOUNCED[announced]), 1, 300, now=0.0)
    scope = ScopeFilter(ScopeKind.SAME_SUBNET)
    assert index.query(ALL, scope=scope, now=0.0, same_subnet=lambda node_id: node_id == 2) == [2]


def test_without_a_scope_every_node_is_looked_at() -> None:
    index = CapabilityIndex()
    index.apply(1, CapabilitySet(["scope:subnet-local"]), 1, 300, now=0.0)
    assert index.query(ALL, now=0.0) == [1]


@pytest.mark.parametrize("make", [ScopeFilter.tenants, ScopeFilter.regions])
def test_an_empty_scope_is_refused(make: Any) -> None:
    for names in ([], [""], ["a", ""]):
        with pytest.raises(ConfigError, match="needs at least one name"):
            make(*names)


# ── searching ───────────────────────────────────────────────────────────────────────────────


def test_searches_find_what_the_gate_lets_in_by_ascending_id() -> None:
    index = CapabilityIndex()
    sets = {900 - number: name for number, name in enumerate(FILTERS["cap_sets"])}
    for node_id, name in sets.items():
        index.apply(node_id, CapabilitySet(FILTERS["cap_sets"][name]), 1, 300, now=0.0)
    for filter_name, conditions in FILTERS["filters"].items():
        accepted = {row[0] for row in FILTERS["rows"] if row[1] == filter_name and row[2]}
        found = index.query(CapabilityFilter(**conditions), now=0.0)
        assert found == sorted(node_id for node_id, name in sets.items() if name in accepted), filter_name


steps = st.lists(
    st.tuples(
        st.sampled_from(["apply", "remove", "expire"]),
        st.integers(0, 5),
        st.frozensets(st.sampled_from(["a", "b", "software.os=x", "software.os:x", "hardware.gpu"])),
        st.integers(0, 4),
        st.integers(0, 3),
    ),
    max_size=30,
)


@given(steps)
def test_the_index_equals_a_plain_dictionary(script: list[tuple[str, int, frozenset[str], int, int]]) -> None:
    index = CapabilityIndex()
    model: dict[int, tuple[CapabilitySet, int, float]] = {}
    for now, (step, node_id, tags, version, ttl_s) in enumerate(script):
        if step == "apply":
            old = model.get(node_id)
            newer = old is None or max(version, 1) > old[1] or now > old[2]
            assert index.apply(node_id, CapabilitySet(tags), version, ttl_s, now=now) == newer
            if newer:
                model[node_id] = (CapabilitySet(tags), max(version, 1), now + ttl_s)
        elif step == "remove":
            assert index.remove(node_id) == (model.pop(node_id, None) is not None)
        else:
            gone = sorted(node for node, (_, _, until) in model.items() if now > until)
            assert sorted(index.expire(now)) == gone
            for node in gone:
                del model[node]
        assert len(index) == len(model)
        for wanted in ((), ("a",), ("a", "software.os=x"), ("nobody",)):
            capability_filter = CapabilityFilter(require_tags=wanted)
            expected = [
                n for n, (c, _, until) in sorted(model.items()) if now <= until and capability_filter.matches(c)
            ]
            assert index.query(capability_filter, now=now) == expected


def test_a_search_for_tags_looks_only_at_nodes_with_the_rarest(monkeypatch: pytest.MonkeyPatch) -> None:
    index = CapabilityIndex()
    for node_id in range(1000):
        index.apply(node_id, CapabilitySet(["common", "rare"] if node_id == 500 else ["common"]), 1, 300, now=0.0)
    looked_at: list[CapabilitySet] = []
    matches = CapabilityFilter.matches

    def counting(self: CapabilityFilter, capabilities: CapabilitySet) -> bool:
        looked_at.append(capabilities)
        return matches(self, capabilities)

    monkeypatch.setattr(CapabilityFilter, "matches", counting)
    assert index.query(CapabilityFilter(require_tags=("common", "rare")), now=0.0) == [500]
    assert len(looked_at) == 1


# ── bounds ──────────────────────────────────────────────────────────────────────────────────


def test_a_full_index_refuses_newcomers_until_an_entry_expires() -> None:
    index = CapabilityIndex(max_nodes=2)
    index.apply(1, CapabilitySet(), 1, 10, now=0.0)
    index.apply(2, CapabilitySet(), 1, 100, now=0.0)
    assert not index.apply(3, CapabilitySet(), 1, 100, now=10.0)
    assert index.refused == 1
    assert index.apply(2, CapabilitySet(["x"]), 2, 100, now=10.0), "a known node is never refused"
    assert index.apply(3, CapabilitySet(), 1, 100, now=10.1)
    assert index.query(ALL, now=10.1) == [2, 3]
    assert len(index) == 2


def test_invented_nodes_push_out_each_other_and_nobody_else() -> None:
    index = CapabilityIndex(max_nodes=10)
    index.apply(1, CapabilitySet(), 1, 100, now=0.0)
    for told in (2, 3):
        index.apply(told, CapabilitySet(), 1, 100, now=0.0, via=50)
    for invented in range(1000, 1500):
        assert index.apply(invented, CapabilitySet(), 1, 86_400, now=1.0, via=66)
    assert index.query(ALL, now=2.0) == [1, 2, 3, *range(1493, 1500)]
    assert index.evicted == 493
    # A neighbor that speaks for itself always finds room, and keeps it when others pass its announcements on.
    assert index.apply(4, CapabilitySet(), 1, 100, now=2.0)
    assert index.apply(4, CapabilitySet(), 2, 100, now=2.0, via=66)
    for invented in range(2000, 2100):
        index.apply(invented, CapabilitySet(), 1, 86_400, now=3.0, via=66)
    assert {1, 2, 3, 4} <= set(index.query(ALL, now=3.0))
    assert len(index) == 10
    assert index.refused == 0


def test_announcing_often_does_not_grow_the_index() -> None:
    index = CapabilityIndex()
    for version in range(1, 10_000):
        index.apply(1, CapabilitySet([f"tag-{version}"]), version, 1_000_000, now=0.0)
    assert len(index._expiries) < 100
    assert len(index._by_claim) == 1
    assert index.expire(1_000_001.0) == [1]


# ── chains ──────────────────────────────────────────────────────────────────────────────────


def test_holders_of_a_chain_are_found_by_any_form_of_its_tag() -> None:
    index = CapabilityIndex()
    tags = [chain_tag(5), chain_tag(5, tip=9), chain_range_tag(5, 1, 3), chain_tag(6), "causal:5", "lidar"]
    for node_id, tag in enumerate(tags):
        index.apply(node_id, CapabilitySet([tag]), 1, 300, now=0.0)
    assert index.holders(5, now=300.0) == [0, 1, 2]
    assert index.holders(6, now=300.0) == [3]
    assert index.holders(7, now=300.0) == index.holders(5, now=300.5) == []
    # A search by tag stays exact, although a chain is also indexed by its shortest tag.
    assert index.query(CapabilityFilter(require_tags=(chain_tag(5),)), now=0.0) == [0]
    index.apply(1, CapabilitySet(["lidar"]), 2, 300, now=0.0)
    index.remove(2)
    assert index.holders(5, now=0.0) == [0]
