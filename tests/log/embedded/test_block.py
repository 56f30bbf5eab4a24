"""The bytes of a hot file: they are read back unchanged, and any changed bit is detected."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.embedded.block import (
    BLOCK_HEADER,
    FORMAT_VERSION,
    MAX_SEQ,
    BlockKey,
    HotHeader,
    NewerVersion,
    Unreadable,
    block_key,
    is_plain,
    pack_block,
    pack_cells,
    pack_control,
    pack_file_header,
    plain_length,
    read_rows,
    scalars_at,
    unpack_block,
    unpack_control,
    unpack_file_header,
)
from meshbus.log.headers import Headers
from meshbus.log.rows import NULL, STORED, ZERO, Cells, Kind, make_cells, pack_payloads

HEADER = HotHeader("sensors/lidar", bytes(range(16)), 42, 1_700_000_000_000_000_000)
KEY = HEADER.key


def cells_of(count: int, columns: dict[str, Any]) -> list[Cells]:
    return [
        make_cells(column.name, columns[column.name], count) if column.name in columns
        else (NULL if column.nullable else ZERO)
        for column in STORED
    ]  # fmt: skip


def block_of(
    events: Sequence[bytes], columns: dict[str, Any], headers: Headers | None = None, key: BlockKey = KEY
) -> bytes:
    offsets, data = pack_payloads(events)
    edges = offsets.astype(np.int32).view(np.uint8).data
    form = pack_cells(cells_of(len(events), columns), headers)
    return b"".join(pack_block(5, len(events), form, edges, data, key=key, written_ns=9, durable=3))


@st.composite
def columns(draw: st.DrawFn, count: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for column in draw(st.lists(st.sampled_from(STORED), unique=True)):
        number = st.integers(0, 1 << (8 * column.dtype.itemsize - 2))
        forms = [number, st.lists(number, min_size=count, max_size=count).map(np.array)]
        if column.nullable:
            masks = st.lists(st.booleans(), min_size=count, max_size=count)
            forms += [st.none(), masks.map(lambda mask: np.ma.array(range(len(mask)), mask=mask))]
        chosen[column.name] = draw(st.one_of(*forms))
    return chosen


@given(st.data(), st.lists(st.binary(max_size=20), min_size=1, max_size=9), st.booleans())
def test_a_block_is_read_back_unchanged(data: st.DataObject, events: list[bytes], with_headers: bool) -> None:
    given_columns = data.draw(columns(len(events)))
    headers = Headers.of([{"k": event} for event in events]) if with_headers else None
    raw = block_of(events, given_columns, headers)
    assert len(raw) % 8 == 0
    buffer = memoryview(bytes(8) + raw + b"next")
    header = unpack_block(buffer, 8, KEY)
    assert (header.first, header.events, header.written_ns, header.durable) == (5, len(events), 9, 3)
    assert header.size == len(raw)
    rows = read_rows(buffer, 8, header)
    assert list(rows.payloads(0, len(rows))) == events
    assert rows.end == 5 + len(events)
    for cells, expected in zip(rows.cells, cells_of(len(events), given_columns), strict=True):
        assert (cells.kind, cells.value) == (expected.kind, expected.value)
        np.testing.assert_array_equal(cells.array, expected.array)
        np.testing.assert_array_equal(cells.valid, expected.valid)
    if with_headers:
        assert rows.headers is not None
        assert [rows.headers.row(index) for index in range(len(events))] == [{"k": event} for event in events]


def test_arrays_are_seen_in_place_and_aligned() -> None:
    raw = block_of([b"abc", b"d"], {"ts_ns": np.array([1, 2]), "event_index": np.array([3, 4])})
    buffer = memoryview(raw)
    rows = read_rows(buffer, 0, unpack_block(buffer, 0, KEY))
    whole = np.frombuffer(raw, np.uint8)
    arrays = [cells.array for cells in rows.cells if cells.array is not None]
    for array in (*arrays, rows.offsets):
        assert np.shares_memory(array, whole)
        assert (array.ctypes.data - whole.ctypes.data) % 8 == 0


def test_every_changed_bit_and_every_cut_is_noticed() -> None:
    raw = block_of([b"abc", b"d" * 9], {"ts_ns": np.array([1, 2])}, Headers.of([{"a": b"1"}]))
    for place in range(len(raw)):
        for bit in (1, 128):
            damaged = bytearray(raw)
            damaged[place] ^= bit
            with pytest.raises(Unreadable):
                unpack_block(memoryview(damaged), 0, KEY)
    for size in range(len(raw)):
        with pytest.raises(Unreadable):
            unpack_block(memoryview(raw[:size]), 0, KEY)


def test_a_block_whose_parts_do_not_add_up_is_refused_when_it_is_read() -> None:
    raw = memoryview(block_of([b"abc"], {}))
    header = unpack_block(raw, 0, KEY)
    with pytest.raises(ValueError, match="add up"):
        read_rows(raw, 0, header._replace(payload_bytes=99))


def test_offsets_that_lead_elsewhere_are_refused_when_a_block_is_read() -> None:
    """Arrow would read where they lead, outside of the file too."""
    raw = bytearray(block_of([b"abc", b"de"], {}))
    header = unpack_block(memoryview(raw), 0, KEY)
    assert struct.unpack_from("<3i", raw, BLOCK_HEADER) == (0, 3, 5)
    for bad in ((1, 3, 5), (0, 6, 5), (0, -(1 << 31), 5), (-(1 << 31), (1 << 31) - 1, 5)):
        struct.pack_into("<3i", raw, BLOCK_HEADER, *bad)
        with pytest.raises(Unreadable, match="ascend"):
            read_rows(memoryview(raw), 0, header)


def test_numbers_behind_the_end_of_a_block_are_refused_when_it_is_read() -> None:
    raw = memoryview(block_of([b"abc"], {}))
    header = unpack_block(raw, 0, KEY)
    kinds = bytes([Kind.SAME] * (len(header.kinds) - 1)) + header.kinds[-1:]
    with pytest.raises(Unreadable, match="add up"):
        read_rows(raw, 0, header._replace(kinds=kinds))
    with pytest.raises(ValueError, match="headers of 0 events"):
        read_rows(raw, 0, header._replace(kinds=header.kinds[:-1] + b"\1"))


def test_headers_of_another_block_are_refused_when_it_is_read() -> None:
    raw = memoryview(block_of([b"abc", b"de", b""], {}, Headers.of([None, None])))
    with pytest.raises(ValueError, match="headers of 2 events in a block of 3"):
        read_rows(raw, 0, unpack_block(raw, 0, KEY))


def test_a_plain_block_has_a_known_length() -> None:
    for size in (0, 3, 8):
        header = unpack_block(memoryview(block_of([bytes(size)], {"origin": 7, "ts_ns": 8})), 0, KEY)
        assert plain_length(header.kinds, size) == header.length


def test_a_file_begins_within_the_sequences() -> None:
    last = HotHeader("sensors/lidar", bytes(16), MAX_SEQ, 1)
    assert unpack_file_header(pack_file_header(last)) == last
    with pytest.raises(Unreadable, match="the last one is"):
        unpack_file_header(pack_file_header(HotHeader("sensors/lidar", bytes(16), MAX_SEQ + 1, 1)))


def test_plain_blocks_have_their_numbers_at_known_places() -> None:
    raw = memoryview(block_of([b"abc"], {"origin": 7, "ts_ns": 8}))
    kinds = unpack_block(raw, 0, KEY).kinds
    assert is_plain(kinds)
    found = {STORED[place].name: struct.unpack_from("<q", raw, BLOCK_HEADER + at)[0] for place, at in scalars_at(kinds).items()}  # fmt: skip
    assert found == {"origin": 7, "ts_ns": 8}
    assert not is_plain(unpack_block(memoryview(block_of([b""], {"ts_ns": np.array([1])})), 0, KEY).kinds)
    assert not is_plain(unpack_block(memoryview(block_of([b""], {}, Headers.of([None]))), 0, KEY).kinds)


def test_the_file_header_is_read_back_and_padded_to_eight() -> None:
    raw = pack_file_header(HEADER)
    assert len(raw) == HEADER.size
    assert len(raw) % 8 == 0
    assert unpack_file_header(raw + b"blocks") == HEADER


def test_a_damaged_file_header_is_noticed() -> None:
    raw = pack_file_header(HEADER)
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1
        with pytest.raises(Unreadable):
            unpack_file_header(bytes(damaged))
    for size in range(len(raw)):
        with pytest.raises(Unreadable):
            unpack_file_header(raw[:size])


def test_a_newer_version_is_not_reported_as_damage() -> None:
    raw = bytearray(pack_file_header(HEADER))
    raw[4:6] = (FORMAT_VERSION + 1).to_bytes(2, "little")
    with pytest.raises(NewerVersion, match="newer meshbus"):
        unpack_file_header(bytes(raw))


def test_a_block_is_recognized_only_with_the_key_of_its_log() -> None:
    for key in (block_key(bytes(16)), KEY._replace(seed=0), KEY._replace(magic=b"MBBK")):
        with pytest.raises(Unreadable):
            unpack_block(memoryview(block_of([b"abc"], {}, key=key)), 0, KEY)


def test_blocks_of_version_1_have_the_same_key_in_every_log() -> None:
    assert block_key(bytes(16), 1) == block_key(bytes(range(16)), 1) == BlockKey(b"MBBK", 0)
    assert HotHeader("a", bytes(16), 0, 0, version=1).key == BlockKey(b"MBBK", 0)


def test_a_control_block_has_a_record_in_place_of_events() -> None:
    for record in (b"", b"x", b"12345678", bytes(1_000)):
        raw = memoryview(pack_control(7, record, key=KEY, written_ns=5, durable=3))
        header = unpack_block(raw, 0, KEY)
        assert (header.first, header.events, header.durable, header.size) == (7, 0, 3, len(raw))
        assert unpack_control(raw, 0, header) == record
        assert len(raw) % 8 == 0
