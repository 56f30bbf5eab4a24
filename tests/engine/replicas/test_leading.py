from __future__ import annotations

import msgspec
import pytest

from meshbus.engine.replicas import pacing
from meshbus.engine.replicas.records import (
    Acknowledged,
    Acks,
    Committed,
    ConfigChanged,
    LeftBehind,
    Newcomer,
    Out,
    ReadReady,
    Refusal,
    Refused,
    Resumed,
    Unresolved,
)
from meshbus.wire.messages.leadership import MAX_REPLICATED, Configure, Data, Fetch, Member, Promise, Stored
from tests.engine.replicas.single import ID, Single, propose, stored


@pytest.fixture
def one() -> Single:
    """A leader of epoch 2 whose own start is on disk."""
    leader = Single()
    leader.lead()
    leader.sync()
    return leader


def append(one: Single, *payloads: bytes, token: int = 1, acks: Acks = Acks.MAJORITY) -> Out:
    return one.play(one.core.append(token, payloads, acks, one.now))


def test_events_are_sent_before_the_own_disk_has_them(one: Single) -> None:
    one.receive(2, stored(2, 0))
    append(one, b"a", b"b")
    assert [found.payloads for found in one.sent(Data)] == [(b"a", b"b"), (b"a", b"b")]


def test_an_append_is_acknowledged_when_a_majority_has_it_on_disk(one: Single) -> None:
    one.receive(2, stored(2, 0))
    append(one, b"a", token=7)
    one.receive(2, stored(2, 1))
    assert one.noticed(Acknowledged) == [], "one of three: the own disk does not have it"
    one.sync()
    assert one.noticed(Committed) == [Committed(1)]
    assert one.noticed(Acknowledged) == [Acknowledged(7, 0, 1, Acks.MAJORITY, True)]


def test_the_own_disk_alone_acknowledges_local_appends_only(one: Single) -> None:
    one.receive(2, stored(2, 0))
    append(one, b"a", token=7)
    append(one, b"b", token=8, acks=Acks.LOCAL)
    one.sync()
    assert [notice.token for notice in one.noticed(Acknowledged)] == [8]
    one.receive(2, stored(2, 2))
    assert [notice.token for notice in one.noticed(Acknowledged)] == [7]


def test_events_of_earlier_epochs_are_committed_with_the_start_of_the_own_one() -> None:
    one = Single(epochs=(1, 1))
    one.lead()
    one.sync()
    one.receive(2, stored(2, 2, last_epoch=1))
    assert one.noticed(Committed) == [], "copies of old events prove nothing"
    one.receive(2, stored(2, 2))
    assert one.noticed(Committed) == [Committed(2)]


def test_a_member_with_another_memory_does_not_count(one: Single) -> None:
    one.receive(3, stored(2, 0, node=3))
    append(one, b"a")
    one.sync()
    one.receive(2, stored(2, 1, incarnation=99))
    assert one.noticed(Newcomer) == [Newcomer(Member(2, 99))]
    assert one.noticed(Acknowledged) == []
    one.receive(2, stored(2, 1, incarnation=12))
    assert len(one.noticed(Acknowledged)) == 1


def test_without_a_majority_majority_appends_are_refused_and_local_ones_are_marked(one: Single) -> None:
    one.receive(2, stored(2, 0, round_=1))
    one.now += 2
    append(one, b"a", token=7)
    assert one.noticed(Refused) == [Refused(7, Refusal.NO_MAJORITY)]
    append(one, b"b", token=8, acks=Acks.LOCAL)
    one.sync()
    assert one.noticed(Acknowledged) == [Acknowledged(8, 0, 1, Acks.LOCAL, False)]
    assert one.core.seat.counters.get("refuse", "replica_append") == 1


def test_the_lease_ends_before_another_leader_can_be_elected(one: Single) -> None:
    one.receive(2, stored(2, 0, round_=1))
    lead = one.core.lead
    assert lead is not None
    sent_at = one.now
    # A follower that answered waits three periods from then on; it heard the leader after this was sent.
    assert not lead.fenced(sent_at + 1.99)
    assert lead.fenced(sent_at + 2)
    one.tick()
    one.receive(2, stored(2, 0, round_=1))
    assert lead.fenced(sent_at + 2), "an answer to an old round renews nothing"
    one.receive(2, stored(2, 0, round_=2))
    assert not lead.fenced(sent_at + 2)


