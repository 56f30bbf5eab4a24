"""Reading the log of a publisher that may send anything: only complete events in order are delivered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshbus.engine.base.notices import HistoryCaughtUp, HistoryEnded, HistoryFault, HistoryGap, HistoryOpened
from meshbus.engine.channels.history_client import MAX_DISORDERS, MAX_READINGS, RETRY_S
from meshbus.errors import LocalProtocolError, PeerError
from meshbus.names.channel import ChannelName
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import columns_of
from meshbus.wire.messages.history import (
    MAX_SEQ,
    Cancel,
    Chunk,
    ChunkFlags,
    Error,
    ErrorCode,
    HistoryMessage,
    Read,
    ReadFlags,
    decode_history,
    encode_history,
    history_stream,
    split_chunks,
)
from tests.engine.archive import numbers, read
from tests.engine.fleet import CHANNEL, Wiretap, numbered, pair

CONTINUES = ChunkFlags.CONTINUES


class Stage:
    """A reader, and a publisher whose answers are written by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.net, self.publisher, self.reader = pair()
        self.asked: list[Read] = []
        self.canceled: list[int] = []
        monkeypatch.setattr(self.publisher.engine.history, "receive", self._hear)

    def _hear(self, _peer: object, message: memoryview, _now: float, _out: object) -> None:
        decoded = decode_history(message)
        if isinstance(decoded, Read):
            self.asked.append(decoded)
        elif isinstance(decoded, Cancel):
            self.canceled.append(decoded.req)

    def read(self, since: int = 0, **options: Any) -> int:
        reading = read(self.reader, self.publisher, since, **options)
        self.net.run(for_s=0.1)
        return reading

    def answer(self, *messages: HistoryMessage) -> None:
        """Send messages as the publisher would."""
        with self.publisher.turn() as (engine, now, out):
            peer = engine.peers.require(self.reader.node_id)
            for message in messages:
                engine.streams.send_reliable(peer, Subprotocol.HISTORY, encode_history(message), now, out)
        self.net.run(for_s=0.1)

    def chunk(self, first_seq: int, events: list[bytes], flags: int = 0, first_available: int = 0) -> Chunk:
        """Make a chunk for the last question."""
        times = np.arange(len(events))
        made = split_chunks(self.asked[-1].req, first_seq, *columns_of(events), times, first_available=first_available)
        (chunk,) = made
        return Chunk(
            req=chunk.req,
            flags=ChunkFlags(flags),
            first_available=first_available,
            first_seq=first_seq,
            stamps=chunk.stamps,
            sizes=chunk.sizes,
            data=chunk.data,
        )

    def drops(self, why: str) -> int:
        return self.reader.engine.counters.get("drop", why)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_the_fields_of_a_read_request(stage: Stage) -> None:
    stage.read(7, token=b"token", from_first=True, follow=False)
    (question,) = stage.asked
    assert (question.channel, question.since, question.token) == (CHANNEL, 7, b"token")
    assert question.flags == ReadFlags.FROM_FIRST
    assert question.max_bytes > 0


def test_each_reading_has_its_own_stream(stage: Stage) -> None:
    tap = Wiretap(stage.net)
    stage.read()
    streams = {header.stream_id for header in tap.headers() if header.subprotocol_id == Subprotocol.HISTORY}
    assert streams == {history_stream(stage.asked[0].req)}


def test_pieces_of_an_event_become_one(stage: Stage) -> None:
    stage.read()
    stage.answer(
        stage.chunk(0, [b"whole", b"be"], CONTINUES),
        stage.chunk(1, [b"gin"], CONTINUES),
        stage.chunk(1, [b"ning", b"next", b"la"], CONTINUES),
        stage.chunk(3, [b"st"], ChunkFlags.CAUGHT_UP),
    )
    assert stage.reader.payloads() == [b"whole", b"beginning", b"next", b"last"]
    assert numbers(stage.reader) == [0, 1, 2, 3]
    assert [event.ts_ns for batch in stage.reader.events for event in batch] == [0, 0, 1, 0]
    assert [caught.next_seq for caught in stage.reader.happened(HistoryCaughtUp)] == [4]


