from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import AuthError, LocalProtocolError, MalformedPacket
from meshbus.names.identity import Identity
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.messages.capability import Announcement, decode_announcement, encode_announcement
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import addresses, keys, text, u8, u32, u64

OBSERVED: list[dict[str, Any]] = load("policy")["announcements_observed"]["rows"]
REFERENCE: dict[str, Any] = load("policy")["reference_announcement"]

ALICE = Identity.from_seed(b"\x01" * 32)
BOB = Identity.from_seed(b"\x02" * 32)

UNREADABLE = {
    "empty-string tag",
    "float version",
    "string node_id",
    "trailing garbage",
    "hop 256 (u8 overflow)",
    "allowed_nodes 65 entries",
}
BADLY_SIGNED = {
    "unsigned",
    "tags unsorted, signature over the unsorted bytes",
    "unknown extra field, signature computed with it",
    "wrong signature",
}
FOREIGN_ID = {"node_id not derived from entity_id"}
NOT_ITS_OWN_LINK = {"hop 0 for another node"}
"""Valid and correctly signed: refused only because another node sent it directly, which only the engine can see."""

announcements = st.builds(
    Announcement,
    node_id=u64,
    entity_id=keys,
    version=u64,
    timestamp_ns=u64,
    ttl_secs=u32,
    tags=st.lists(text.filter(bool), max_size=4).map(tuple),
    metadata=st.dictionaries(text, text, max_size=4),
    signature=st.none() | st.binary(min_size=64, max_size=64),
    hop_count=u8,
    reflex_addr=st.none() | addresses.map(str),
    allowed_nodes=st.lists(u64, max_size=4).map(tuple),
    allowed_subnets=st.lists(st.binary(min_size=16, max_size=16), max_size=2).map(tuple),
    allowed_groups=st.lists(keys, max_size=2).map(tuple),
)


def announce(**changes: Any) -> Announcement:
    known: dict[str, Any] = {
        "node_id": ALICE.node_id,
        "entity_id": ALICE.entity_id,
        "version": 1,
        "timestamp_ns": 5,
        "tags": ("gpu", "arm"),
        "metadata": {"z": "1", "a": "2"},
    }
    return Announcement(**(known | changes))


def cases(*, where: bool) -> list[Any]:
    return [pytest.param(row, id=row["case"]) for row in OBSERVED if row["accepted"] is where]


def test_every_refused_row_has_its_reason_here() -> None:
    refused = {row["case"] for row in OBSERVED if not row["accepted"]}
    assert refused == UNREADABLE | BADLY_SIGNED | FOREIGN_ID | NOT_ITS_OWN_LINK


@pytest.mark.parametrize("row", cases(where=True))
def test_what_a_real_node_accepted_reads_and_verifies(row: dict[str, Any]) -> None:
    announcement = decode_announcement(row["sent"].encode())
    assert announcement.verify()
    assert announcement.owns_node_id
    forwarded = announcement.forwarded()
    assert (forwarded and encode_announcement(forwarded).decode()) == row["forwarded_to_third_peer"]


@pytest.mark.parametrize("row", cases(where=False))
def test_what_a_real_node_refused_is_refused_for_its_reason(row: dict[str, Any]) -> None:
    case, sent = row["case"], row["sent"].encode()
    if case in UNREADABLE:
        with pytest.raises(MalformedPacket):
            decode_announcement(sent)
        return
    announcement = decode_announcement(sent)
    assert announcement.verify() is (case not in BADLY_SIGNED)
    assert announcement.owns_node_id is (case not in FOREIGN_ID)


def test_the_announcement_of_a_real_node_is_rebuilt_byte_for_byte() -> None:
    identity = Identity.from_seed(bytes.fromhex(REFERENCE["seed"]))
    read = decode_announcement(REFERENCE["first"].encode())
    assert read.verify()
    assert read.owns_node_id
    rebuilt = Announcement(
        node_id=identity.node_id,
        entity_id=identity.entity_id,
        version=1,
        timestamp_ns=read.timestamp_ns,
        ttl_secs=300,
        tags=("subprotocol:0x0500", "one", "nat:unknown"),
    ).sign(identity)
    assert encode_announcement(rebuilt).decode() == REFERENCE["first"]


@given(announcements)
def test_announcements_round_trip(announcement: Announcement) -> None:
    assert decode_announcement(encode_announcement(announcement)) == announcement