def test_a_fenced_leader_lets_others_campaign(one: Single) -> None:
    one.receive(2, stored(2, 0))
    one.receive(3, propose(5, 3, trial=True))
    assert one.sent(Stored) == []
    one.now += 5
    one.receive(3, propose(5, 3, trial=True))
    assert [(found.epoch, found.trial) for found in one.sent(Promise)] == [(5, True)]


def test_a_read_waits_for_a_majority_that_still_follows(one: Single) -> None:
    one.receive(2, stored(2, 0))
    one.play(one.core.read(5, one.now))
    rounds = {found.round for found in one.sent(Data)}
    assert one.noticed(ReadReady) == []
    one.receive(2, stored(2, 0, round_=min(rounds) - 1))
    assert one.noticed(ReadReady) == []
    one.receive(3, stored(2, 0, node=3, round_=max(rounds)))
    assert one.noticed(ReadReady) == [ReadReady(5, 0)]


def test_a_new_leader_answers_reads_only_after_its_start_is_at_a_majority(one: Single) -> None:
    one.play(one.core.read(5, one.now))
    one.receive(2, stored(2, 0, round_=9, last_epoch=0))
    assert one.noticed(ReadReady) == []
    one.receive(2, stored(2, 0, round_=9))
    assert one.noticed(ReadReady) == [ReadReady(5, 0)]


def test_what_waits_is_bounded(one: Single) -> None:
    one.receive(2, stored(2, 0))
    append(one, *[b""] * 10)
    append(one, b"", token=2)
    assert one.noticed(Refused) == [Refused(2, Refusal.BACKPRESSURE)]
    for token in range(1025):
        one.play(one.core.read(token, one.now))
    assert one.noticed(Refused) == [Refused(1024, Refusal.BACKPRESSURE)]


def test_a_payload_that_fits_no_packet_is_refused(one: Single) -> None:
    one.receive(2, stored(2, 0))
    append(one, b"ok", bytes(MAX_REPLICATED + 1))
    assert one.noticed(Refused) == [Refused(1, Refusal.TOO_LARGE)]
    append(one, bytes(MAX_REPLICATED))
    assert one.noticed(Refused) == []


def test_a_deposed_leader_says_what_it_does_not_know(one: Single) -> None:
    one.receive(2, stored(2, 0))
    append(one, b"a", b"b", token=7)
    one.core.read(8, one.now)
    one.receive(3, propose(5, 3))
    assert one.noticed(Unresolved) == [Unresolved(7, 0, 2)]
    assert one.noticed(Refused) == [Refused(8, Refusal.NOT_LEADER)]
    append(one, b"c")
    assert one.noticed(Refused) == [Refused(1, Refusal.NOT_LEADER)]


def test_a_follower_is_sent_what_it_asks_for_within_its_window(one: Single) -> None:
    one.receive(2, stored(2, 0))
    append(one, *[bytes(100)] * 9)
    one.receive(2, Fetch(channel_id=ID, epoch=2, first=4, max_bytes=0))
    assert [(found.first_seq, len(found.payloads)) for found in one.sent(Data)] == [(4, 5)]
    one.receive(2, stored(2, 99))
    assert one.core.seat.counters.get("drop", "replica_unexpected") == 1


def test_members_change_one_at_a_time(one: Single) -> None:
    one.play(one.core.remove(1, 3, one.now))
    assert one.noticed(Refused) == [Refused(1, Refusal.CHANGING)], "the epoch has not started at a majority"
    one.receive(2, stored(2, 0))
    assert len(one.noticed(ConfigChanged)) == 1
    one.play(one.core.remove(1, 3, one.now))
    assert {send.to for send in one.out.sends if isinstance(send.message, Configure)} == {2, 3}
    one.play(one.core.remove(2, 2, one.now))
    assert one.noticed(Refused) == [Refused(2, Refusal.CHANGING)]
    one.sync()
    one.receive(2, msgspec.structs.replace(stored(2, 0), config_version=2))
    (changed,) = one.noticed(ConfigChanged)
    assert [member.node for member in changed.config.members] == [1, 2]


