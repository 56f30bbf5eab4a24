"""Capability sets and filters: 341 observed decisions of a reference node, builders, and rejected values."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.tag import chain_range_tag, chain_tag
from meshbus.policy.views import Gpu, GpuVendor, Hardware, Modality, Model, Tool
from tests.vectors import load

OBSERVED = load("policy")["capability_filters_observed"]
SETS = {name: CapabilitySet(tags) for name, tags in OBSERVED["cap_sets"].items()}
FILTERS = {name: CapabilityFilter(**conditions) for name, conditions in OBSERVED["filters"].items()}

tag_sets = st.frozensets(st.sampled_from(sorted({tag for tags in OBSERVED["cap_sets"].values() for tag in tags})))


def test_filters_decide_as_the_subscribe_gate_of_the_reference_did() -> None:
    assert len(OBSERVED["rows"]) == 341
    for set_name, filter_name, accepted, _found in OBSERVED["rows"]:
        assert FILTERS[filter_name].matches(SETS[set_name]) == accepted, (set_name, filter_name)


def test_a_search_finds_only_nodes_that_would_also_be_authorized() -> None:
    divergent = [tuple(row) for row in OBSERVED["rows"] if row[2] != row[3]]
    assert divergent == [tuple(row) for row in OBSERVED["divergent"]]
    assert len(divergent) == 67
    for set_name, filter_name, accepted, found in divergent:
        assert FILTERS[filter_name].matches(SETS[set_name]) == accepted != found


@given(tag_sets, st.sampled_from(sorted(FILTERS)))
def test_every_match_makes_the_claims_an_index_looks_for(tags: frozenset[str], name: str) -> None:
    capabilities = CapabilitySet(tags)
    if FILTERS[name].matches(capabilities):
        assert capabilities.claims.issuperset(FILTERS[name].required_claims)


@given(tag_sets, st.sampled_from(sorted(FILTERS)), st.sampled_from(sorted(FILTERS)))
def test_conditions_are_anded(tags: frozenset[str], one: str, other: str) -> None:
    conditions: dict[str, Any] = {}
    for name in (one, other):
        for key, value in OBSERVED["filters"][name].items():
            if key in conditions and conditions[key] != value:
                return
            conditions[key] = value
    both = CapabilityFilter(**conditions)
    capabilities = CapabilitySet(tags)
    assert both.matches(capabilities) == (FILTERS[one].matches(capabilities) and FILTERS[other].matches(capabilities))


def test_asking_for_a_vendor_or_memory_asks_for_a_gpu() -> None:
    assert CapabilityFilter(gpu_vendor=GpuVendor.AMD).require_gpu
    assert CapabilityFilter(min_vram_gb=0).require_gpu
    assert not CapabilityFilter(min_memory_gb=1).require_gpu


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"gpu_vendor": "nvida"}, "gpu_vendor: unknown value 'nvida'; choose from nvidia, amd"),
        ({"require_modalities": ["smell"]}, "require_modalities: unknown value 'smell'; choose from text, image"),
        ({"require_tags": "gpu"}, "require_tags: must be a list of texts"),
        ({"require_modalities": "text"}, "require_modalities: must be a list of texts"),
    ],
)
def test_conditions_that_cannot_be_meant_are_refused(conditions: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CapabilityFilter(**conditions)


def test_filters_are_values() -> None:
    one = CapabilityFilter(require_tags=["a"], require_modalities=["code"])  # type: ignore[arg-type]
    assert one == CapabilityFilter(require_tags=("a",), require_modalities=(Modality.CODE,))
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))


# ── sets ────────────────────────────────────────────────────────────────────────────────────


def test_tags_compare_leniently_and_sets_exactly() -> None:
    colon, equals = CapabilitySet(["software.os:linux"]), CapabilitySet(["software.os=linux"])
    assert colon.has_tag("software.os=linux")
    assert equals.has_tag("software.os:linux")
    assert colon != equals
    assert not colon.has_tag("software.os")
    assert not colon.has_tag("")


def test_adding_a_tag_gives_a_new_set() -> None:
    empty = CapabilitySet()
    one = empty.add_tag("gpu")
    assert empty == CapabilitySet()
    assert one.tags == {"gpu"}
    assert one.add_tag("gpu") == one
    assert one.without_tags(["gpu", "other"]) == empty


@pytest.mark.parametrize("tag", ["scope:tenant:a", "causal:00", "heat:00=1.00", "fork-of:00", "dataforts:x"])
def test_reserved_tags_are_not_the_users_to_add(tag: str) -> None:
    with pytest.raises(ConfigError, match="reserved for the mesh"):
        CapabilitySet().add_tag(tag)
    assert CapabilitySet().with_tags([tag]).tags == {tag}


def test_an_empty_tag_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        CapabilitySet(["a", ""])
    with pytest.raises(ConfigError, match="must not be empty"):
        CapabilitySet().add_tag("")


def test_metadata_is_carried_and_cannot_be_changed_in_place() -> None:
    given_metadata = {"owner": "lab"}
    capabilities = CapabilitySet(["a"], given_metadata)
    given_metadata["owner"] = "other"
    assert capabilities.metadata == {"owner": "lab"}
    with pytest.raises(TypeError):
        capabilities.metadata["owner"] = "other"  # type: ignore[index]
    assert capabilities.with_metadata("site", "x").metadata == {"owner": "lab", "site": "x"}
    assert capabilities.add_tag("b").metadata == capabilities.metadata
    with pytest.raises(ConfigError, match="belongs to a tool"):
        capabilities.with_metadata("tool::py::input_schema", "{}")


def test_views_replace_what_was_said_before() -> None:
    capabilities = CapabilitySet(["keep", "hardware.memory_gb:1", "hardware.gpu.fans=2", "hardware.other=1"])
    changed = capabilities.with_view(Hardware(memory_gb=64)).with_view(Gpu(vram_gb=8))
    assert changed.tags == {
        "keep",
        "hardware.memory_gb=64",
        "hardware.other=1",
        "hardware.gpu",
        "hardware.gpu.vram_gb=8",
    }
    models = changed.with_models([Model(id="a"), Model(id="b")]).with_models([Model(id="c")])
    assert [model.id for model in models.models] == ["c"]
    assert models.without_tags(["software.model.0.id=c"]) == changed


def test_tools_bring_their_schemas() -> None:
    capabilities = CapabilitySet(metadata={"owner": "lab"})
    one = capabilities.with_tools([Tool(tool_id="py")], {"py::input_schema": "{}"})
    assert one.metadata == {"owner": "lab", "tool::py::input_schema": "{}"}
    assert one.tools == (Tool(tool_id="py"),)
    assert one.with_tools([]) == capabilities


def test_sets_are_values() -> None:
    one = CapabilitySet(["a", "b", "a"], {"k": "v"})
    other = pickle.loads(pickle.dumps(one))
    assert one == other
    assert hash(one) == hash(other)
    assert one != CapabilitySet(["a", "b"])
    assert one != "a"
    assert repr(one) == "CapabilitySet(['a', 'b'], {'k': 'v'})"


def test_chains_are_those_of_the_tags() -> None:
    held = CapabilitySet([chain_tag(1), chain_tag(2, tip=7), chain_range_tag(3, 4, 5), "causal:x", "lidar"])
    assert held.chains == {1, 2, 3}
