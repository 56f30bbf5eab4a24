"""Rows: the kernel equals its reference, and sampling is fair, repeatable and the same on every hop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.packets import row
from meshbus.log.packets.row import ROW, ROW_BYTES, chooser, fill, name_table
from meshbus.names.channel import ChannelName
from meshbus.policy.fate import Fate
from meshbus.wire.header import HEADER_DTYPE
from tests.log.packets.making import CHANNELS, some_packets


def filled(kernel: Any, packets: dict[str, Any], room: int, at: int, sampling: int, seed: int) -> tuple[int, bytes]:
    """Write rows into memory full of rubbish; gives how many were chosen, and all of the memory."""
    rows = np.frombuffer(bytearray(b"\xa5" * (room * ROW_BYTES)), ROW)
    nothing, nowhere = np.zeros(0, np.uint8), np.zeros(0, np.uint32)
    chosen = kernel(
        rows,
        at,
        packets["headers"].view(np.uint8),
        nothing if packets["routes"] is None else packets["routes"].view(np.uint8),
        packets["reasons"],
        int(packets["here"]),
        packets["previous_hops"],
        packets["next_hops"],
        nowhere if packets["sources"] is None else packets["sources"],
        nowhere if packets["dests"] is None else packets["dests"],
        nothing if packets["guard"] is None else packets["guard"],
        name_table(CHANNELS),
        chooser(sampling, seed),
        17,
        packets["ts_ns"],
        3,
    )
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
    at = seed % (room + 1)
    assert filled(fill.run, packets, room, at, sampling, seed) == filled(
        fill.reference, packets, room, at, sampling, seed
    )


def test_a_row_is_as_large_as_it_says() -> None:
    assert ROW.itemsize == ROW_BYTES
    assert ROW.fields is not None
    assert ROW.fields["route"][1] == row._ROUTE_AT
    assert [int(fate) for fate in (Fate.FORWARDED, Fate.DELIVERED, Fate.DROPPED)] == [0, 1, 2]


def chosen_of(sessions: np.ndarray[Any, Any], first: int, sampling: int, seed: int) -> np.ndarray[Any, Any]:
    """Give the counters that are chosen among packets of some sessions."""
    headers = np.zeros(len(sessions), HEADER_DTYPE)
    headers["session_id"], headers["counter"] = sessions, np.arange(first, first + len(sessions))
    rows = np.zeros(len(sessions), ROW)
    one, nothing, nowhere = np.zeros(1, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.uint32)
    count = fill.run(
        rows, 0, headers.view(np.uint8), nothing, np.zeros(len(sessions), np.uint8), 0, one, one, nowhere, nowhere,
        nothing, name_table(()), chooser(sampling, seed), first, 0, 0,
    )  # fmt: skip
    return np.asarray(rows["header"]["counter"][:count])


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
