from __future__ import annotations

from meshbus.engine.replicas.candidacy import FAR_BEHIND
from meshbus.engine.replicas.records import Diverged, RoleChanged
from meshbus.engine.replicas.roles import Signal
from meshbus.policy.reason import Reason
from meshbus.wire.messages.leadership import Config, Data, Fetch, Member, Promise, Propose, Stale, Transfer
from meshbus.wire.messages.redex import Role
from tests.engine.replicas.single import ID, TRIO, Single, data, promise, propose


def signals(one: Single) -> list[Signal]:
    return [notice.signal for notice in one.noticed(RoleChanged)]


def test_a_silent_leader_is_replaced_after_a_trial_and_a_proposal_that_is_on_disk() -> None:
    one = Single()
    one.tick()
    assert signals(one) == [Signal.MISSED_HEARTBEATS]
    assert [(found.epoch, found.trial) for found in one.sent(Propose)] == [(2, True), (2, True)]
    assert one.core.epoch == 1, "a trial promises nothing, not even by itself"
    one.receive(2, promise(2, trial=True))
    assert (one.core.epoch, one.sent(Propose)) == (2, [])
    one.sync()
    assert [(found.epoch, found.trial) for found in one.sent(Propose)] == [(2, False), (2, False)]
    one.receive(3, promise(2, node=3))
    assert signals(one) == [Signal.ELECTION_WON]


def test_a_member_that_hears_a_leader_refuses_a_trial() -> None:
    one = Single()
    one.receive(2, data(1, 0, 0))
    one.receive(3, propose(5, 3, trial=True))
    assert [type(send.message) for send in one.out.sends] == [Stale]
    one.now += 3
    one.receive(3, propose(5, 3, trial=True))
    assert [found.trial for found in one.sent(Promise)] == [True]
    assert one.core.epoch == 1


def test_a_leader_that_comes_back_ends_a_trial() -> None:
    one = Single()
    one.tick()
    one.receive(2, data(1, 0, 0))
    assert signals(one) == [Signal.ELECTION_LOST]
    assert one.core.leader == 2


def test_what_others_have_more_is_copied_before_leading() -> None:
    one = Single(epochs=(1, 1, 2, 2), promised=3)
    one.tick()
    one.receive(2, promise(4, trial=True))
    one.sync()
    one.receive(2, promise(4, last_epoch=3, tail=5))
    assert one.core.lead is None
    assert [(found.epoch, found.first) for found in one.sent(Fetch)] == [(4, 4)]
    one.now += 1
    one.receive(2, data(4, 4, 3, b"3.4", entry=3, round_=0))
    assert [found.first for found in one.sent(Fetch)] == [2], "the own events of epoch 2 are in doubt"
    one.now += 1
    one.receive(2, data(4, 2, 1, b"3.2", b"3.3", b"3.4", entry=3, round_=0))
    assert one.noticed(Diverged) == [Diverged(2, 2, 2)]
    assert one.core.lead is None, "the copy is not on disk"
    one.sync()
    assert signals(one) == [Signal.ELECTION_WON]
    assert [payload for _, payload in one.disk.content.events] == [b"1.0", b"1.1", b"3.2", b"3.3", b"3.4"]


def test_a_promiser_serves_its_log_to_its_candidate_alone() -> None:
    one = Single(epochs=(1, 1))
    one.receive(2, propose(5))
    one.sync()
    one.receive(2, Fetch(channel_id=ID, epoch=5, first=0, max_bytes=99))
    assert [(found.epoch, found.payloads) for found in one.sent(Data)] == [(5, (b"1.0", b"1.1")), (5, ())]
    one.receive(3, Fetch(channel_id=ID, epoch=5, first=0, max_bytes=99))
    assert one.out.sends == []
    one.receive(3, Fetch(channel_id=ID, epoch=4, first=0, max_bytes=99))
    assert one.sent(Stale)[0].epoch == 5


def test_a_promiser_that_lost_its_log_serves_nothing_beyond_its_end() -> None:
    one = Single(promised=5, leader=2, epochs=(1,))
    one.receive(2, Fetch(channel_id=ID, epoch=5, first=9, max_bytes=1000))
    assert one.out.sends == []
    assert one.core.seat.counters.get(*Reason.REPLICA_UNEXPECTED.counter) == 1


