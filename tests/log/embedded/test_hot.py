"""Reading hot files: every whole block and nothing else, and small blocks as one batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.block import (
    FORMAT_VERSION,
    MAX_SEQ,
    HotHeader,
    Unreadable,
    pack_block,
    pack_cells,
    pack_control,
    pack_file_header,
)
from meshbus.log.embedded.hot import HotIndex, open_hot
from meshbus.log.rows import NULL, STORED, ZERO, pack_payloads
from tests.log.making import in_files, numbered, open_log


def hot_path(root: Path) -> Path:
    (path,) = root.glob("*/_hot/*.hot")
    return path


def scanned(path: Path) -> HotIndex:
    index = open_hot(path)
    assert index.extend() is None
    return index


def test_a_scan_finds_what_the_writer_knows(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 3))
        index = scanned(hot_path(tmp_path))
        log.append(b"more")
        log.append_batch(numbered(4, 5))
        assert index.extend() is None
        (known,) = in_files(log).hot
    assert (index.end, index.size) == (9, hot_path(tmp_path).stat().st_size)
    assert [known.first_of(block) for block in range(known.blocks + 1)] == [0, 3, 4, 9]
    assert [known.place_of(block) for block in range(known.blocks + 1)] == [*index.places, index.size]
    assert [known.block_of(seq) for seq in range(9)] == [0, 0, 0, 1, 2, 2, 2, 2, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.booleans(), st.sampled_from([{}, {"src": 5}, {"headers": {"a": b"1"}}])),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_any_range_of_any_blocks_gives_its_rows(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[tuple[int, bool, dict[str, Any]]], data: st.DataObject
) -> None:
    with open_log(tmp_path_factory.mktemp("log")) as log:
        for count, single, columns in blocks:
            events = numbered(log.next_seq, count)
            for event in events if single else ():
                log.append(event, **columns)
            if not single:
                log.append_batch(events, ts_ns=np.arange(count), **columns)
        (view,) = in_files(log).hot
        start = data.draw(st.integers(0, log.next_seq))
        stop = data.draw(st.integers(0, log.next_seq + 2))
        seen = [
            (rows.first + row, payload, rows.values("src")[0].tolist()[row], rows.headers is not None)  # type: ignore[union-attr]
            for rows in view.rows(start, stop)
            for row, payload in enumerate(rows.payloads(0, len(rows)))
        ]
    said = [columns for count, _, columns in blocks for _ in range(count)]
    expected = [
        (seq, numbered(seq, 1)[0], columns.get("src", 0), "headers" in columns) for seq, columns in enumerate(said)
    ]
    inside = [row for row in expected if start <= row[0] < stop]
    assert [row for row in seen if start <= row[0] < stop] == inside
    assert [row[0] for row in seen] == list(range(seen[0][0], seen[-1][0] + 1)) if seen else not inside


def test_single_appends_are_gathered_into_few_batches(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for number in range(300):
            log.append(b"%d" % number)
        (view,) = in_files(log).hot
        (rows,) = view.rows(0, 300)
    assert list(rows.payloads(0, 300)) == [b"%d" % number for number in range(300)]
    for column in STORED:
        array, _ = rows.values(column.name)
        assert array is None or array.dtype == column.dtype


@pytest.mark.parametrize("cut", [1, 7, 40, 64, 100])
def test_a_cut_tail_is_reported_and_what_is_before_it_stays(tmp_path: Path, cut: int) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 3))
        whole = hot_path(tmp_path).stat().st_size
        log.append_batch([b"x" * 100])
    path = hot_path(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    index = open_hot(path)
    damage = index.extend()
    assert damage is not None
    assert (damage.at, damage.size, damage.claimed) == (whole, len(content) - cut, 0)
    assert index.end == 3


def test_damage_that_a_later_block_calls_synced_is_claimed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 3))
        start = hot_path(tmp_path).stat().st_size
        log.append_batch(numbered(3, 3))
        log.sync()
        log.append(b"after the sync")
    path = hot_path(tmp_path)
    content = bytearray(path.read_bytes())
    content[start + 70] ^= 1
    path.write_bytes(content)
    index = open_hot(path)
    damage = index.extend()
    assert damage is not None
    assert (index.end, damage.claimed) == (3, 6)


def test_a_file_of_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"x")
    path = hot_path(tmp_path)
    content = bytearray(path.read_bytes())
    content[4] = FORMAT_VERSION + 1
    path.write_bytes(content)
    with pytest.raises(LogError, match="newer meshbus") as caught:
        open_hot(path)
    assert caught.value.fault is LogFault.NEWER
    path.write_bytes(b"no hot file")
    with pytest.raises(Unreadable):
        open_hot(path)


def test_blocks_out_of_sequence_are_not_read(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"x")
        path = hot_path(tmp_path)
        block = path.read_bytes()[in_files(log).hot[0].place_of(0) :]
    path.write_bytes(path.read_bytes() + block)
    index = open_hot(path)
    damage = index.extend()
    assert damage is not None
    assert "instead of 1" in damage.why
    assert index.end == 1


def test_a_control_block_without_a_record_is_damage(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"x")
        path = hot_path(tmp_path)
    key = open_hot(path).header.key
    path.write_bytes(path.read_bytes() + pack_control(1, b"no record", key=key, written_ns=1, durable=0))
    index = open_hot(path)
    damage = index.extend()
    assert damage is not None
    assert "no record" in damage.why
    assert (index.end, index.controls) == (1, [])


def test_a_single_event_whose_size_is_wrong_is_damage(tmp_path: Path) -> None:
    """Single events are read without looking at each; one that claims more bytes than its block has is not among them."""
    with open_log(tmp_path) as log:
        for number in range(3):
            log.append(b"event %d" % number)
        path, places = hot_path(tmp_path), [in_files(log).hot[0].place_of(block) for block in range(4)]
    whole = bytearray(path.read_bytes())
    for damaged in range(3):
        at, end = places[damaged : damaged + 2]
        changed = bytearray(whole)
        changed[at + 44 : at + 48] = (200).to_bytes(4, "little")
        key = open_hot(path).header.key
        changed[at + 8 : at + 16] = xxhash.xxh3_64_intdigest(changed[at + 16 : end], key.seed).to_bytes(8, "little")
        path.write_bytes(changed)
        with pytest.raises(LogError, match="add up"):
            list(scanned(path).view().rows(0, 3))


def test_blocks_end_within_the_sequences(tmp_path: Path) -> None:
    path, header = tmp_path / "a.hot", HotHeader("sensors/lidar", bytes(16), MAX_SEQ - 1, 1)
    offsets, data = pack_payloads([b"x", b"y"])
    form = pack_cells([NULL if column.nullable else ZERO for column in STORED])
    parts = pack_block(
        MAX_SEQ - 1,
        2,
        form,
        offsets.astype(np.int32).view(np.uint8).data,
        data,
        key=header.key,
        written_ns=1,
        durable=0,
    )
    path.write_bytes(pack_file_header(header) + b"".join(parts))
    damage = open_hot(path).extend()
    assert damage is not None
    assert "behind the last sequence" in damage.why


def test_a_view_may_end_inside_a_block(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for first in range(0, 9, 3):
            log.append_batch(numbered(first, 3))
        (path,) = tmp_path.glob("*/_hot/*.hot")
        index = open_hot(path)
        index.extend()
        for limit in range(10):
            view = index.view(limit)
            assert (view.end, view.blocks) == (limit, -(-limit // 3))
            assert view.place_of(view.blocks) == ([*index.places, index.size][view.blocks])
            assert sum(len(rows) for rows in view.rows(0, 9)) >= limit


def test_a_file_whose_end_was_replaced_does_not_grow_and_views_keep_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 3))
        log.append_batch(numbered(3, 3))
        (path,) = tmp_path.glob("*/_hot/*.hot")
        index = open_hot(path)
        index.extend()
        before = index.view()
        index.cut(4)
        log.append(b"more")
        assert index.extend() is None
        assert (index.end, index.view().end, index.view().blocks) == (4, 4, 2)
        index.cut(3)
        assert (index.view().end, index.view().blocks) == (3, 1)
        assert (before.end, before.blocks, before.first_of(1)) == (6, 2, 3)