@given(announcements)
def test_the_canonical_form_is_what_the_standard_library_writes(announcement: Announcement) -> None:
    document: dict[str, Any] = {
        "node_id": announcement.node_id,
        "entity_id": announcement.entity_id.hex(),
        "version": announcement.version,
        "timestamp_ns": announcement.timestamp_ns,
        "ttl_secs": announcement.ttl_secs,
        "capabilities": {
            "tags": sorted(set(announcement.tags)),
            "metadata": {key: announcement.metadata[key] for key in sorted(announcement.metadata)},
        },
    }
    if announcement.signature is not None:
        document["signature"] = announcement.signature.hex()
    if announcement.hop_count:
        document["hop_count"] = announcement.hop_count
    if announcement.reflex_addr is not None:
        document["reflex_addr"] = announcement.reflex_addr
    if announcement.allowed_nodes:
        document["allowed_nodes"] = announcement.allowed_nodes
    if announcement.allowed_subnets:
        document["allowed_subnets"] = [list(subnet) for subnet in announcement.allowed_subnets]
    if announcement.allowed_groups:
        document["allowed_groups"] = [list(group) for group in announcement.allowed_groups]
    canonical = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    assert encode_announcement(announcement) == canonical.encode()


def test_tags_and_metadata_are_put_in_order_when_it_is_made() -> None:
    announcement = announce(tags=("b", "a", "b"))
    assert announcement.tags == ("a", "b")
    assert list(announcement.metadata) == ["a", "z"]


def test_a_signature_covers_everything_but_the_hops() -> None:
    signed = announce().sign(ALICE)
    assert signed.verify()
    assert msgspec.structs.replace(signed, hop_count=9).verify()
    changes: list[dict[str, Any]] = [
        {"node_id": BOB.node_id},
        {"entity_id": BOB.entity_id},
        {"version": 2},
        {"timestamp_ns": 6},
        {"ttl_secs": 1},
        {"tags": ("gpu",)},
        {"metadata": {}},
        {"reflex_addr": "1.2.3.4:5"},
        {"allowed_nodes": (1,)},
        {"allowed_subnets": (bytes(16),)},
        {"allowed_groups": (bytes(32),)},
        {"signature": None},
        {"signature": bytes(64)},
    ]
    for change in changes:
        assert not msgspec.structs.replace(signed, **change).verify(), change


def test_only_the_entity_it_names_signs_it() -> None:
    with pytest.raises(LocalProtocolError):
        announce().sign(BOB)
    with pytest.raises(AuthError):
        announce().sign(Identity.from_public(ALICE.entity_id))


def test_a_node_id_of_another_key_is_noticed() -> None:
    assert announce().owns_node_id
    stolen = announce(node_id=BOB.node_id).sign(ALICE)
    assert stolen.verify()
    assert not stolen.owns_node_id


def test_forwarding_ends_before_sixteen_hops() -> None:
    hops = 0
    announcement: Announcement | None = announce().sign(ALICE)
    while announcement is not None:
        assert announcement.hop_count == hops
        assert announcement.verify()
        announcement = announcement.forwarded()
        hops += 1
    assert hops == 16
    assert announce(hop_count=255).forwarded() is None


