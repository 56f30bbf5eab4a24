"""The mark of a replica: the newest whole slot holds, and it tells nothing of what was written after it."""

from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.block import HotHeader
from meshbus.log.embedded.hot import HotIndex
from meshbus.log.embedded.marks import Mark, MarkFile, Point, committed_end, end_of, read_mark
from meshbus.log.files import Files
from meshbus.log.folder import MARK, hot_name


def hot_file(turn: int, first: int, end: int, size: int = 100) -> HotIndex:
    index = HotIndex(Path(hot_name(first, turn)), HotHeader("a", bytes(16), first, 0))
    index.end, index.size = end, size
    return index


def test_the_newest_mark_is_found_again(tmp_path: Path) -> None:
    assert read_mark(tmp_path) == Mark()
    for number in range(1, 5):
        marks = MarkFile(Files(), tmp_path)
        marks.put(number, Point(1, 2, 3))
        marks.close()
        marks.close()
        marks.put(99, Point())
        assert read_mark(tmp_path) == Mark(number, number, Point(1, 2, 3))


def test_a_damaged_slot_leaves_the_mark_before_it(tmp_path: Path) -> None:
    marks = MarkFile(Files(), tmp_path)
    for number in (1, 2, 3):
        marks.put(10 * number, Point(size=number))
    marks.close()
    whole = (tmp_path / MARK).read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 4
        (tmp_path / MARK).write_bytes(changed)
        assert read_mark(tmp_path).committed in {20, 30}
    for size in range(len(whole)):
        (tmp_path / MARK).write_bytes(whole[:size])
        assert read_mark(tmp_path).committed in {0, 20, 30}


def test_places_compare_in_the_order_of_writing() -> None:
    assert end_of([]) == Point()
    ends = [end_of([hot_file(*place)]) for place in ((0, 0, 9, 200), (0, 9, 9, 90), (1, 3, 9, 90), (1, 3, 9, 100))]
    assert ends == sorted(ends)


def test_readers_see_what_is_committed_and_there() -> None:
    hot = [hot_file(0, 10, 20), hot_file(0, 20, 30, 500)]
    assert committed_end(Mark(1, 25, Point(0, 20, 400)), hot, 10) == 25
    assert committed_end(Mark(1, 99, Point(0, 20, 500)), hot, 10) == 30
    assert committed_end(Mark(1, 5, Point(0, 20, 500)), hot, 10) == 10, "what is sealed is committed"
    assert committed_end(Mark(1, 25, Point(0, 20, 501)), hot, 10) == 10, "something is lost"
    assert committed_end(Mark(), [], 7) == 7


def test_a_mark_tells_nothing_of_later_turns() -> None:
    hot = [hot_file(0, 10, 14), hot_file(3, 14, 30)]
    assert committed_end(Mark(1, 25, Point(0, 20, 400)), hot, 10) == 14
    assert committed_end(Mark(2, 25, Point(3, 14, 100)), hot, 10) == 25


def test_a_mark_that_cannot_be_read_is_not_a_log_without_a_mark(tmp_path: Path) -> None:
    assert read_mark(tmp_path) == Mark()
    (tmp_path / MARK).mkdir()  # as a disk that fails, or a process without handles
    with pytest.raises(OSError, match="directory"):
        read_mark(tmp_path)


def test_a_newer_mark_is_refused_and_not_taken_for_none(tmp_path: Path) -> None:
    marks = MarkFile(Files(), tmp_path)
    marks.put(10, Point())
    marks.close()
    content = bytearray((tmp_path / MARK).read_bytes())
    content[-52], content[-48] = 2, content[-48] ^ 1  # another version, with a checksum of its own
    (tmp_path / MARK).write_bytes(content)
    with pytest.raises(LogError, match="mark of a replica, version 2, was written by a newer meshbus") as caught:
        MarkFile(Files(), tmp_path)
    assert caught.value.fault is LogFault.NEWER
    assert (tmp_path / MARK).read_bytes() == content
