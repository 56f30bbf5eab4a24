"""Test that the run scanner finds where a run ends, and that the kernel equals its reference."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base import runscan
from meshbus.engine.base.runscan import SEAL_BYTES, Run, scan
from meshbus.wire.constants import HEADER_BYTES, Flags
from meshbus.wire.header import Header, aad_of, pack_header
from meshbus.wire.keys import nonce_prefix

SESSION = 0x1122334455667788


def packet(sequence: int, *, payload: int = 8, counter: int | None = None, extra: bytes = b"", **fields: int) -> bytes:
    nonce = bytes(4) + (sequence if counter is None else counter).to_bytes(8, "little")
    header = Header(
        nonce=nonce, sequence=sequence, payload_len=payload, event_count=1, **{"session_id": SESSION, **fields}
    )
    return pack_header(header) + bytes(payload + 16) + extra


def scan_both(packets: list[bytes]) -> Run | None:
    """Scan packets with the kernel, and check that the reference returns the same."""
    data = np.frombuffer(b"".join(packets), np.uint8)
    lengths = np.array([len(one) for one in packets], np.int64)
    starts = np.cumsum(lengths) - lengths
    run = scan(data, starts, lengths)
    kernel, runscan._scan.run = runscan._scan.run, runscan._scan.reference
    try:
        reference = scan(data, starts, lengths)
    finally:
        runscan._scan.run = kernel
    assert (run is None) == (reference is None)
    if run is not None and reference is not None:
        for name in Run.__struct_fields__:
            mine, other = getattr(run, name), getattr(reference, name)
            assert np.array_equal(mine, other) if isinstance(mine, np.ndarray) else mine == other, name
    return run


def test_a_whole_batch_of_one_stream_is_one_run() -> None:
    packets = [packet(n, payload=8 + n, stream_id=7, origin_hash=3) for n in range(5)]
    run = scan_both(packets)
    assert run is not None
    assert (len(run), run.session_id, run.stream_id, run.origin_hash) == (5, SESSION, 7, 3)
    assert run.sequences_follow
    assert run.counters_follow
    assert run.sequences.tolist() == [0, 1, 2, 3, 4]
    assert run.lengths.tolist() == [8, 9, 10, 11, 12]
    assert run.places.tolist() == [0, 8, 17, 27, 38]
    assert (run.payload_bytes, run.events) == (50, 5)
    assert run.rows.tobytes() == b"".join(one[:HEADER_BYTES] for one in packets)
    first = packets[0]
    assert run.seals[:SEAL_BYTES] == aad_of(first) + nonce_prefix(SESSION) + first[16:24]


@pytest.mark.parametrize(
    "other",
    [
        packet(1, session_id=5),
        packet(1, stream_id=9),
        packet(1, origin_hash=9),
        packet(1, subprotocol_id=0x0A00),
        packet(1, flags=Flags.RELIABLE),
        packet(1, flags=Flags.HANDSHAKE),
        packet(1, flags=Flags.HEARTBEAT),
        packet(1, extra=b"x"),
        packet(1)[:70],
        b"RT" + packet(1)[2:],
        b"EN\x02" + packet(1)[3:],
    ],
)
def test_a_run_ends_where_something_else_begins(other: bytes) -> None:
    run = scan_both([packet(0), other, packet(1)])
    assert run is not None
    assert len(run) == 1
    if other[:3] != b"EN\x01" or len(other) < 84 or len(other) > 92:
        assert scan_both([other, packet(0)]) is None


def test_gaps_are_noticed() -> None:
    run = scan_both([packet(0), packet(2), packet(3)])
    assert run is not None
    assert not run.sequences_follow
    run = scan_both([packet(0), packet(1, counter=7)])
    assert run is not None
    assert run.sequences_follow
    assert not run.counters_follow


@given(st.lists(st.one_of(st.binary(max_size=100), st.builds(packet, st.integers(0, 9))), min_size=1, max_size=8))
def test_any_batch_reads_the_same_compiled_or_not(packets: list[bytes]) -> None:
    scan_both(packets)


def test_places_outside_the_buffer_end_the_run() -> None:
    data = np.frombuffer(packet(0), np.uint8)
    for start, length in ((-1, 92), (0, 10**6), (2**62, 92)):
        assert scan(data, np.array([start], np.int64), np.array([length], np.int64)) is None


def test_a_run_is_immutable() -> None:
    assert issubclass(Run, msgspec.Struct)
    assert Run.__struct_config__.frozen
