"""Subprotocol registry and negotiation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import RegistryError, RegistryFault
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.discovery import CapabilityIndex
from meshbus.policy.registry import Mismatch, NegotiatedSet, SubprotocolRegistry, negotiate
from meshbus.wire.messages.manifest import decode_manifest, encode_manifest
from meshbus.wire.subprotocol import ManifestEntry, SubprotocolDescriptor, SubprotocolManifest, SubprotocolVersion
from tests.vectors import load

MANIFEST = load("subprotocols")["manifest"]
IDS = load("subprotocols")["subprotocol_ids"]

versions = st.builds(SubprotocolVersion, st.integers(0, 3), st.integers(0, 3))
manifests = st.dictionaries(st.integers(0, 6), st.tuples(versions, versions)).map(
    lambda found: SubprotocolManifest(tuple(ManifestEntry(i, max(pair), min(pair)) for i, pair in found.items()))
)


def descriptor(subprotocol_id: int, name: str = "x", **options: Any) -> SubprotocolDescriptor:
    return SubprotocolDescriptor(id=subprotocol_id, name=name, version=SubprotocolVersion(1), **options)


def fault_of(action: Any) -> RegistryFault:
    with pytest.raises(RegistryError) as caught:
        action()
    return caught.value.fault


def test_what_is_registered_is_found_by_ascending_id() -> None:
    registry = SubprotocolRegistry()
    for subprotocol_id in (0x2000, 0x0400, 0xF000, 0x4D01):
        assert registry.register(descriptor(subprotocol_id)) is None
    assert [found.id for found in registry.all_descriptors()] == [0x0400, 0x2000, 0x4D01, 0xF000]
    assert registry.lookup(0x2000) == descriptor(0x2000)
    assert registry.lookup(0x2001) is None
    assert len(registry) == 4


def test_an_id_is_taken_once_unless_replaced() -> None:
    registry = SubprotocolRegistry()
    registry.register(descriptor(0x2000, "first"))
    assert fault_of(lambda: registry.register(descriptor(0x2000, "second"))) is RegistryFault.DUPLICATE
    assert registry.lookup(0x2000) == descriptor(0x2000, "first")
    assert registry.register(descriptor(0x2000, "second"), replace=True) == descriptor(0x2000, "first")
    assert registry.lookup(0x2000) == descriptor(0x2000, "second")
    assert registry.unregister(0x2000) == descriptor(0x2000, "second")
    assert registry.unregister(0x2000) is None
    assert registry.register(descriptor(0x2000)) is None


@pytest.mark.parametrize("reserved", [0x0000, 0x0001, 0x03FF, 0x0402, 0x0900, 0x0F00, 0x1000])
@pytest.mark.parametrize("replace", [False, True])
def test_reserved_ids_are_never_registered(reserved: int, replace: bool) -> None:
    registry = SubprotocolRegistry()
    assert fault_of(lambda: registry.register(descriptor(reserved), replace=replace)) is RegistryFault.RESERVED
    assert len(registry) == 0


@pytest.mark.parametrize(
    "row", [row for row in IDS if row["id"] not in {0, 0x0900, 0x0F00, 0x1000}], ids=lambda row: row["tag"]
)
def test_ids_with_a_meaning_can_be_registered(row: dict[str, Any]) -> None:
    registry = SubprotocolRegistry()
    registry.register(descriptor(row["id"], row["name"]))
    assert registry.capability_tags() == [row["tag"]]


def test_without_a_handler_an_id_is_known_and_not_announced() -> None:
    registry = SubprotocolRegistry()
    registry.register(descriptor(0x2000))
    registry.register(descriptor(0x2001, handler_present=False))
    assert [registry.is_registered(i) for i in (0x2000, 0x2001, 0x2002)] == [True, True, False]
    assert [registry.is_handled(i) for i in (0x2000, 0x2001, 0x2002)] == [True, False, False]
    assert registry.capability_tags() == ["subprotocol:0x2000"]
    assert [entry.id for entry in registry.manifest().entries] == [0x2000]


def test_the_defaults_are_those_of_the_reference() -> None:
    registry = SubprotocolRegistry.with_defaults()
    names = [str(found) for found in registry.all_descriptors()]
    assert names == [
        "causal(0x0400) v1.0",
        "snapshot(0x0401) v1.0",
        "migration(0x0500) v1.0",
        "negotiation(0x0600) v1.0",
        "stream-window(0x0b00) v1.0",
    ]
    assert encode_manifest(registry.manifest()).hex() == MANIFEST["valid"][2]["hex"]


def test_announced_tags_lead_to_the_nodes_that_handle_a_subprotocol() -> None:
    registry = SubprotocolRegistry.with_defaults()
    enriched = registry.enrich_capabilities(CapabilitySet(["gpu"], {"owner": "lab"}))
    assert enriched.tags == {"gpu", *registry.capability_tags()}
    assert enriched.metadata == {"owner": "lab"}
    index = CapabilityIndex()
    index.apply(7, enriched, 1, 300, now=0.0)
    index.apply(8, CapabilitySet(["subprotocol:0x0501"]), 1, 300, now=0.0)
    assert index.query(SubprotocolRegistry.capability_filter_for(0x0500), now=0.0) == [7]
    assert index.query(SubprotocolRegistry.capability_filter_for(0x0502), now=0.0) == []


@pytest.mark.parametrize("row", MANIFEST["negotiate"], ids=lambda row: row["local"][:20])
def test_negotiation_as_the_reference_does_it(row: dict[str, Any]) -> None:
    result = negotiate(*(decode_manifest(bytes.fromhex(row[side])) for side in ("local", "remote")))
    assert sorted(result.compatible) == row["compatible"]
    assert result.incompatible == tuple(
        Mismatch(found["id"], SubprotocolVersion(*found["local_version"]), SubprotocolVersion(*found["remote_version"]))
        for found in row["incompatible"]
    )


@given(manifests, manifests)
def test_both_sides_come_to_the_same_set(local: SubprotocolManifest, remote: SubprotocolManifest) -> None:
    mine, theirs = negotiate(local, remote), negotiate(remote, local)
    assert mine.compatible == theirs.compatible
    shared = {entry.id for entry in local.entries} & {entry.id for entry in remote.entries}
    assert mine.compatible | {found.id for found in mine.incompatible} == shared
    assert all(found in mine for found in mine.compatible)
    assert not any(found.id in mine for found in mine.incompatible)


def test_before_negotiation_nothing_is_shared() -> None:
    assert 0x0400 not in NegotiatedSet()
