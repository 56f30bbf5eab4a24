from __future__ import annotations

from meshbus.engine.replicas.base import founding_of
from meshbus.engine.replicas.records import Halted, PersistBallot, RoleChanged
from meshbus.engine.replicas.roles import Signal
from meshbus.policy.reason import Reason
from meshbus.wire.messages.leadership import Promise, Stale, Stored
from meshbus.wire.messages.redex import Role
from tests.engine.replicas.single import TRIO, Single, data, promise, propose, stored


def test_a_promise_is_on_disk_before_it_is_sent() -> None:
    one = Single(epochs=(1, 1))
    out = one.receive(2, propose(5))
    assert isinstance(out.writes[0], PersistBallot)
    assert (out.writes[0].ballot.promised, out.writes[0].ballot.leader) == (5, 2)
    assert out.sends == []
    one.sync()
    (found,) = one.sent(Promise)
    assert (found.epoch, found.last_epoch, found.tail, found.config) == (5, 1, 2, TRIO)


def test_only_those_who_would_found_the_same_set_found_it() -> None:
    one = Single(promised=0, leader=0, config=None)
    one.receive(2, propose(1, trial=True, founding=founding_of([1, 2, 4])))
    assert one.sent(Promise) == []
    assert one.core.seat.counters.get(*Reason.REPLICA_FOUNDERS_DIFFER.counter) == 1
    one.receive(2, propose(1, trial=True, founding=founding_of([3, 2, 1])))
    assert [found.config for found in one.sent(Promise)] == [None]


def test_a_node_that_comes_to_a_set_agrees_to_no_founding() -> None:
    one = Single(promised=0, leader=0, config=None, founds=False)
    one.receive(2, propose(1, trial=True, founding=founding_of([1, 2, 3])))
    assert one.sent(Promise) == []


def test_a_founder_with_a_config_answers_whatever_others_would_found() -> None:
    one = Single()
    one.now = 5
    one.receive(2, propose(2, trial=True, founding=founding_of([1, 2, 4])))
    assert [found.config for found in one.sent(Promise)] == [TRIO]


def test_an_agreement_to_chosen_founders_is_on_disk_before_it_is_sent() -> None:
    one = Single(promised=0, leader=0, config=None, chosen=True)
    asked = propose(1, trial=True, founding=founding_of([1, 2, 3]))
    one.receive(2, asked)
    one.receive(2, asked)
    assert one.sent(Promise) == []
    assert one.core.seat.journal.number == 1, "written once"
    one.sync()
    one.receive(2, asked)
    assert len(one.sent(Promise)) == 1
    assert one.disk.content.ballot is not None
    assert one.disk.content.ballot.founders == (1, 2, 3)


def test_an_epoch_is_promised_to_one_candidate() -> None:
    one = Single()
    one.receive(2, propose(5))
    one.sync()
    one.receive(3, propose(5, 3))
    assert one.sent(Stale)[0].epoch == 5
    one.receive(2, propose(5))
    assert one.sent(Promise)[0].epoch == 5, "a proposal that comes again is promised again"
    one.receive(3, propose(4, 3))
    assert one.sent(Stale)[0].epoch == 5
    assert one.core.seat.counters.get("refuse", "replica_stale") == 2


def test_after_a_promise_nothing_of_the_old_leader_is_confirmed() -> None:
    one = Single()
    one.receive(2, data(1, 0, 0, b"a"))
    one.receive(3, propose(5, 3))
    one.sync()
    assert one.sent(Stored) == [], "the event was written before and synced after the promise"
    assert one.sent(Promise)[0].tail == 1, "and the promise reports it"
    one.receive(2, data(1, 1, 1, b"b"))
    assert (one.out.writes, one.sent(Stale)[0].epoch) == ([], 5)


def test_what_is_confirmed_is_on_disk() -> None:
    one = Single()
    one.receive(2, data(1, 0, 0, b"a", b"b"))
    assert one.sent(Stored) == []
    one.receive(2, data(1, 2, 1, round_=4))
    assert [(found.tail, found.round) for found in one.sent(Stored)] == [(0, 4)]
    one.sync()
    assert [(found.tail, found.last_epoch) for found in one.sent(Stored)] == [(2, 1)]


def test_events_that_are_to_be_replaced_are_not_confirmed_although_they_are_on_disk() -> None:
    one = Single(epochs=(1, 1, 1))
    one.receive(2, data(4, 1, 1, b"x", b"y"))
    one.receive(2, data(4, 3, 4, round_=2))
    assert one.sent(Stored) == [], "not even the promise of this epoch is on disk"
    one.core.durable(1, 0)
    one.receive(2, data(4, 3, 4, round_=3))
    assert [found.tail for found in one.sent(Stored)] == [1]
    one.sync()
    assert [found.tail for found in one.sent(Stored)] == [3]


def test_a_member_with_damaged_events_has_a_new_incarnation_and_keeps_its_promise() -> None:
    one = Single(promised=7, epochs=(1, 1), damaged=True)
    ballot = one.core.seat.journal.ballot
    assert (ballot.incarnation, ballot.promised, ballot.config) == (0, 7, TRIO)
    assert isinstance(one.disk._unsynced[0], PersistBallot)
    one.receive(3, propose(6, 3))
    assert one.sent(Stale)[0].epoch == 7


def test_a_later_epoch_ends_the_leadership() -> None:
    one = Single()
    one.lead()
    one.receive(3, propose(9, 3))
    assert one.noticed(RoleChanged)[0].signal == Signal.PEER_LEADER_OBSERVED
    assert (one.core.role, one.core.lead, one.core.epoch) == (Role.REPLICA, None, 9)


def test_a_failed_disk_ends_everything() -> None:
    for role in (Role.REPLICA, Role.CANDIDATE, Role.LEADER):
        one = Single()
        if role == Role.CANDIDATE:
            one.tick()
        elif role == Role.LEADER:
            one.lead()
        assert one.core.role == role
        one.play(one.core.disk_failed("no space left on device"))
        assert one.noticed(Halted) == [Halted("no space left on device")]
        assert one.noticed(RoleChanged)[0].role == Role.IDLE
        one.receive(2, propose(9))
        assert (one.out.sends, one.core.next_timer()) == ([], None)
        assert one.core.seat.counters.get("drop", "replica_halted") == 1
        assert one.core.disk_failed("again").notices == []


def test_a_member_reports_only_what_it_knows_to_equal_the_leaders_log() -> None:
    one = Single(epochs=(1, 1, 1, 1))
    one.receive(2, data(4, 1, 1, b"1.1", entry=1))
    one.sync()
    assert [(found.tail, found.last_epoch) for found in one.sent(Stored)] == [(2, 1)]


def test_strangers_are_answered_and_change_nothing() -> None:
    one = Single()
    one.receive(9, propose(9, 9))
    assert (one.core.epoch, one.sent(Stale)[0].epoch) == (1, 1)
    one.receive(9, Stale(channel_id=bytes(32), epoch=99))
    assert one.out.sends == []
    assert one.core.seat.counters.get("drop", "replica_not_member") == 2


def test_messages_that_belong_to_nothing_are_counted() -> None:
    one = Single()
    one.receive(2, promise(7))
    one.receive(2, stored(1, 0))
    one.receive(2, data(1, 0, 0, b"a", round_=0))
    one.receive(2, propose(7, 3))
    assert one.core.seat.counters.get("drop", "replica_unexpected") == 4


def test_what_was_committed_before_a_restart_is_known() -> None:
    assert Single(epochs=(1, 1, 1), committed=2).core.committed == 2
