"""Reading hot files: every whole block and nothing else, and small blocks as one batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.block import FORMAT_VERSION, Unreadable
from meshbus.log.embedded.hot import HotIndex, open_hot
from meshbus.log.rows import STORED
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
