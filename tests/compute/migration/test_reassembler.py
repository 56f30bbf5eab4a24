from __future__ import annotations

import random

import pytest

from meshbus.compute.migration import reassembler as module
from meshbus.compute.migration.reassembler import IDLE_S, MAX_SNAPSHOTS, REPORT_EVERY, Reassembler
from meshbus.compute.migration.transfer import Transfer
from meshbus.wire.messages.migration import CHUNK_BYTES, SnapshotReady
from tests.seeds import for_each_seed
from tests.vectors import load

CASES = load("mesh")["reassembler_cases"]
KIB = 1 << 10
SENDER, STRANGER = 5, 6


def part(index: int, total: int, *, seq: int = 10, chunk: bytes = b"x", attempt: int | None = None) -> SnapshotReady:
    return SnapshotReady(origin=1, attempt=attempt, seq_through=seq, chunk_index=index, total_chunks=total, chunk=chunk)


def fresh() -> Reassembler:
    return Reassembler(64 * KIB)


def any_order() -> bool:
    parts = fresh()
    results = [parts.feed(part(index, 3, chunk=bytes([index])), SENDER, 0) for index in (2, 0, 1)]
    return results == [None, None, b"\0\1\2"]


def other_total() -> bool:
    parts = fresh()
    parts.feed(part(0, 3), SENDER, 0)
    refused = parts.feed(part(1, 4), SENDER, 0)
    rest = [parts.feed(part(index, 3), SENDER, 0) for index in (1, 2)]
    return isinstance(refused, str) and rest == [None, b"xxx"]


def stale() -> bool:
    parts = fresh()
    done = parts.feed(part(0, 1, seq=10), SENDER, 0)
    return done == b"x" and isinstance(parts.feed(part(0, 1, seq=9), SENDER, 0), str)


def empty() -> bool:
    return isinstance(fresh().feed(part(0, 1, chunk=b""), SENDER, 0), str)


def newer() -> bool:
    parts = fresh()
    parts.feed(part(0, 2, seq=10), SENDER, 0)
    parts.feed(part(0, 2, seq=11), SENDER, 0)
    return len(parts) == 1 and isinstance(parts.feed(part(1, 2, seq=10), SENDER, 0), str)


def single_after_several() -> bool:
    parts = fresh()
    parts.feed(part(0, 3), SENDER, 0)
    return isinstance(parts.feed(part(0, 1), SENDER, 0), str)


def same_again() -> bool:
    parts = fresh()
    parts.feed(part(0, 2, chunk=b"a"), SENDER, 0)
    parts.feed(part(0, 2, chunk=b"b"), SENDER, 0)
    return parts.feed(part(1, 2, chunk=b"c"), SENDER, 0) == b"bc"


def too_large() -> bool:
    parts = fresh()
    return isinstance(parts.feed(part(0, 64 * KIB // CHUNK_BYTES + 2), SENDER, 0), str) and len(parts) == 0


def idle() -> bool:
    parts = fresh()
    parts.feed(part(0, 2), SENDER, 0)
    return parts.feed(part(1, 2), SENDER, IDLE_S) is None and len(parts) == 1


RESULTS = {
    "3 chunks in order 2,0,1": any_order,
    "chunk with total 4 while 3 is locked": other_total,
    "chunk with seq_through 9 after 10 accepted": stale,
    "zero-length chunk": empty,
    "newer seq_through": newer,
    "0/1 after 0/3 for the same key": single_after_several,
    "same index again": same_again,
    "buffered bytes would exceed 64 MiB": too_large,
    "no progress for 300 s": idle,
}


def test_every_recorded_case_has_its_result() -> None:
    assert {case["feed"] for case in CASES} == RESULTS.keys()
    for feed, holds in RESULTS.items():
        assert holds(), feed


@for_each_seed(range(10))
def test_any_order_with_repetitions_gives_the_snapshot(seed: int) -> None:
    rng = random.Random(seed)
    snapshot = rng.randbytes(rng.randrange(1, 60 * KIB))
    transfer = Transfer(2, 1, 7, 10, snapshot)
    parts = [message for _, message in transfer.burst(100)] * 2
    rng.shuffle(parts)
    reassembler = fresh()
    results = [reassembler.feed(message, SENDER, 0) for message in parts if isinstance(message, SnapshotReady)]
    assert snapshot in results


def test_attempts_do_not_mix() -> None:
    parts = fresh()
    parts.feed(part(0, 2, attempt=1, chunk=b"a"), SENDER, 0)
    parts.feed(part(0, 2, attempt=2, chunk=b"b"), SENDER, 0)
    assert parts.feed(part(1, 2, attempt=1, chunk=b"c"), SENDER, 0) == b"ac"
    # In a numbered attempt an older snapshot is no sign of the past.
    assert parts.feed(part(0, 1, attempt=3, seq=1), SENDER, 0) == b"x"


def test_the_number_of_snapshots_at_once_is_bounded() -> None:
    parts = fresh()
    for attempt in range(MAX_SNAPSHOTS + 5):
        parts.feed(part(0, 2, attempt=attempt), SENDER, attempt)
    assert len(parts) == MAX_SNAPSHOTS
    parts.drop(SENDER, 1)
    assert len(parts) == 0


def test_the_daemons_whose_newest_snapshot_is_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 2)
    parts = fresh()
    for origin in range(5):
        message = SnapshotReady(origin=origin, seq_through=9, chunk_index=0, total_chunks=1, chunk=b"x")
        assert parts.feed(message, SENDER, 0) == b"x"
    assert len(parts._newest) == 2


def test_senders_do_not_mix_and_cannot_make_others_look_old() -> None:
    parts = fresh()
    parts.feed(part(0, 2, chunk=b"a"), SENDER, 0)
    parts.feed(part(1, 2, chunk=b"z"), STRANGER, 0)
    parts.feed(part(0, 2, seq=1 << 63), STRANGER, 0)
    parts.drop(STRANGER, 1)
    assert parts.feed(part(1, 2, chunk=b"b"), SENDER, 0) == b"ab"


def test_it_tells_what_is_missing_now_and_then_and_after_the_last_part() -> None:
    parts, total = fresh(), 9
    told = []
    for index in (0, 3, 4, 4, 8):
        message = part(index, total, attempt=7)
        assert parts.feed(message, SENDER, 0) is None
        told.append(parts.missing(message, SENDER))
    assert told == [None, None, None, None, ((1, 3), (5, 8))]
    assert parts.missing(part(8, total, attempt=7), STRANGER) is None
    for _ in range(REPORT_EVERY - 5):
        parts.feed(part(0, total, attempt=7), SENDER, 0)
    assert parts.missing(part(0, total, attempt=7), SENDER) == ((1, 3), (5, 8))
