from __future__ import annotations

from meshbus.engine.replicas.base import ReplicaSettings, Seat
from meshbus.engine.replicas.journal import Journal, Recovered
from meshbus.engine.replicas.records import Ballot, Out
from meshbus.engine.replicas.serving import chunk, chunks, size_of
from meshbus.wire.messages.leadership import MAX_MESSAGE, MAX_REPLICATED, encode_leadership
from tests.engine.replicas.memorydisk import MemoryDisk


class Cold:
    """A log whose events are not in memory."""

    def read(self, first_seq: int, max_events: int, max_bytes: int) -> tuple[bytes, ...]:
        return ()


def seat(*appends: tuple[int, list[bytes]]) -> Seat:
    journal = Journal(Recovered(), Ballot(incarnation=1, promised=9), MemoryDisk())
    for epoch, payloads in appends:
        journal.append(epoch, payloads, Out())
    return Seat(bytes(32), 1, ReplicaSettings(nodes=(1,)), journal, bytes)


def test_a_message_has_events_of_one_epoch() -> None:
    one = seat((1, [b"a", b"b"]), (3, [b"c"]))
    first = chunk(one, 0, 7, 2)
    assert (first.epoch, first.round, first.committed) == (9, 7, 2)
    assert (first.prev_epoch, first.entry_epoch, first.payloads) == (0, 1, (b"a", b"b"))
    second = chunk(one, 2, 7, 2)
    assert (second.prev_epoch, second.entry_epoch, second.payloads) == (1, 3, (b"c",))


def test_at_the_end_of_the_log_a_message_has_no_events() -> None:
    last = chunk(seat((1, [b"a"]), (3, [])), 1, 7, 0)
    assert (last.first_seq, last.prev_epoch, last.entry_epoch, last.payloads) == (1, 1, 3, ())


def test_every_message_fits_one_packet() -> None:
    payloads = [bytes(MAX_REPLICATED), b"", bytes(MAX_REPLICATED - 3), *[bytes(100)] * 200]
    found = list(chunks(seat((1, payloads)), 0, 0, max_bytes=99_999))
    assert [payload for data in found for payload in data.payloads] == payloads
    assert max(len(encode_leadership(data)) for data in found) == MAX_MESSAGE
    assert found[-1].payloads == (), "the last one has the end of the log"


def test_an_answer_ends_when_it_has_as_many_bytes_as_were_asked_for() -> None:
    one = seat((1, [bytes(5000)] * 9))
    found = list(chunks(one, 0, 0, max_bytes=10_009))
    assert len(found) == 3
    assert sum(map(size_of, found)) >= 10_009 > sum(map(size_of, found[:2]))


def test_events_without_bytes_fill_an_answer_too() -> None:
    one = seat((1, [b""] * 9_999))
    assert sum(map(size_of, chunks(one, 0, 0, max_bytes=8000))) < 16_000


def test_events_that_are_not_in_memory_never_look_like_the_end_of_the_log() -> None:
    found = Recovered(tail=10, runs=((1, 0),))
    one = Seat(bytes(32), 1, ReplicaSettings(nodes=(1,)), Journal(found, Ballot(incarnation=1), Cold()), bytes)
    assert list(chunks(one, 3, 0, max_bytes=9)) == []


def test_what_retention_removed_is_not_served() -> None:
    one = seat((1, [b"a", b"b", b"c"]))
    one.journal.retained(2)
    first = next(chunks(one, 0, 3, max_bytes=9))
    assert (first.first_seq, first.first_retained, first.prev_epoch, first.payloads) == (2, 2, 1, (b"c",))