def test_opened_and_caught_up_are_reported_once(stage: Stage) -> None:
    reading = stage.read()
    for n in range(3):
        stage.answer(stage.chunk(n, [b"x"], ChunkFlags.CAUGHT_UP))
    assert [opened.reading for opened in stage.reader.happened(HistoryOpened)] == [reading]
    assert len(stage.reader.happened(HistoryCaughtUp)) == 1


@pytest.mark.parametrize(
    ("first_seq", "events", "flags"),
    [
        (1, [b"x"], 0),  # a hole without a word
        (2, [], 0),
        (0, [b"x"], ChunkFlags.GAP),  # a gap without a hole
    ],
)
def test_a_gap_in_the_sequence_is_requested_again(
    stage: Stage, first_seq: int, events: list[bytes], flags: ChunkFlags
) -> None:
    stage.read()
    stage.answer(stage.chunk(first_seq, events, flags))
    assert stage.reader.received == 0
    assert stage.drops("history_disorder") == 1
    stage.net.run(for_s=RETRY_S)
    assert [question.since for question in stage.asked] == [0, 0]
    assert stage.canceled == [stage.asked[0].req]
    stage.answer(stage.chunk(0, numbered(3)))
    assert numbers(stage.reader) == [0, 1, 2]
    assert stage.reader.happened(HistoryEnded) == []


def test_going_back_is_disorder_too(stage: Stage) -> None:
    stage.read()
    stage.answer(stage.chunk(0, numbered(3)), stage.chunk(1, numbered(3)))
    assert numbers(stage.reader) == [0, 1, 2]
    assert stage.drops("history_disorder") == 3
    stage.net.run(for_s=RETRY_S)
    assert stage.asked[-1].since == 3


@pytest.mark.parametrize("flags", [ChunkFlags.GAP, ChunkFlags.NONE])
def test_an_incomplete_event_is_not_delivered(stage: Stage, flags: ChunkFlags) -> None:
    stage.read()
    broken = stage.chunk(5, [b"x"], flags) if flags else stage.chunk(0, [])
    stage.answer(stage.chunk(0, [b"half"], CONTINUES), broken)
    assert stage.reader.received == 0
    stage.net.run(for_s=RETRY_S)
    stage.answer(stage.chunk(0, [b"whole"]))
    assert stage.reader.payloads() == [b"whole"]


def test_a_reading_fails_if_the_publisher_only_sends_out_of_order(stage: Stage) -> None:
    stage.read()
    for _ in range(MAX_DISORDERS):
        stage.answer(stage.chunk(7, [b"x"]))
        stage.net.run(for_s=RETRY_S)
    (ended,) = stage.reader.happened(HistoryEnded)
    assert ended.fault is HistoryFault.BROKEN
    assert len(stage.asked) == MAX_DISORDERS
    assert len(stage.reader.engine.replays) == 0


def test_a_reading_fails_at_an_event_without_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.engine.channels.history_client.MAX_EVENT_BYTES", 10_000)
    stage.read()
    stage.answer(*[stage.chunk(0, [bytes(4000)], CONTINUES) for _ in range(3)])
    (ended,) = stage.reader.happened(HistoryEnded)
    assert ended.fault is HistoryFault.BROKEN


