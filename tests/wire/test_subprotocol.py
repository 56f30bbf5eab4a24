"""Subprotocol ids, versions and descriptors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError
from meshbus.wire.constants import Subprotocol
from meshbus.wire.subprotocol import (
    FIRST_VENDOR_ID,
    MAX_ID,
    ManifestEntry,
    SubprotocolDescriptor,
    SubprotocolManifest,
    SubprotocolVersion,
    capability_tag,
    is_reserved,
)
from tests.vectors import load

COMPATIBLE = load("subprotocols")["version_compat"]["cases"]
IDS = load("subprotocols")["subprotocol_ids"]
TAGS = load("policy")["subprotocol_tags"]["rows"]

versions = st.builds(SubprotocolVersion, st.integers(0, 255), st.integers(0, 255))


def descriptor(case: dict[str, Any]) -> SubprotocolDescriptor:
    version, floor = SubprotocolVersion(*case["version"]), SubprotocolVersion(*case["min_compatible"])
    return SubprotocolDescriptor(id=case["id"], name="x", version=version, min_compatible=floor)


def test_compatibility_as_the_reference_judges_it() -> None:
    assert len(COMPATIBLE) == 48
    for case in COMPATIBLE:
        local, remote = descriptor(case["local"]), descriptor(case["remote"])
        assert local.compatible(remote) == remote.compatible(local) == case["compatible"], case
        assert local.entry.compatible(remote.entry) == case["compatible"]


@given(versions, versions)
def test_versions_compare_like_pairs(one: SubprotocolVersion, other: SubprotocolVersion) -> None:
    assert (one < other) == ((one.major, one.minor) < (other.major, other.minor))
    assert (one == other) == (str(one) == str(other))


@pytest.mark.parametrize(("major", "minor"), [(256, 0), (0, 256), (-1, 0)])
def test_a_version_has_two_bytes(major: int, minor: int) -> None:
    with pytest.raises(LocalProtocolError, match="from 0 to 255"):
        SubprotocolVersion(major, minor)


@given(versions, st.none() | versions)
def test_the_floor_is_the_version_itself_or_lower(
    version: SubprotocolVersion, floor: SubprotocolVersion | None
) -> None:
    made = SubprotocolDescriptor(id=0x0400, name="causal", version=version, min_compatible=floor)
    assert made.min_compatible == min(version, floor or version)
    assert made.entry == ManifestEntry(0x0400, version, min(version, floor or version))


def test_a_descriptor_reads_well() -> None:
    made = SubprotocolDescriptor(id=0x0400, name="causal", version=SubprotocolVersion(1))
    assert str(made) == "causal(0x0400) v1.0"
    assert made.handler_present
    assert [SubprotocolDescriptor(id=i, name="x", version=SubprotocolVersion(1)).id for i in (0, MAX_ID)] == [0, MAX_ID]
    for bad in (-1, MAX_ID + 1):
        with pytest.raises(LocalProtocolError, match="16 bits"):
            SubprotocolDescriptor(id=bad, name="x", version=SubprotocolVersion(1))


def test_a_manifest_is_searched_by_id() -> None:
    entry = ManifestEntry(5, SubprotocolVersion(1), SubprotocolVersion(1))
    assert SubprotocolManifest((entry,)).get(5) == entry
    assert SubprotocolManifest((entry,)).get(6) is None


@pytest.mark.parametrize("row", [*TAGS, *IDS], ids=lambda row: f"{row['id']:04x}")
def test_tags_as_written_by_the_reference(row: dict[str, Any]) -> None:
    assert capability_tag(row["id"]) == row["tag"]


def test_below_the_vendor_range_only_assigned_ids_are_open() -> None:
    named = {row["id"] for row in IDS}
    open_ids = {subprotocol_id for subprotocol_id in range(FIRST_VENDOR_ID) if not is_reserved(subprotocol_id)}
    later = {0x0A01, 0x0B01, 0x0B02, 0x0B03, 0x0C01}
    assert open_ids == {i for i in named if i < FIRST_VENDOR_ID} - {0x0000, 0x0900, 0x0F00, 0x1000} | later
    assert not any(map(is_reserved, range(FIRST_VENDOR_ID, MAX_ID + 1)))
    assert not is_reserved(Subprotocol.RELIABLE)