def test_a_copy_from_a_log_that_became_shorter_ends() -> None:
    one = Single(epochs=(1,), promised=1)
    one.tick()
    one.receive(2, promise(2, trial=True))
    one.sync()
    one.receive(2, promise(2, last_epoch=1, tail=5))
    assert one.sent(Fetch)
    began = one.now
    while one.core.role == Role.CANDIDATE:
        one.now += 0.5
        one.receive(2, data(2, 1, 1, entry=1, round_=0))  # the end of its log, again and again
        one.tick(one.now)
        assert one.now < began + 10
    assert signals(one) == [Signal.ELECTION_LOST]


def asked_to_copy(tail: int) -> Single:
    """A candidate whose proposal was promised by a member with a longer log."""
    one = Single()
    one.tick()
    one.receive(2, promise(2, trial=True))
    one.sync()
    one.receive(2, promise(2, last_epoch=1, tail=tail))
    return one


def test_a_copy_is_as_fast_as_the_source_answers() -> None:
    one = asked_to_copy(tail=4000)
    began, copied = one.now, 0
    [fetch] = one.sent(Fetch)
    # 28 MB in messages of 7 kB. The source sends what was asked for, and the next question comes with its last message.
    while one.core.role == Role.CANDIDATE and copied < 4000:
        sent = 0
        while copied < 4000 and sent < fetch.max_bytes:
            prev = min(copied, 1)
            one.receive(2, data(2, copied, prev, bytes(7000), entry=1, round_=0))
            copied, sent = copied + 1, sent + 7004
            one.now += 1e-4
        if copied < 4000:
            [fetch] = one.sent(Fetch)
            assert fetch.first == copied
    one.sync()
    assert signals(one) == [Signal.ELECTION_WON]
    assert one.now - began < 0.5, "half of a heartbeat period"


def test_a_candidate_that_is_far_behind_asks_the_member_with_the_best_log_to_lead() -> None:
    one = asked_to_copy(tail=FAR_BEHIND + 1)
    assert [(send.to, type(send.message)) for send in one.out.sends] == [(2, Transfer)]
    assert one.sent(Transfer)[0].epoch == 2
    assert signals(one) == [Signal.ELECTION_LOST]
    one.receive(2, propose(3))
    one.sync()
    assert [found.epoch for found in one.sent(Promise)] == [3], "it takes the other one for a candidate like any other"


def test_a_candidate_copies_after_all_if_the_other_does_not_lead() -> None:
    one = asked_to_copy(tail=FAR_BEHIND + 1)
    one.tick()
    [again, _] = one.sent(Propose)
    one.receive(2, promise(again.epoch, trial=True))
    one.sync()
    one.receive(2, promise(again.epoch, last_epoch=1, tail=FAR_BEHIND + 1))
    assert [type(send.message) for send in one.out.sends] == [Fetch]


def test_a_member_leads_if_the_candidate_that_it_promised_asks_for_it() -> None:
    one = Single(epochs=(1, 1))
    one.receive(2, propose(5))
    one.sync()
    one.receive(3, Transfer(channel_id=ID, epoch=5))
    assert one.out.sends == [], "only the one to which the epoch is promised"
    one.receive(2, Transfer(channel_id=ID, epoch=5))
    assert signals(one) == [Signal.MISSED_HEARTBEATS]
    assert one.core.epoch == 6
    one.sync()
    assert {(found.epoch, found.trial) for found in one.sent(Propose)} == {(6, False)}
    one.receive(2, Transfer(channel_id=ID, epoch=6))
    assert one.core.seat.counters.get(*Reason.REPLICA_UNEXPECTED.counter) == 2


def test_a_campaign_without_answers_repeats_itself_and_ends() -> None:
    one = Single()
    one.tick()
    one.tick()
    assert len(one.sent(Propose)) == 2
    one.tick(one.now + 2)
    assert signals(one) == [Signal.ELECTION_LOST]
    one.tick()
    assert signals(one) == [Signal.MISSED_HEARTBEATS]