def document(**changes: Any) -> bytes:
    plain: dict[str, Any] = json.loads(encode_announcement(announce().sign(ALICE)))
    plain.update(changes)
    return json.dumps({key: value for key, value in plain.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": 1},
        {"hop_count": 0},
        {"reflex_addr": None},
        {"signature": None},
        {"unknown": {"deep": [1.5, None, {"x": []}]}},
        {"capabilities": {"tags": []}},
        {"node_id": 2**64 - 1},
        {"ttl_secs": 2**32 - 1},
        {"allowed_nodes": list(range(64))},
    ],
)
def test_lenient_where_real_nodes_are(changes: dict[str, Any]) -> None:
    assert decode_announcement(document(**changes)).version == 1
    assert decode_announcement(document(**changes) + b" \n\t").version == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": 2**64},
        {"node_id": -1},
        {"node_id": 1.0},
        {"node_id": "1"},
        {"node_id": True},
        {"node_id": None},
        {"node_id": ...},
        {"version": 10**400},
        {"timestamp_ns": 2**64},
        {"ttl_secs": 2**32},
        {"hop_count": 256},
        {"hop_count": None},
        {"entity_id": "ab"},
        {"entity_id": "zz" * 32},
        {"entity_id": "ab" * 31 + "a\u0663"},
        {"entity_id": "ab " * 32},
        {"entity_id": "ab" * 32 + "\n"},
        {"signature": "ab" * 63},
        {"signature": 1},
        {"capabilities": None},
        {"capabilities": {}},
        {"capabilities": {"tags": [""]}},
        {"capabilities": {"tags": [1]}},
        {"capabilities": {"tags": [], "metadata": {"a": 1}}},
        {"capabilities": {"tags": [], "metadata": None}},
        {"reflex_addr": "nowhere"},
        {"reflex_addr": ""},
        {"reflex_addr": "1.2.3.4:99999"},
        {"allowed_nodes": [0] * 65},
        {"allowed_nodes": [2**64]},
        {"allowed_subnets": [[0] * 15]},
        {"allowed_subnets": [[256] * 16]},
        {"allowed_subnets": [[0] * 16] * 65},
        {"allowed_groups": [[0] * 16]},
        {"allowed_groups": [[0] * 32] * 65},
    ],
)
def test_strict_where_real_nodes_are(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedPacket):
        decode_announcement(document(**changes))


VALID = encode_announcement(announce().sign(ALICE))


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        VALID + b"x",
        VALID + VALID,
        VALID[:-1] + b',"x":' + b"[" * 8000 + b"}",
        VALID[:-1] + b',"x":NaN}',
        VALID[:-1] + b',"version":' + b"9" * 8000 + b"}",
        VALID.replace(b'"gpu"', b'"\xff"'),
        VALID.replace(b'"gpu"', b'"\\ud800"'),
        VALID.replace(b'"gpu"', b'"\xed\xa0\x80"'),
        b"\xef\xbb\xbf" + VALID,
    ],
)
def test_hostile_json_is_refused_politely(event: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode_announcement(event)


def test_of_a_repeated_key_one_value_counts() -> None:
    # The last one counts; the signature is verified over exactly what was read.
    read = decode_announcement(VALID[:-1] + b',"version":7}')
    assert read.version == 7
    assert not read.verify()


def test_another_spelling_of_an_address_is_signed_in_its_canonical_form() -> None:
    signed = announce(reflex_addr="[2001:db8::1]:4000").sign(ALICE)
    respelled = encode_announcement(signed).replace(b"[2001:db8::1]", b"[2001:DB8:0::1]")
    assert decode_announcement(respelled) == signed
    assert decode_announcement(respelled).verify()


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": 2**64},
        {"node_id": -1},
        {"version": 1.5},
        {"entity_id": b"short"},
        {"ttl_secs": 2**32},
        {"tags": ("",)},
        {"tags": ("\ud800",)},
        {"signature": b"short"},
        {"signature": b""},
        {"hop_count": 256},
        {"reflex_addr": "somewhere:80"},
        {"reflex_addr": "[2001:DB8::1]:80"},
        {"allowed_nodes": tuple(range(65))},
        {"allowed_subnets": (b"short",)},
        {"allowed_groups": (bytes(33),)},
        {"tags": tuple(f"tag-{number:04}" for number in range(800))},
    ],
)
def test_what_no_peer_would_accept_is_not_written(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_announcement(announce(**changes))


def test_the_largest_announcement_fits_one_packet_exactly() -> None:
    room = MAX_EVENT - len(encode_announcement(announce(metadata={"k": ""})))
    assert len(encode_announcement(announce(metadata={"k": "x" * room}))) == MAX_EVENT
    with pytest.raises(LocalProtocolError, match="fit"):
        encode_announcement(announce(metadata={"k": "x" * (room + 1)}))


def test_damaged_announcements_never_crash() -> None:
    full = announce(hop_count=3, reflex_addr="1.2.3.4:5", allowed_nodes=(1,), allowed_subnets=(bytes(16),)).sign(ALICE)
    assert_survives(decode_announcement, [VALID, encode_announcement(full)])


def test_a_damaged_announcement_that_still_reads_does_not_verify() -> None:
    assert decode_announcement(VALID).verify()
    for index in range(len(VALID)):
        damaged = VALID[:index] + bytes((VALID[index] ^ 1,)) + VALID[index + 1 :]
        try:
            read = decode_announcement(damaged)
        except MalformedPacket:
            continue
        assert not read.verify()