def test_a_message_that_is_sent_to_another_member_too_tells_what_is_retained_now(one: Single) -> None:
    events = [bytes(3000)] * 8  # two in each packet
    for node in (2, 3):
        one.receive(node, stored(2, 0, node=node))
    append(one, *events)
    one.sync()
    one.receive(2, stored(2, 8))
    shared = {id(found) for found in one.sent(Data)}
    one.core.retained(2)
    one.receive(3, Fetch(channel_id=ID, epoch=2, first=0, max_bytes=9000))
    found = one.sent(Data)
    assert [(data.first_seq, data.first_retained) for data in found] == [(2, 2)]
    one.receive(3, Fetch(channel_id=ID, epoch=2, first=2, max_bytes=9000))
    assert one.sent(Data)[0] is found[0], "made once"
    assert not shared & {id(data) for data in found}


def test_appends_wait_for_a_live_follower_that_lacks_too_much(one: Single, monkeypatch: pytest.MonkeyPatch) -> None:
    lag(one, monkeypatch)
    append(one, b"x", token=9)
    assert one.noticed(Refused) == [Refused(9, Refusal.BEHIND)]
    one.receive(3, stored(2, 1, node=3))
    assert one.noticed(Resumed) == [Resumed()]
    append(one, b"x", token=10)
    assert one.noticed(Refused) == []


def test_a_follower_that_is_too_slow_is_left_behind(one: Single, monkeypatch: pytest.MonkeyPatch) -> None:
    lag(one, monkeypatch)
    append(one, b"x", token=9)
    began, left = one.now, False
    while not left:
        one.tick()
        left = one.noticed(LeftBehind) == [LeftBehind(3)]
        assert left == (one.noticed(Resumed) == [Resumed()])
        for node in (2, 3):
            one.receive(node, stored(2, 4 if node == 2 else 0, node=node, round_=one.core.lead._round))  # type: ignore[union-attr]
        assert one.now - began <= 4
    assert one.now - began >= 3
    append(one, b"x", token=10)
    assert one.noticed(Refused) == [], "it catches up on its own"
    one.receive(3, stored(2, 5, node=3))
    for token in range(11, 15):
        append(one, bytes(3000), token=token)
    one.sync()
    one.receive(2, stored(2, 9))
    append(one, b"x", token=15)
    assert one.noticed(Refused) == [Refused(15, Refusal.BEHIND)], "in step again"


def test_nobody_waits_for_a_follower_that_is_not_heard(one: Single, monkeypatch: pytest.MonkeyPatch) -> None:
    lag(one, monkeypatch)
    one.now += 3
    one.receive(2, stored(2, 4, round_=one.core.lead._round))  # type: ignore[union-attr]
    append(one, b"x", token=9, acks=Acks.LOCAL)
    assert one.noticed(Refused) == []


def lag(one: Single, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a majority have four events, and member 3, which was in step, none of them."""
    monkeypatch.setattr(pacing, "PACE_BYTES", 10_000)
    for node in (2, 3):
        one.receive(node, stored(2, 0, node=node))
    for token in range(1, 5):
        append(one, bytes(3000), token=token)
        assert one.noticed(Refused) == []
    one.sync()
    one.receive(2, stored(2, 4))
    assert len(one.noticed(Acknowledged)) == 4


def test_a_large_message_is_sent_to_others_as_it_was_made(one: Single) -> None:
    for node in (2, 3):
        one.receive(node, stored(2, 0, node=node))
    append(one, *[bytes(7900)] * 9, token=1)
    first, again = one.sent(Data)
    assert first is again
    append(one, b"x", token=2)
    one.receive(3, Fetch(channel_id=ID, epoch=2, first=0, max_bytes=9000))
    assert [(found is first, len(found.payloads)) for found in one.sent(Data)] == [(True, 9), (False, 1)]


def test_a_small_message_is_made_anew_when_the_log_has_grown(one: Single) -> None:
    for node in (2, 3):
        one.receive(node, stored(2, 0, node=node))
    for token, payload in enumerate((b"a", b"b"), 1):
        append(one, payload, token=token)
    one.receive(3, Fetch(channel_id=ID, epoch=2, first=0, max_bytes=9000))
    assert [found.payloads for found in one.sent(Data)] == [(b"a", b"b")]