def test_a_copy_that_does_not_go_on_is_asked_for_again_and_given_up() -> None:
    one = Single()
    one.tick()
    one.receive(2, promise(2, trial=True))
    one.sync()
    one.receive(2, promise(2, last_epoch=1, tail=9))
    one.tick()
    assert [found.first for found in one.sent(Fetch)] == [0]
    one.tick(one.now + 3)
    assert signals(one) == [Signal.ELECTION_LOST]


def test_a_higher_epoch_ends_a_campaign_and_the_next_one_is_above_it() -> None:
    one = Single()
    one.tick()
    one.receive(3, Stale(channel_id=ID, epoch=40))
    assert signals(one) == [Signal.ELECTION_LOST]
    one.tick()
    assert one.sent(Propose)[0].epoch == 41


def test_a_newer_config_of_other_members_ends_a_campaign_and_is_used_by_the_next() -> None:
    one = Single()
    one.tick()
    larger = Config(epoch=1, version=2, members=(*TRIO.members, Member(4, 14), Member(5, 15)))
    one.receive(2, promise(2, trial=True, config=larger))
    assert signals(one) == [Signal.ELECTION_LOST]
    one.sync()
    one.tick()
    assert {send.to for send in one.out.sends} == {2, 3, 4, 5}
    one.receive(2, promise(2, trial=True, config=larger))
    assert one.core.epoch == 1, "two of five are not enough"


def test_a_newer_config_of_the_same_members_ends_nothing() -> None:
    one = Single()
    one.tick()
    one.receive(2, promise(2, trial=True, config=Config(epoch=4, version=1, members=TRIO.members)))
    assert one.core.epoch == 2


def test_who_is_not_a_member_asks_for_nothing() -> None:
    one = Single(config=Config(epoch=1, version=1, members=(Member(1, 99), *TRIO.members[1:])))
    one.tick()
    assert one.core.role == Role.REPLICA
    assert [found.trial for found in one.sent(Propose)] == [True, True]
    one.receive(2, promise(2, trial=True))
    assert one.core.epoch == 1


def test_a_set_is_founded_when_all_nodes_answer() -> None:
    one = Single(promised=0, leader=0, config=None)
    one.tick()
    one.receive(2, promise(1, trial=True, config=None))
    assert one.core.epoch == 0
    one.receive(3, promise(1, node=3, trial=True, config=None))
    assert one.core.config == TRIO
    one.sync()
    one.receive(3, promise(1, node=3, config=None))
    assert one.core.role == Role.LEADER


def test_who_chose_the_founders_by_itself_keeps_the_choice_before_it_founds() -> None:
    one = Single(promised=0, leader=0, config=None, chosen=True)
    one.tick()
    assert one.core.seat.journal.ballot.founders == (), "nobody knows of the choice yet"
    for node in (2, 3):
        one.receive(node, promise(1, node=node, trial=True, config=None))
    assert one.core.config is None
    assert list(one.core.seat.journal.ballot.founders) == [1, 2, 3]
    one.sync()
    assert one.core.config == TRIO


def test_a_node_that_comes_to_a_set_never_founds_it() -> None:
    one = Single(promised=0, leader=0, config=None, founds=False)
    one.tick()
    assert {found.founding for found in one.sent(Propose)} == {0}
    for node in (2, 3):
        one.receive(node, promise(1, node=node, trial=True, config=None))
    assert one.core.config is None


def test_a_nearer_member_is_left_to_lead() -> None:
    one = Single(own=3)
    one.core.measured(2, 0)
    one.now = 2
    one.receive(2, propose(1))
    one.tick()
    assert signals(one) == [Signal.MISSED_HEARTBEATS, Signal.ELECTION_LOST]


def test_an_incarnation_is_on_disk_before_anyone_learns_of_it() -> None:
    one = Single(remembers=False)
    one.receive(2, propose(5, trial=True))
    assert one.sent(Promise) == []
    one.tick()
    assert one.out.sends == []
    one.sync()
    assert {found.incarnation for found in one.sent(Propose)} == {0}
    one.receive(2, propose(5, trial=True))
    assert len(one.sent(Promise)) == 1
