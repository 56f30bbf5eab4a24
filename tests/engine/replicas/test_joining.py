"""Messages that follow each other do the same as one, and others are not joined."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.replicas.following import Following
from meshbus.engine.replicas.joining import Joined
from meshbus.engine.replicas.journal import Journal, Recovered
from meshbus.engine.replicas.records import Ballot, Out
from meshbus.errors import MalformedPacket
from meshbus.wire.messages.leadership import DATA_HEAD, Data, encode_leadership
from tests.engine.replicas.memorydisk import Content, MemoryDisk
from tests.engine.replicas.single import data

LEADER = 2


def raw(message: Data) -> memoryview:
    return memoryview(encode_leadership(message))


def begun(message: Data) -> Joined:
    return Joined(LEADER, raw(message), message)


def test_what_continues_is_joined_and_knows_what_the_last_message_knew() -> None:
    joined = begun(data(3, 5, 2, b"a", b"b", round_=7, committed=4))
    assert joined.join(LEADER, raw(data(3, 7, 3, b"c", round_=8, committed=5)))
    assert joined.join(LEADER, raw(data(3, 8, 3, b"d", round_=8, committed=6)))
    assert joined.data() == data(3, 5, 2, b"a", b"b", b"c", b"d", round_=8, committed=6)


FIRST = data(3, 5, 3, b"a", b"b")
OTHERS: dict[str, tuple[int, Data]] = {
    "another sender": (9, data(3, 7, 3, b"c")),
    "events are missing": (LEADER, data(3, 8, 3, b"c")),
    "events come again": (LEADER, data(3, 6, 3, b"b")),
    "a heartbeat": (LEADER, data(3, 7, 3)),
    "a later epoch": (LEADER, data(4, 7, 3, b"c", entry=3)),
    "events of a later epoch": (LEADER, data(3, 7, 2, b"c", entry=3)),
    "an answer to a candidate": (LEADER, data(3, 7, 3, b"c", round_=0)),
    "the leader removed events": (LEADER, msgspec.structs.replace(data(3, 7, 3, b"c"), first_retained=2)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_anything_else_is_not_joined(what: str) -> None:
    sender, other = OTHERS[what]
    joined = begun(FIRST)
    assert not joined.join(sender, raw(other))
    assert joined.data() is FIRST


@pytest.mark.parametrize("cut", [1, 3, len(raw(FIRST)) - DATA_HEAD])
def test_a_message_that_continues_these_and_is_cut_off_is_malformed(cut: int) -> None:
    joined = begun(FIRST)
    with pytest.raises(MalformedPacket):
        joined.join(LEADER, raw(data(3, 7, 3, b"c", b"d"))[:-cut])
    assert joined.data() is FIRST


def test_a_message_that_is_shorter_than_a_head_is_not_joined() -> None:
    assert not begun(FIRST).join(LEADER, raw(data(3, 7, 3, b"c"))[: DATA_HEAD - 1])


@given(st.lists(st.integers(1, 3), max_size=6), st.integers(0, 6), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_one_step_leaves_the_same_log(own: list[int], shared: int, sizes: list[int]) -> None:
    epochs, tail = sorted(own), min(shared, len(own))
    prev = epochs[tail - 1] if tail else 0
    messages: list[Data] = []
    for size in sizes:
        first = messages[-1].first_seq + len(messages[-1].payloads) if messages else tail
        payloads = [b"%d" % seq for seq in range(first, first + size)]
        messages.append(data(9, first, 9 if messages else prev, *payloads))
    joined = begun(messages[0])
    assert all(joined.join(LEADER, raw(message)) for message in messages[1:])
    assert play(epochs, messages) == play(epochs, [joined.data()])


def play(epochs: list[int], messages: list[Data]) -> tuple[Content, int]:
    """Take messages over into a log with events of these epochs; return it, and how far it is known to be equal."""
    disk = MemoryDisk()
    disk.content.events = [(epoch, b"own") for epoch in epochs]
    recovered: Recovered = disk.content.recovered()
    following = Following(Journal(recovered, Ballot(incarnation=1, promised=9), disk), 0)
    for message in messages:
        out = Out()
        assert following.accept(message, out) is None
        for write in out.writes:
            disk.content.apply(write)
    return disk.content, following.verified