def test_a_gap_is_reported_and_skipped(stage: Stage) -> None:
    reading = stage.read(10)
    stage.answer(
        stage.chunk(10, [b"ten"]), stage.chunk(20, [b"twenty"], ChunkFlags.GAP, 20), stage.chunk(30, [], ChunkFlags.GAP)
    )
    assert numbers(stage.reader) == [10, 20]
    told = (reading, stage.publisher.node_id, ChannelName(CHANNEL))
    assert stage.reader.happened(HistoryGap) == [HistoryGap(*told, 11, 20), HistoryGap(*told, 21, 30)]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (ErrorCode.UNKNOWN_CHANNEL, HistoryFault.UNKNOWN_CHANNEL),
        (ErrorCode.DENIED, HistoryFault.DENIED),
        (ErrorCode.RANGE_GONE, HistoryFault.RANGE_GONE),
        (ErrorCode.BUSY, HistoryFault.BUSY),
    ],
)
def test_a_refusal_ends_the_reading(stage: Stage, code: ErrorCode, fault: HistoryFault) -> None:
    stage.read()
    stage.answer(Error(req=stage.asked[0].req, code=code, first_available=9))
    (ended,) = stage.reader.happened(HistoryEnded)
    assert (ended.fault, ended.first_available) == (fault, 9)
    stage.net.run(for_s=60)
    assert len(stage.asked) == 1


@pytest.mark.parametrize("code", [ErrorCode.BUSY, ErrorCode.CLOSED])
def test_an_open_reading_asks_again_after_a_temporary_error(stage: Stage, code: ErrorCode) -> None:
    stage.read()
    stage.answer(stage.chunk(0, [b"x"]), Error(req=stage.asked[0].req, code=code))
    stage.net.run(for_s=RETRY_S)
    assert [question.since for question in stage.asked] == [0, 1]
    assert ReadFlags.FROM_FIRST in stage.asked[1].flags  # what went meanwhile is a gap, not the end
    assert ReadFlags.FROM_FIRST not in stage.asked[0].flags


def test_pages_without_a_reading_are_canceled_once_a_second(stage: Stage) -> None:
    stage.read()
    stray = Chunk(req=99, first_available=0, first_seq=0)
    stage.answer(stray, stray, stray)
    assert stage.canceled == [99]
    stage.net.run(for_s=RETRY_S)
    stage.answer(stray)
    assert stage.canceled == [99, 99]
    assert stage.drops("history_stray") == 4
    assert stage.reader.received == 0


def test_an_answer_of_another_peer_is_ignored() -> None:
    net = FakeNet(5)
    nodes: list[FakeNode] = [net.create(name) for name in ("publisher", "reader", "liar")]
    publisher, reader, liar = nodes
    for other in (publisher, liar):
        reader.connect(other)
        net.run_until(lambda other=other: reader.speaks_profile_with(other))  # type: ignore[misc]
    read(reader, publisher)
    net.run(for_s=0.1)
    req = next(iter(publisher.engine.history._readers[reader.node_id]))
    with liar.turn() as (engine, now, out):
        peer = engine.peers.require(reader.node_id)
        for message in (
            Chunk(req=req, first_available=0, first_seq=0, stamps=bytes(8), sizes=bytes(4)),
            Error(req=req, code=ErrorCode.DENIED),
        ):
            engine.streams.send_reliable(peer, Subprotocol.HISTORY, encode_history(message), now, out)
    net.run(for_s=0.5)
    assert reader.received == 0
    assert reader.happened(HistoryEnded) == []
    drops = reader.engine.counters.snapshot()["drop"]
    assert (drops[Reason.HISTORY_STRAY.why], drops[Reason.HISTORY_LATE.why]) == (1, 1)


def test_invalid_arguments_are_refused_before_a_message_is_sent(stage: Stage) -> None:
    for since in (-1, MAX_SEQ + 1):
        with pytest.raises(LocalProtocolError, match="since must be in"):
            stage.read(since)
    for _ in range(MAX_READINGS):
        read(stage.reader, stage.publisher)
    with pytest.raises(LocalProtocolError, match="close some"):
        stage.read()


def test_history_of_a_plain_peer_cannot_be_requested() -> None:
    net, plain, reader = pair(left={"profile": False})
    with pytest.raises(PeerError, match="cannot serve history"):
        read(reader, plain)
    assert net.clock.now > 0
