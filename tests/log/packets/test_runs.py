"""Rows as runs of equal values: the kernel equals its reference, for any columns and any cut of any blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.packets import runs as module
from meshbus.log.packets.packed import pack_rows, unpack_rows
from meshbus.log.packets.row import ROW
from meshbus.log.packets.runs import IN_HEADER, IN_ROUTE, Piece, RecordInfo, runs_of
from meshbus.log.parquet.runs import Runs
from meshbus.log.schema import PACKETS
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.routebatch import ROUTE_DTYPE
from tests.log.packets.making import CHANNELS, changing_rows

NAMES = [column.name for column in PACKETS]
WHOSE = RecordInfo(2**64 - 2, 5)
Pieces = list[tuple[int, int, int]]


def mixed_rows(count: int, seed: int, changes: float) -> Any:
    """Return rows, some of which are publications that were judged."""
    rows = changing_rows(count, seed, changes)
    if seed % 2:  # otherwise rows may be alike
        for number, channel in enumerate(CHANNELS):
            rows["header"]["stream_id"][number::4] = channel.stream_id
            rows["header"]["channel_hash"][number::4] = channel.wire_hash
        rows["header"]["subprotocol_id"][seed % 5 :: 2] = 0
    in_trains(rows, np.random.default_rng(seed))
    return rows


def in_trains(rows: Any, random: np.random.Generator) -> None:
    """Make the counters of some rows increase by steps, also beyond the limits of their type."""
    at = 0
    edges, steps = (
        np.array(some, np.uint64)
        for some in ([0, (1 << 63) - 10, (1 << 64) - 10, 1 << 62], [0, 1, 1, 3, 1 << 61, (1 << 64) - 2])
    )
    while at < len(rows):
        train = rows["header"][at : at + random.integers(1, 30)]
        for field in ("counter", "sequence"):
            if random.integers(4):
                train[field] = random.choice(edges) + random.choice(steps) * np.arange(len(train), dtype=np.uint64)
        at += len(train)


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    """Cut blocks at random."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 60))
        rows = mixed_rows(count, draw(st.integers(0, 1 << 32)), draw(st.sampled_from([0.0, 0.02, 0.3])))
        first = draw(st.integers(0, count - 1))
        found.append(Piece(pack_rows(rows), first, draw(st.integers(first + 1, count))))
    return found


@given(cut=pieces(), names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
def test_the_kernel_equals_its_reference(cut: list[Piece], names: list[str]) -> None:
    compiled = runs_of(cut, WHOSE, names)
    run = module._gather.run
    module._gather.run = module._gather.reference
    try:
        plain = runs_of(cut, WHOSE, names)
    finally:
        module._gather.run = run
    assert list(compiled) == list(plain) == names
    for name in names:
        assert [part.tolist() for part in compiled[name]] == [part.tolist() for part in plain[name]], name


@given(cut=pieces())
def test_runs_end_where_a_value_does(cut: list[Piece]) -> None:
    count = sum(piece.last - piece.first for piece in cut)
    for name, runs in runs_of(cut, WHOSE, NAMES).items():
        assert runs.starts[0] == 0
        assert (np.diff(runs.starts) > 0).all()
        assert runs.lengths(count).sum() == count
        cells = list(zip(runs.values.tolist(), runs.valid.tolist(), strict=True))
        if name not in {"counter", "packet_seq"}:
            assert not runs.steps.any()
            if name != "ts":  # a microsecond has many nanoseconds
                assert all(before != after for before, after in pairwise(cells))
        else:
            ends = [
                value + step * (length - 1)
                for value, step, length in zip(
                    runs.values.tolist(), runs.steps.tolist(), runs.lengths(count).tolist(), strict=True
                )
            ]
            assert all(-(1 << 63) <= end < 1 << 63 for end in ends), "no run goes over an edge"
            assert (runs.steps[runs.lengths(count) == 1] == 0).all()
        assert not runs.values[~runs.valid].any()


@given(cut=pieces())
def test_counters_continue_in_steps(cut: list[Piece]) -> None:
    """Whatever their steps are, every row keeps its value."""
    rows = np.concatenate([unpack_rows(piece.rows)[piece.first : piece.last] for piece in cut])
    found = runs_of(cut, WHOSE, NAMES)
    for column, field in (("counter", "counter"), ("packet_seq", "sequence")):
        assert found[column].cells(len(rows)).view(np.uint64).tolist() == rows["header"][field].tolist()


def test_a_train_is_one_run() -> None:
    rows = np.zeros(5000, ROW)
    rows["header"]["counter"] = np.arange(7, 5007)
    rows["ts_ns"] = np.arange(5000) // 44
    found = runs_of([Piece(pack_rows(rows), 0, 5000)], WHOSE, ["counter", "packet_seq", "ts"])
    assert found["counter"] == Runs(*(np.array([cell]) for cell in (0, 7, True, 1)))
    assert found["packet_seq"] == Runs(*(np.array([cell]) for cell in (0, 0, True, 0)))


def test_a_file_has_one_recorder_and_one_rate() -> None:
    found = runs_of([Piece(pack_rows(np.zeros(3, ROW)), 0, 3)], WHOSE, ["recorder", "sampling_rate"])
    assert found["recorder"] == Runs(*(np.array([cell]) for cell in (0, -2, True, 0)))
    assert found["sampling_rate"].values.tolist() == [5]


def test_every_number_of_a_row_has_a_column() -> None:
    """The fields of a row that no column shows are listed here."""
    assert HEADER_DTYPE.names is not None
    assert ROUTE_DTYPE.names is not None
    assert set(HEADER_DTYPE.names) - set(IN_HEADER.values()) == {"magic"}
    assert set(ROUTE_DTYPE.names) - set(IN_ROUTE.values()) == {"magic", "reserved"}
    assert ROW.names is not None
    assert set(ROW.names) - set(NAMES) == {"header", "route", "unused", "present"}


def test_what_nulls_depend_on_is_where_the_kernel_looks() -> None:
    assert module._place_of("subprotocol_id") == (module._IDS_AT, 2)
    assert module._place_of("chash") == (module._IDS_AT + 2, 2)
    assert module._place_of("stream_id") == (module._STREAM_AT, 8)
    assert module._place_of("reason") == (module._REASON_AT, 1)
    assert module._place_in(ROW, "present") == (module._PRESENT_AT, 1)


def test_columns_of_very_many_runs_have_them_all() -> None:
    rows = changing_rows(3 * module._FEW, 7, 0.9)
    rows["header"]["sequence"] = 5
    found = runs_of([Piece(pack_rows(rows), 0, len(rows))], WHOSE, ["origin", "packet_seq"])
    assert (found["origin"].cells(len(rows)).view(np.uint64) == rows["header"]["origin_hash"]).all()
    assert len(found["origin"].starts) > module._FEW
    assert len(found["packet_seq"].starts) == 1
