"""Filling rows: the kernel equals its reference, and sampling is fair, repeatable and the same on every hop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.packets.fill import fill, sampling_rule
from meshbus.log.packets.packed import BLOCK_ROWS, NEXT, STARTS, Arena, data_of, hashes_in, unpack_rows
from meshbus.log.packets.row import ROW, ROW_WORDS, Names
from meshbus.log.packets.runs import Piece, RecordInfo, runs_of
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from tests.log.packets.making import CHANNELS, arguments, blank_headers, some_packets

Filled = tuple[int, list[bytes], bytes]


def filled(kernel: Any, calls: list[tuple[Any, Any, int]], rows: int, sampling: int, seed: int) -> Filled:
    """Fill an arena by some calls; return how many were chosen, the rows of its blocks, and its content."""
    arena = Arena(rows, sampling_rule(sampling, seed))
    arena.counts[:] = 17, 0, 0
    data_of(arena.memory).fill(0xA5)
    for places, facts, ts_ns in calls:
        there = kernel(arena.memory, *places, facts, ts_ns)
        assert there == arena.rows == arena.counts[1]
    blocks, (seen, taken, lost) = arena.blocks(), arena.counts.tolist()
    assert seen == 17 + sum(places[-1] for places, _, _ in calls)
    assert sum(block.length for block in blocks) == min(taken + lost, rows) == arena.rows
    assert all(hashes_in(block) is not None for block in blocks)
    rest = np.delete(arena.memory[: STARTS + rows // BLOCK_ROWS], slice(NEXT, STARTS))
    return (
        taken + lost,
        [unpack_rows(block).tobytes() for block in blocks],
        rest.tobytes() + data_of(arena.memory).tobytes(),
    )


def in_step(packets: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return trains of packets that differ from the first one only in their counters."""
    count, chosen = len(packets["headers"]), seed % 3 + 1
    same = {name: column[:1] if isinstance(column, np.ndarray) else column for name, column in packets.items()}
    number = np.arange(count, dtype=np.uint64)
    same["headers"], same["routes"] = (
        None if column is None else np.repeat(column[:1], count) for column in (packets["headers"], packets["routes"])
    )
    same["headers"]["counter"] += number
    same["headers"]["sequence"] += number * np.uint64(chosen - 1)
    same["headers"]["sequence"][seed % 40 :] += np.uint64(seed % 2**40)
    return same


@given(
    counts=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 32),
    sampling=st.sampled_from([1, 2, 10]),
    routed=st.booleans(),
    judged=st.booleans(),
)
def test_the_kernel_equals_its_reference(
    counts: list[int], seed: int, sampling: int, routed: bool, judged: bool
) -> None:
    calls = []
    for number, count in enumerate(counts):
        packets = some_packets(count, seed + number, routed=routed, judged=judged)
        packets["headers"]["magic"][seed % 3 :: 5] ^= 1
        packets["headers"][seed % 7 :: 2] = packets["headers"][0]
        if seed % 2:
            packets = in_step(packets, seed)
        calls.append((*arguments(packets), packets["ts_ns"]))
    found, expected = (filled(kernel, calls, BLOCK_ROWS, sampling, seed) for kernel in (fill.run, fill.reference))
    assert found == expected


