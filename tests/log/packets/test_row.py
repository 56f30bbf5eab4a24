"""Rows: the kernel equals its reference, and sampling is fair, repeatable and the same on every hop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.packets import row
from meshbus.log.packets.row import ROW, ROW_BYTES, ROW_WORDS, chooser, fill, name_table
from meshbus.names.channel import ChannelName
from meshbus.policy.fate import Fate
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from tests.log.packets.making import CHANNELS, arguments, blank_headers, some_packets


def filled(kernel: Any, packets: dict[str, Any], room: int, at: int, sampling: int, seed: int) -> tuple[int, bytes]:
    """Write rows into memory full of rubbish; gives how many were chosen, and all of the memory."""
    rows = np.frombuffer(bytearray(b"\xa5" * (room * ROW_BYTES)), np.uint8)
    places, facts = arguments(packets)
    chosen = kernel(rows, at, *places, facts, name_table(CHANNELS), chooser(sampling, seed), 17, packets["ts_ns"])
    return chosen, rows.tobytes()


@given(
    count=st.integers(1, 70),
    seed=st.integers(0, 1 << 32),
    room=st.integers(1, 80),
    sampling=st.sampled_from([1, 2, 10]),
    routed=st.booleans(),
    judged=st.booleans(),
)
def test_the_kernel_equals_its_reference(
    count: int, seed: int, room: int, sampling: int, routed: bool, judged: bool
) -> None:
    packets = some_packets(count, seed, routed=routed, judged=judged)
    packets["headers"]["magic"][seed % 3 :: 5] ^= 1
    at = seed % (room + 1)
    assert filled(fill.run, packets, room, at, sampling, seed) == filled(
        fill.reference, packets, room, at, sampling, seed
    )


@given(count=st.integers(1, 50), seed=st.integers(0, 1 << 32), gap=st.integers(0, 3), sampling=st.sampled_from([1, 3]))
def test_a_train_in_a_buffer_gives_the_rows_of_its_columns(count: int, seed: int, gap: int, sampling: int) -> None:
    """One model for all, headers where they lie: the same as columns and a model each."""
    packets = some_packets(count, seed)
    packets["headers"]["version"][seed % 3 :: 5] += 1
    for name in ("reasons", "previous_hops", "next_hops", "sources", "dests", "guard"):
        packets[name] = packets[name][:1]
    expected = filled(fill.reference, packets, count + 2, 1, sampling, seed)
    junk = packets["headers"]["version"] != 1
    step = ROUTE_BYTES + HEADER_BYTES + gap
    buffer = np.zeros((count, step), np.uint8)
    buffer[:, :ROUTE_BYTES] = packets["routes"].view(np.uint8).reshape(count, -1)
    buffer[:, ROUTE_BYTES : ROUTE_BYTES + HEADER_BYTES] = packets["headers"].view(np.uint8).reshape(count, -1)
    data = np.concatenate([np.full(7, 0xEE, np.uint8), buffer.reshape(-1)])
    model = arguments(packets)[-1][:ROW_WORDS]
    for kernel in (fill.run, fill.reference):
        rows = np.frombuffer(bytearray(b"\xa5" * ((count + 2) * ROW_BYTES)), np.uint8)
        places = data, 7 + ROUTE_BYTES, step, count, data, 7, step
        chosen = kernel(rows, 1, *places, model, name_table(CHANNELS), chooser(sampling, seed), 17, packets["ts_ns"])
        assert (chosen, rows.tobytes()) == expected
    if sampling == 1:
        written = np.frombuffer(expected[1], ROW)[1 : count + 1]
        assert not written["header"][junk].view(np.uint8).any()
        assert written["header"][~junk].tobytes() == packets["headers"][~junk].tobytes()
        assert written["route"].tobytes() == packets["routes"].tobytes()


def test_a_row_is_as_large_as_it_says() -> None:
    assert ROW.itemsize == ROW_BYTES
    assert ROW.fields is not None
    assert ROW.fields["route"][1] == row._ROUTE_AT
    assert ROW.fields["chash64"][1] == row._HASH_AT
    assert ROW.fields["ts_ns"][1] == row._TS_AT
    assert ROW_BYTES == 8 * ROW_WORDS
    assert [int(fate) for fate in (Fate.FORWARDED, Fate.DELIVERED, Fate.DROPPED)] == [0, 1, 2]


def chosen_of(sessions: np.ndarray[Any, Any], first: int, sampling: int, seed: int) -> np.ndarray[Any, Any]:
    """Give the counters that are chosen among packets of some sessions."""
    headers = blank_headers(len(sessions))
    headers["session_id"], headers["counter"] = sessions, np.arange(first, first + len(sessions))
    rows = np.zeros(len(sessions) * ROW_BYTES, np.uint8)
    nothing, model = np.zeros(0, np.uint8), np.zeros(ROW_WORDS, np.uint64)
    packets = headers.view(np.uint8), 0, HEADER_BYTES, len(sessions), nothing, 0, ROUTE_BYTES
    count = fill.run(rows, 0, *packets, model, name_table(()), chooser(sampling, seed), first, 0)
    return np.asarray(rows.view(ROW)["header"]["counter"][:count])


@pytest.mark.parametrize("sampling", [2, 10, 100])
@pytest.mark.parametrize("session", [0, 1, 0xFFFF_FFFF_FFFF_FFFF])
def test_sampling_takes_its_share_of_every_part_of_a_stream(sampling: int, session: int) -> None:
    """The share is right over all, over parts, and for every residue: no period of the traffic is preferred."""
    count = 200_000
    for seed in (0, 1, 2**64 - 1):
        chosen = chosen_of(np.full(count, session, np.uint64), 1_000_000, sampling, seed)
        for parts in (1, 16, sampling):
            for share in (chosen % parts, (chosen - 1_000_000) * parts // count):
                found = np.bincount(share.astype(np.int64), minlength=parts)
                due = count / sampling / parts
                # Five standard deviations of a binomial; what is drawn is fixed, so this passes always or never.
                assert np.abs(found - due).max() <= 5 * np.sqrt(due), (seed, parts)


def test_the_same_seed_chooses_the_same_packets_and_another_one_others() -> None:
    sessions = np.full(10_000, 77, np.uint64)
    first, again, other = (chosen_of(sessions, 0, 10, seed).tolist() for seed in (5, 5, 6))
    assert first == again
    assert len(set(first) & set(other)) < 0.2 * len(first)


def test_every_hop_chooses_the_same_packets() -> None:
    """What a hop changes, and in which batches packets come, has no part in the choice."""
    whole = chosen_of(np.full(1000, 9, np.uint64), 0, 4, 1).tolist()
    pieces = [chosen_of(np.full(10, 9, np.uint64), first, 4, 1).tolist() for first in range(0, 1000, 10)]
    assert [counter for piece in pieces for counter in piece] == whole


def test_names_that_share_a_stream_are_no_name() -> None:
    class Twin(ChannelName):
        @property
        def hash(self) -> int:
            return CHANNELS[0].hash ^ 1 << 48

    table = name_table([CHANNELS[0], Twin("twin"), CHANNELS[0]])
    assert [canonical for stream, canonical in table.tolist() if stream] == [0]
