"""What members of a replicated channel send is marked in the log of a subscriber, before it is appended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshbus.engine.base.batch import EventBatch, EventColumns
from meshbus.engine.base.counters import Counters
from meshbus.log.files import Files
from meshbus.log.positions import Mark, read_marks
from meshbus.names.channel import ChannelName
from meshbus.node.logs.positionmarks import PositionMarks
from meshbus.wire.messages.reliable import CLOCK_NUMBERS

CHANNEL = ChannelName("alarms")
LOG = b"r" * 16
MEMBERS = (1, 2)


def batch(publisher: int, pub_seq: int | None = 7) -> EventBatch:
    return EventColumns(
        offsets=np.array([0, 1, 2], np.int64),
        data=np.zeros(2, np.uint8),
        publisher=publisher,
        session_id=0,
        stream_id=0,
        channel=CHANNEL,
        origin_hash=publisher + 0xA0,
        packet_seqs=np.zeros(0, np.uint64),
        packet_events=np.zeros(0, np.int64),
        pub_seq=pub_seq,
    )


def made() -> tuple[PositionMarks, Counters]:
    counters = Counters()
    marks = PositionMarks(lambda _channel: LOG, counters)
    marks.members = lambda channel: MEMBERS if channel == CHANNEL else ()
    return marks, counters


def test_each_member_is_marked_from_its_first_event_on(tmp_path: Path) -> None:
    marks, counters = made()
    for publisher, next_seq in ((1, 0), (1, 2), (2, 4), (1, 6)):
        marks.take(CHANNEL, batch(publisher), tmp_path, next_seq)
    expected = (Mark(LOG.hex(), f"{0xA1:016x}"), Mark(LOG.hex(), f"{0xA2:016x}", 4))
    assert read_marks(tmp_path) == expected
    again, _ = made()  # after a restart of the node
    again.take(CHANNEL, batch(1), tmp_path, 8)
    assert read_marks(tmp_path) == expected
    assert counters.get("fail", "log_mark") == 0


@pytest.mark.parametrize("other", [batch(3), batch(1, None), batch(1, CLOCK_NUMBERS)])
def test_other_senders_and_other_numbers_are_not_marked(tmp_path: Path, other: EventBatch) -> None:
    marks, _ = made()
    marks.take(CHANNEL, other, tmp_path, 0)
    assert read_marks(tmp_path) == ()


def test_a_channel_without_an_entry_is_not_marked(tmp_path: Path) -> None:
    PositionMarks(lambda _channel: LOG, Counters()).take(CHANNEL, batch(1), tmp_path, 0)
    assert read_marks(tmp_path) == ()


def test_marks_are_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.log.positions.MAX_MARKS", 1)
    marks, counters = made()
    for publisher in MEMBERS:
        marks.take(CHANNEL, batch(publisher), tmp_path, 0)
    assert len(read_marks(tmp_path)) == 1
    assert counters.get("fail", "log_mark") == 2, "the events that were logged without a mark"


def test_a_disk_that_fails_is_counted_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    marks, counters = made()
    with monkeypatch.context() as broken:
        broken.setattr(Files, "write_aside", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone")))
        marks.take(CHANNEL, batch(1), tmp_path, 0)
    assert counters.get("fail", "log_mark") == 2
    assert "are logged without their position" in caplog.text
    marks.take(CHANNEL, batch(1), tmp_path, 2)
    assert read_marks(tmp_path) == (Mark(LOG.hex(), f"{0xA1:016x}", 2),)
