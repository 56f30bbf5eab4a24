from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.replicas.catchup import Fit, Retained, answer, fit, skip_target
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.messages.redex import (
    MAX_REPLICATED,
    BandwidthClass,
    NackCode,
    SyncNack,
    SyncRequest,
    SyncResponse,
    encode_redex,
)
from tests.vectors import load

CASES: list[dict[str, Any]] = load("subprotocols")["redex"]["response_packing"]["cases"]
ID = bytes(32)


def sizes_of(case: dict[str, Any]) -> list[tuple[int, int]]:
    if isinstance(case["retained"], dict):  # described in words
        return [(0, 5), (1, 4), (2, 5), *((seq, 500) for seq in range(3, 43))]
    return [(seq, size) for seq, size in case["retained"]]


def log_of(case: dict[str, Any]) -> Retained:
    events = [(seq, bytes(size)) for seq, size in sizes_of(case)]
    first = events[0][0] if events else 0
    return Retained(first, case["next_seq"], [event for event in events if event[0] >= case["since_seq"]])


def request(since: int = 0, chunk_max: int = 0, bandwidth_class: int = 0) -> SyncRequest:
    return SyncRequest(
        channel_id=ID,
        since_seq=since,
        chunk_max=chunk_max,
        request_id=7,
        bandwidth_class=BandwidthClass(bandwidth_class),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_without_a_packet_limit_the_reference_packs_the_same(case: dict[str, Any]) -> None:
    asked = request(case["since_seq"], case["chunk_max"], case["bandwidth_class"])
    found, expected = answer(asked, log_of(case), packet_room=None), case["expect"]
    if expected["result"] == "nack":
        assert isinstance(found, SyncNack)
        assert found.code == expected["error_code"]
        return
    assert isinstance(found, SyncResponse)
    assert (found.first_seq, len(found.events)) == (expected["first_seq"], expected["n"])
    if "message_length" in expected:
        assert len(encode_redex(found)) == expected["message_length"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_what_is_sent_fits_one_packet(case: dict[str, Any]) -> None:
    found = answer(request(case["since_seq"], 0, case["bandwidth_class"]), log_of(case))
    assert len(encode_redex(found)) <= MAX_EVENT


def test_a_payload_that_fits_no_packet_is_a_bad_range_with_the_limit() -> None:
    assert isinstance(answer(request(), Retained(0, 1, [(0, bytes(MAX_REPLICATED))])), SyncResponse)
    found = answer(request(), Retained(0, 1, [(0, bytes(MAX_REPLICATED + 1))]))
    assert isinstance(found, SyncNack)
    assert found.code == NackCode.BAD_RANGE
    assert found.detail == "event 0 is larger than 8029 bytes"


def response(first: int, *seqs: int) -> SyncResponse:
    return SyncResponse(
        channel_id=ID,
        first_seq=first,
        leader_first_retained_seq=0,
        request_id=7,
        events=tuple((seq, b"x") for seq in seqs),
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (response(5, 5, 6, 7), Fit.APPLY),
        (response(8, 8), Fit.SKIP),
        (response(4, 4, 5, 6), Fit.STALE),
        (response(4), Fit.STALE),
        (response(5), Fit.NOTHING),
        (response(9), Fit.NOTHING),
        (response(5, 6, 7), Fit.BROKEN),
        (response(5, 5, 7), Fit.BROKEN),
        (response(5, 5, 5), Fit.BROKEN),
    ],
)
def test_a_response_fits_the_log_or_not(found: SyncResponse, expected: Fit) -> None:
    assert fit(found, next_seq=5) == expected


def test_after_a_bad_range_the_replica_continues_where_the_leader_begins() -> None:
    nack = SyncNack(channel_id=ID, since_seq=3, code=NackCode.BAD_RANGE, leader_first_retained_seq=80, request_id=1)
    assert skip_target(nack) == 80
    assert skip_target(SyncNack(channel_id=ID, since_seq=3, code=NackCode.BAD_RANGE, request_id=1)) == 4
