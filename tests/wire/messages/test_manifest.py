"""Manifests: golden bytes, round trips, refusals."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.messages.manifest import MAX_ENTRIES, decode_manifest, encode_manifest
from meshbus.wire.subprotocol import ManifestEntry, SubprotocolManifest, SubprotocolVersion
from tests.fuzz import assert_survives
from tests.vectors import load

VECTORS = load("subprotocols")["manifest"]
ONE = SubprotocolVersion(1)

versions = st.builds(SubprotocolVersion, st.integers(0, 255), st.integers(0, 255))
entries = st.builds(
    lambda subprotocol_id, pair: ManifestEntry(subprotocol_id, max(pair), min(pair)),
    st.integers(0, 0xFFFF),
    st.tuples(versions, versions),
)
manifests = st.lists(entries, unique_by=lambda entry: entry.id).map(lambda found: SubprotocolManifest(tuple(found)))


@pytest.mark.parametrize("row", VECTORS["valid"], ids=lambda row: row["hex"][:20])
def test_golden_manifests(row: dict[str, Any]) -> None:
    manifest = decode_manifest(bytes.fromhex(row["hex"]))
    expected = tuple(
        ManifestEntry(entry["id"], SubprotocolVersion(*entry["version"]), SubprotocolVersion(*entry["min_compatible"]))
        for entry in row["entries"]
    )
    assert manifest.entries == expected
    assert encode_manifest(manifest).hex() == row["hex"]


@pytest.mark.parametrize("row", VECTORS["invalid"], ids=lambda row: row["why"])
def test_what_the_reference_refuses_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(MalformedPacket):
        decode_manifest(bytes.fromhex(row["hex"]))


@given(manifests)
def test_manifests_round_trip(manifest: SubprotocolManifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_refusals_say_why() -> None:
    faults = {}
    for row in VECTORS["invalid"]:
        with pytest.raises(MalformedPacket) as caught:
            decode_manifest(bytes.fromhex(row["hex"]))
        faults[row["why"]] = caught.value.fault
    assert faults["shorter than 2 bytes"] is Fault.TRUNCATED
    assert faults["one trailing byte"] is Fault.BAD_LENGTH
    assert faults["duplicate id"] is Fault.DUPLICATE
    assert faults["min_compatible above version"] is Fault.BAD_VALUE


@pytest.mark.parametrize(
    "bad",
    [
        (ManifestEntry(5, ONE, ONE), ManifestEntry(5, ONE, ONE)),
        (ManifestEntry(5, ONE, SubprotocolVersion(1, 1)),),
        (ManifestEntry(0x10000, ONE, ONE),),
        tuple(ManifestEntry(number, ONE, ONE) for number in range(MAX_ENTRIES + 1)),
    ],
    ids=["twice", "above its version", "17 bits", "too many"],
)
def test_what_no_peer_would_read_is_not_written(bad: tuple[ManifestEntry, ...]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_manifest(SubprotocolManifest(bad))


def test_the_largest_manifest_fits_a_packet() -> None:
    largest = SubprotocolManifest(tuple(ManifestEntry(number, ONE, ONE) for number in range(MAX_ENTRIES)))
    assert MAX_EVENT - 6 < len(encode_manifest(largest)) <= MAX_EVENT


def test_hostile_bytes_are_refused_or_read() -> None:
    assert_survives(decode_manifest, [bytes.fromhex(row["hex"]) for row in VECTORS["valid"]])