@pytest.mark.parametrize("counts", [[BLOCK_ROWS], [BLOCK_ROWS - 3, 5, 1], [2 * BLOCK_ROWS - 7, 100, 2]])
def test_every_block_is_read_for_itself_and_what_finds_no_room_is_only_counted(counts: list[int]) -> None:
    rows, packets = 2 * BLOCK_ROWS, some_packets(sum(counts), 5)
    packets["headers"][: BLOCK_ROWS // 2] = packets["headers"][0]
    (lying, _, size, _), facts = arguments(packets)
    calls, at = [], 0
    for count in counts:
        places = lying, at * size, size, count
        calls.append((places, facts[at * ROW_WORDS : (at + count) * ROW_WORDS], packets["ts_ns"]))
        at += count
    results = [filled(kernel, calls, rows, 1, 0) for kernel in (fill.run, fill.reference)]
    assert results[0] == results[1]
    chosen, blocks, _ = results[0]
    found = np.frombuffer(b"".join(blocks), ROW)
    assert chosen == at
    assert found["header"].tobytes() == packets["headers"][:rows].tobytes()
    assert found["route"].tobytes() == packets["routes"][:rows].tobytes()


@given(count=st.integers(1, 50), seed=st.integers(0, 1 << 32), gap=st.integers(0, 3), sampling=st.sampled_from([1, 3]))
def test_a_train_in_a_buffer_gives_the_rows_of_its_columns(count: int, seed: int, gap: int, sampling: int) -> None:
    """One model for all packets of a stream in a buffer gives the same as columns with a model each."""
    packets = some_packets(count, seed)
    for name in ("stream_id", "channel_hash", "subprotocol_id"):
        packets["headers"][name] = packets["headers"][name][seed % min(count, 6)]
    if not Names.of(CHANNELS).hashes_of(packets["headers"][:1]).any():
        packets["headers"]["version"][seed % 3 :: 5] += 1
    if seed % 2:
        packets = in_step(packets, seed)
    for name in ("reasons", "previous_hops", "next_hops", "sources", "dests", "guard"):
        packets[name] = packets[name][:1]
    expected = filled(fill.reference, [(*arguments(packets), packets["ts_ns"])], BLOCK_ROWS, sampling, seed)
    junk = packets["headers"]["version"] != 1
    step = ROUTE_BYTES + HEADER_BYTES + gap
    buffer = np.zeros((count, step), np.uint8)
    buffer[:, :ROUTE_BYTES] = packets["routes"].view(np.uint8).reshape(count, -1)
    buffer[:, ROUTE_BYTES : ROUTE_BYTES + HEADER_BYTES] = packets["headers"].view(np.uint8).reshape(count, -1)
    data = np.concatenate([np.full(7, 0xEE, np.uint8), buffer.reshape(-1)])
    model = arguments(packets)[-1][:ROW_WORDS]
    for kernel in (fill.run, fill.reference):
        places = data, 7, step, count
        assert filled(kernel, [(places, model, packets["ts_ns"])], BLOCK_ROWS, sampling, seed) == expected
    if sampling == 1:
        written = np.frombuffer(expected[1][0], ROW)
        assert not written["header"][junk].view(np.uint8).any()
        assert written["header"][~junk].tobytes() == packets["headers"][~junk].tobytes()
        assert written["route"].tobytes() == packets["routes"].tobytes()


def chosen_of(sessions: np.ndarray[Any, Any], first: int, sampling: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the counters that are chosen among packets of some sessions."""
    headers = blank_headers(len(sessions))
    headers["session_id"], headers["counter"] = sessions, np.arange(first, first + len(sessions))
    arena = Arena(-(-len(sessions) // BLOCK_ROWS) * BLOCK_ROWS, sampling_rule(sampling, seed))
    arena.counts[0] = first
    model = np.zeros(ROW_WORDS, np.uint64)
    size = ROUTE_BYTES + HEADER_BYTES
    lying = np.zeros((len(sessions), size), np.uint8)
    lying[:, ROUTE_BYTES:] = headers.view(np.uint8).reshape(len(sessions), HEADER_BYTES)
    packets = lying.reshape(-1), 0, size, len(sessions)
    rows = fill.run(arena.memory, *packets, model, 0)
    pieces = [Piece(block, 0, block.length) for block in arena.blocks()]
    return runs_of(pieces, RecordInfo(0, sampling), ["counter"])["counter"].cells(rows)


@pytest.mark.parametrize("sampling", [2, 10, 100])
@pytest.mark.parametrize("session", [0, 1, 0xFFFF_FFFF_FFFF_FFFF])
def test_sampling_takes_its_share_of_every_part_of_a_stream(sampling: int, session: int) -> None:
    """The share is right for all packets, for parts, and for every residue: no period of the traffic is preferred."""
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
    """The choice depends neither on what a hop changes nor on the batches in which packets arrive."""
    whole = chosen_of(np.full(1000, 9, np.uint64), 0, 4, 1).tolist()
    pieces = [chosen_of(np.full(10, 9, np.uint64), first, 4, 1).tolist() for first in range(0, 1000, 10)]
    assert [counter for piece in pieces for counter in piece] == whole
