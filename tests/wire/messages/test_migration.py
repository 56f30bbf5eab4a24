from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.messages.causal import CausalLink, unpack_link
from meshbus.wire.messages.migration import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_RANGES,
    ActivateAck,
    ActivateTarget,
    BufferedEvent,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    FailureCode,
    MigrationFailed,
    MigrationMessage,
    PartsMissing,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
    TakeSnapshot,
    count_chunks,
    decode_migration,
    encode_migration,
    pack_events,
    split_snapshot,
)
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u64

VECTORS: dict[str, Any] = load("mesh")["migration_messages"]
FIELDS: dict[str, Any] = VECTORS["fields"]
ORIGIN, TARGET = int(FIELDS["daemon_origin"], 16), int(FIELDS["target_node"], 16)
LINK = unpack_link(bytes.fromhex(FIELDS["link"]))
EVENT = BufferedEvent(
    unpack_link(bytes.fromhex(FIELDS["event"]["link"])),
    bytes.fromhex(FIELDS["event"]["payload"]),
    FIELDS["event"]["received_at"],
)

EXPECTED: dict[str, MigrationMessage] = {
    "TakeSnapshot": TakeSnapshot(origin=ORIGIN, target_node=TARGET),
    "SnapshotReady": SnapshotReady(origin=ORIGIN, seq_through=7, chunk_index=1, total_chunks=3, chunk=b"abc"),
    "RestoreComplete": RestoreComplete(origin=ORIGIN, restored_seq=7),
    "ReplayComplete": ReplayComplete(origin=ORIGIN, replayed_seq=3, target_head=LINK),
    "CutoverNotify": CutoverNotify(origin=ORIGIN, target_node=TARGET),
    "CleanupComplete": CleanupComplete(origin=ORIGIN),
    "MigrationFailed/NotReady": MigrationFailed(origin=ORIGIN, code=FailureCode.NOT_READY),
    "MigrationFailed/FactoryNotFound": MigrationFailed(origin=ORIGIN, code=FailureCode.FACTORY_NOT_FOUND),
    "MigrationFailed/ComputeNotSupported": MigrationFailed(origin=ORIGIN, code=FailureCode.COMPUTE_NOT_SUPPORTED),
    "MigrationFailed/StateFailed('boom')": MigrationFailed(origin=ORIGIN, code=FailureCode.STATE_FAILED, text="boom"),
    "MigrationFailed/AlreadyMigrating": MigrationFailed(origin=ORIGIN, code=FailureCode.ALREADY_MIGRATING),
    "MigrationFailed/IdentityTransportFailed('x')": MigrationFailed(
        origin=ORIGIN, code=FailureCode.IDENTITY_TRANSPORT_FAILED, text="x"
    ),
    "MigrationFailed/NotReadyTimeout(5)": MigrationFailed(
        origin=ORIGIN, code=FailureCode.NOT_READY_TIMEOUT, attempts=5
    ),
    "BufferedEvents[0]": BufferedEvents(origin=ORIGIN),
    "BufferedEvents[1]": BufferedEvents(origin=ORIGIN, events=(EVENT,)),
    "ActivateTarget": ActivateTarget(origin=ORIGIN),
    "ActivateAck": ActivateAck(origin=ORIGIN, replayed_seq=7),
}

links = st.builds(CausalLink, u64, u64, u64, u64)
common: dict[str, Any] = {"origin": u64, "attempt": st.none() | u64}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
messages = st.one_of(
    st.builds(TakeSnapshot, **common, target_node=u64),
    st.builds(CutoverNotify, **common, target_node=u64),
    st.builds(
        SnapshotReady,
        **common,
        seq_through=u64,
        chunk_index=st.integers(0, 9),
        total_chunks=st.integers(10, MAX_CHUNKS),
        chunk=st.binary(max_size=200),
    ),
    st.builds(RestoreComplete, **common, restored_seq=u64),
    st.builds(ReplayComplete, **common, replayed_seq=u64, target_head=links),
    st.builds(CleanupComplete, **common),
    st.builds(
        PartsMissing,
        **common,
        seq_through=u64,
        total_chunks=st.just(MAX_CHUNKS),
        ranges=st.lists(st.integers(0, MAX_CHUNKS), max_size=40).map(
            lambda edges: tuple(zip(*[iter(sorted(edges))] * 2, strict=False))
        ),
    ),
    st.builds(ActivateTarget, **common),
    st.builds(ActivateAck, **common, replayed_seq=u64),
    st.builds(
        BufferedEvents,
        **common,
        events=st.lists(st.builds(BufferedEvent, links, st.binary(max_size=60), u64), max_size=6).map(tuple),
    ),
    st.builds(
        MigrationFailed,
        **common,
        code=st.sampled_from([FailureCode.NOT_READY, FailureCode.FACTORY_NOT_FOUND, FailureCode.ALREADY_MIGRATING]),
    ),
    st.builds(
        MigrationFailed,
        **common,
        code=st.sampled_from([FailureCode.STATE_FAILED, FailureCode.IDENTITY_TRANSPORT_FAILED]),
        text=texts,
    ),
    st.builds(MigrationFailed, **common, code=st.just(FailureCode.NOT_READY_TIMEOUT), attempts=st.integers(0, 255)),
)


