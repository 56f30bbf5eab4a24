from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.replicas.following import Contradiction, Following
from meshbus.engine.replicas.journal import Journal
from meshbus.engine.replicas.records import Ballot, Diverged, Gap, Out
from meshbus.wire.messages.leadership import Data
from tests.engine.replicas.memorydisk import MemoryDisk


class Replica:
    """A follower with a disk that writes at once."""

    def __init__(self, *epochs: int, committed: int = 0) -> None:
        self.disk = MemoryDisk()
        self.journal = Journal(self.disk.content.recovered(), Ballot(incarnation=1), self.disk)
        for seq, epoch in enumerate(epochs):
            self.write(lambda out, seq=seq, epoch=epoch: self.journal.append(epoch, [b"%d.%d" % (epoch, seq)], out))
        self.follow = Following(self.journal, committed)

    def write(self, step: object) -> Out:
        out = Out()
        step(out)  # type: ignore[operator]
        for write in out.writes:
            self.disk.write(write)
        return out

    def accept(self, data: Data) -> tuple[int | None, Out]:
        wanted: list[int | None] = []
        out = self.write(lambda out: wanted.append(self.follow.accept(data, out)))
        return wanted[0], out

    @property
    def epochs(self) -> list[int]:
        return [epoch for epoch, _ in self.disk.content.events]


def data(
    first: int, prev: int, entry: int, count: int, *, epoch: int = 9, committed: int = 0, retained: int = 0
) -> Data:
    return Data(
        channel_id=bytes(32),
        epoch=epoch,
        round=1,
        prev_epoch=prev,
        entry_epoch=entry,
        committed=committed,
        first_retained=retained,
        first_seq=first,
        payloads=tuple(b"%d.%d" % (entry, seq) for seq in range(first, first + count)),
    )


def test_events_behind_an_equal_one_are_taken_over() -> None:
    one = Replica(1, 1)
    assert one.accept(data(2, 1, 3, 2, committed=4))[0] is None
    assert one.epochs == [1, 1, 3, 3]
    assert (one.follow.verified, one.follow.committed, one.follow.round) == (4, 4, 1)


def test_events_that_come_again_change_nothing() -> None:
    one = Replica(1, 1, 3, 3)
    for message in (data(1, 1, 1, 1), data(2, 1, 3, 1), data(2, 1, 3, 2)):
        wanted, out = one.accept(message)
        assert (wanted, out.writes) == (None, [])
    assert one.epochs == [1, 1, 3, 3]


def test_the_commit_of_a_leader_counts_as_far_as_the_logs_are_known_to_be_equal() -> None:
    one = Replica(1, 1, 2, 2)
    one.accept(data(1, 1, 1, 1, committed=4))
    assert one.follow.committed == 2


def test_missing_events_are_asked_for() -> None:
    one = Replica(1, 1)
    wanted, out = one.accept(data(5, 1, 9, 2))
    assert (wanted, out.writes) == (2, [])


def test_a_different_event_before_leads_back_by_one_epoch() -> None:
    one = Replica(1, 1, 2, 2, 2)
    assert one.accept(data(5, 3, 9, 1))[0] == 2
    assert one.accept(data(2, 1, 3, 3))[0] is None
    assert one.epochs == [1, 1, 3, 3, 3]


def test_events_that_the_leader_does_not_have_are_set_aside_and_reported() -> None:
    one = Replica(1, 1, 2, 2)
    wanted, out = one.accept(data(2, 1, 9, 1))
    assert wanted is None
    assert out.notices == [Diverged(2, 2, 2)]
    assert one.epochs == [1, 1, 9]
    assert one.disk.content.aside == [(2, 2, b"2.2"), (3, 2, b"2.3")]


def test_the_start_of_an_epoch_sets_aside_what_is_behind_it_and_is_stored() -> None:
    one = Replica(1, 1, 2)
    assert one.accept(data(2, 1, 9, 0))[0] is None
    assert one.epochs == [1, 1]
    assert one.journal.runs.last_epoch == 9
    assert one.disk.content.started == 9


def test_an_old_event_at_the_end_of_a_message_says_nothing_about_what_follows() -> None:
    one = Replica(1, 1, 2)
    one.accept(data(0, 0, 1, 2))
    assert one.epochs == [1, 1, 2], "the leader may have the event of epoch 2 as well"


def test_committed_events_are_never_set_aside() -> None:
    one = Replica(1, 1, 2, committed=3)
    for message in (data(2, 1, 9, 0), data(2, 1, 9, 1), data(1, 1, 3, 2)):
        with pytest.raises(Contradiction, match="everything below 3 is committed"):
            one.accept(message)


def test_a_leader_without_the_old_events_leaves_a_gap() -> None:
    one = Replica(1, 1, 2, committed=2)
    wanted, out = one.accept(data(50, 8, 9, 2, retained=50))
    assert wanted is None
    assert out.notices == [Diverged(2, 1, 2), Gap(2, 50)]
    content = one.disk.content
    assert (content.first, content.tail, content.gaps) == (50, 52, [(2, 50)])
    assert one.accept(data(52, 9, 9, 1, retained=50))[0] is None


def test_events_that_differ_before_the_first_one_of_the_leader_are_set_aside() -> None:
    one = Replica(1, 2, 2, 2, committed=1)
    wanted, out = one.accept(data(3, 5, 9, 1, retained=3))
    assert wanted is None, "asking for earlier events would bring the same again"
    assert out.notices == [Diverged(1, 3, 2), Gap(1, 3)]
    assert (one.disk.content.first, one.epochs) == (3, [9])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs that can exist together: every epoch goes on from a prefix of an earlier one's log, and adds to it."""
    logs: list[list[int]] = [[]]
    for epoch in range(1, draw(st.integers(2, 7))):
        parent = draw(st.sampled_from(logs))
        logs.append(parent[: draw(st.integers(0, len(parent)))] + [epoch] * draw(st.integers(0, 4)))
    own, leaders = draw(st.sampled_from(logs)), draw(st.sampled_from(logs))
    return own[: draw(st.integers(0, len(own)))], leaders


@given(histories(), st.integers(1, 4))
def test_any_log_becomes_equal_to_the_leaders(logs: tuple[list[int], list[int]], size: int) -> None:
    own, leaders = logs
    one, source = Replica(*own), Replica(*leaders)
    first, steps = len(leaders), 0
    while True:
        steps += 1
        assert steps < 100, "it takes a step per epoch and message"
        end = first
        while end < min(len(leaders), first + size) and leaders[end] == leaders[first]:
            end += 1
        entry = leaders[first] if first < len(leaders) else 9
        wanted, _ = one.accept(data(first, leaders[first - 1] if first else 0, entry, end - first))
        if wanted is None and first == len(leaders):
            break
        first = end if wanted is None else wanted
    assert one.disk.content.events == source.disk.content.events
    kept = one.disk.content.events + [(epoch, payload) for _, epoch, payload in one.disk.content.aside]
    assert {(epoch, b"%d.%d" % (epoch, seq)) for seq, epoch in enumerate(own)} <= set(kept), "nothing is deleted"