@pytest.mark.parametrize("vector", VECTORS["computed"], ids=lambda vector: vector["name"])
def test_messages_have_the_golden_bytes(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    assert len(raw) == vector["len"]
    assert raw[0] == vector["type"]
    assert decode_migration(raw) == EXPECTED[vector["name"]]
    assert encode_migration(EXPECTED[vector["name"]]) == raw


@pytest.mark.parametrize("section", ["observed_two_node", "observed_three_party", "observed_failures"])
def test_messages_of_real_nodes_round_trip(section: str) -> None:
    for vector in VECTORS[section]:
        message = decode_migration(bytes.fromhex(vector["hex"]))
        assert encode_migration(message) == bytes.fromhex(vector["hex"])
        assert type(message).__name__ == vector.get("name", "MigrationFailed")
        assert message.attempt is None


def test_messages_with_an_envelope_have_the_observed_lengths() -> None:
    lengths = {row["name"]: row["len"] for row in VECTORS["observed_three_party_with_source_target_session"]}
    plain = {row["name"]: len(bytes.fromhex(row["hex"])) for row in VECTORS["observed_three_party"]}
    assert lengths == {**plain, "SnapshotReady": plain["SnapshotReady"] + 209}


@pytest.mark.parametrize("vector", VECTORS["decode_rejects"], ids=lambda vector: vector["why"])
def test_what_the_reference_rejects_is_malformed(vector: dict[str, str]) -> None:
    with pytest.raises(MalformedPacket):
        decode_migration(bytes.fromhex(vector["hex"]))


@given(messages)
def test_messages_round_trip(message: MigrationMessage) -> None:
    assert decode_migration(encode_migration(message)) == message


@given(messages, st.binary(max_size=20).filter(lambda tail: len(tail) not in (0, 8)))
def test_other_bytes_after_a_message_are_ignored(message: MigrationMessage, tail: bytes) -> None:
    if message.attempt is None:
        assert decode_migration(encode_migration(message) + tail) == message


def test_snapshots_are_divided_as_observed() -> None:
    vectors = load("mesh")["snapshot_chunking"]
    sizes = [len(chunk) for chunk in split_snapshot(bytes(vectors["snapshot_len"]))]
    assert sizes == [row["chunk_len"] for row in vectors["chunks"]]
    for row in vectors["computed"]:
        parts = [len(chunk) for chunk in split_snapshot(bytes(row["snapshot_len"]))]
        assert (len(parts), parts[-1]) == (row["total"], row["last"])
        assert count_chunks(row["snapshot_len"]) == row["total"]


@given(st.lists(st.integers(0, CHUNK_BYTES), max_size=30))
def test_events_are_divided_into_messages_that_fit(sizes: list[int]) -> None:
    events = [BufferedEvent(LINK, bytes(size), number) for number, size in enumerate(sizes)]
    groups = list(pack_events(events))
    assert [event for group in groups for event in group] == events
    for group in groups:
        assert len(encode_migration(BufferedEvents(origin=1, events=group, attempt=2))) <= MAX_EVENT


def test_what_no_receiver_takes_is_not_written() -> None:
    large = BufferedEvent(LINK, bytes(CHUNK_BYTES + 1), 0)
    two = BufferedEvent(LINK, bytes(4100), 0)
    for message in (
        BufferedEvents(origin=1, events=(large,)),
        BufferedEvents(origin=1, events=(two, two)),
        SnapshotReady(origin=1, seq_through=0, chunk_index=0, total_chunks=1, chunk=bytes(CHUNK_BYTES + 1)),
        SnapshotReady(origin=1, seq_through=0, chunk_index=1, total_chunks=1, chunk=b""),
        SnapshotReady(origin=1, seq_through=0, chunk_index=1, total_chunks=MAX_CHUNKS + 1, chunk=b""),
    ):
        with pytest.raises(LocalProtocolError):
            encode_migration(message)


def test_a_long_text_is_cut_where_a_character_ends() -> None:
    failed = MigrationFailed(origin=1, code=FailureCode.STATE_FAILED, text="é" * 5000)
    found = decode_migration(encode_migration(failed))
    assert isinstance(found, MigrationFailed)
    assert found.text == "é" * 500


@pytest.mark.parametrize("ranges", [((5, 3),), ((1, 4), (3, 6)), ((8, 11),)])
def test_missing_parts_must_ascend_and_exist(ranges: tuple[tuple[int, int], ...]) -> None:
    raw = encode_migration(PartsMissing(origin=1, attempt=2, seq_through=3, total_chunks=10, ranges=ranges))
    with pytest.raises(MalformedPacket):
        decode_migration(raw)


def test_more_ranges_than_are_allowed_are_malformed() -> None:
    ranges = tuple((place, place + 1) for place in range(0, 2 * MAX_RANGES + 2, 2))
    raw = encode_migration(PartsMissing(origin=1, attempt=2, seq_through=3, total_chunks=9999, ranges=ranges))
    with pytest.raises(MalformedPacket):
        decode_migration(raw)


def test_damaged_messages_never_escape_as_another_error() -> None:
    samples = [bytes.fromhex(vector["hex"]) for vector in VECTORS["computed"]]
    assert_survives(decode_migration, [*samples, samples[0] + bytes(8)], randoms=10_000)
