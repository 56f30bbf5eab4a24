from __future__ import annotations

from meshbus.engine.replicas.records import Acks, Halted, Newcomer, Refusal, Refused, RoleChanged
from meshbus.engine.replicas.roles import Signal
from meshbus.wire.messages.leadership import Config, Configure, Data, Fetch, Member, Stale, Stored, Transfer
from meshbus.wire.messages.redex import Role
from tests.engine.replicas.single import ID, TRIO, Single, data, propose, stored
from tests.engine.replicas.world import CHANNEL, HEARTBEAT_S, World


def world(count: int = 3, *, seed: int = 1, extra: int = 0) -> World:
    found = World(seed, count, extra=extra)
    found.start()
    found.run_until(lambda: found.leader() is not None)
    found.run(5 * HEARTBEAT_S)
    return found


def leader_of(found: World) -> int:
    leader = found.leader()
    assert leader is not None
    return leader.seat.own


def settle(found: World) -> None:
    found.heal()
    found.check()


def test_a_set_starts_by_itself_and_replicates() -> None:
    for count in (1, 2, 3, 5):
        found = world(count)
        for _ in range(20):
            found.append(leader_of(found), 5)
            found.run(0.02)
        found.run(1)
        assert len(found.checker.acknowledged) == 100
        settle(found)


def test_another_member_leads_when_the_leader_is_gone_and_nothing_is_lost() -> None:
    found = world()
    first = leader_of(found)
    found.append(first, 50)
    found.run(1)
    found.crash(first)
    found.run_until(lambda: found.leader() is not None)
    second = leader_of(found)
    assert second != first
    found.append(second, 50)
    found.run(1)
    assert sorted(found.checker.acknowledged) == list(range(100))
    settle(found)


def test_a_leader_without_a_majority_acknowledges_nothing_and_its_events_are_set_aside() -> None:
    found = world()
    first = leader_of(found)
    others = set(found.hosts) - {first}
    found.net.cut = {(first, other) for other in others} | {(other, first) for other in others}
    found.append(first, 3)
    found.run(HEARTBEAT_S)
    found.append(first, 2, Acks.LOCAL)
    found.run(2)
    assert found.checker.acknowledged == {}
    found.append(leader_of(found), 4)
    found.run(1)
    assert len(found.checker.acknowledged) == 4
    settle(found)
    assert len(found.hosts[first].disk.content.aside) == 5


def test_a_backlog_far_above_one_packet_is_copied() -> None:
    found = world()
    leader = leader_of(found)
    late = next(node for node in found.hosts if node != leader)
    found.crash(late)
    for _ in range(40):
        found.append(leader, 5, size=3000)
        found.run(0.05)
    found.run(1)
    settle(found)
    assert found.hosts[late].disk.content.tail >= 200


def test_a_member_that_missed_removed_events_has_a_gap() -> None:
    found = world()
    leader = leader_of(found)
    late = next(node for node in found.hosts if node != leader)
    found.crash(late)
    found.append(leader, 50)
    found.run(1)
    for host, core in found.cores():
        core.retained(40)
        host.disk.trim(40)
    settle(found)
    assert found.hosts[late].disk.content.gaps == [(0, 40)]


def test_a_member_that_lost_its_disk_follows_and_counts_only_after_it_was_replaced() -> None:
    found = world()
    found.restaff = False
    leader = leader_of(found)
    wiped, other = (node for node in found.hosts if node != leader)
    found.append(leader, 10)
    found.run(1)
    found.wipe(wiped)
    found.start(wiped)
    found.run(2)
    assert found.hosts[wiped].disk.content.tail == 10, "it has a copy"
    found.crash(other)
    found.run(2)
    found.append(leader)
    found.run(2)
    assert len(found.checker.acknowledged) == 10, "the copy does not count"
    found.start(other)
    found.restaff = True
    found._restaff(wiped)
    settle(found)
    current = found.leader()
    assert current is not None
    assert current.config is not None
    wanted = {core.seat.member for _, core in found.cores()}
    assert wanted == set(current.config.members)


def test_a_new_node_becomes_a_member() -> None:
    found = world(extra=1)
    found.append(leader_of(found), 10)
    found.run(1)
    found.start(4)
    found.run(3)
    settle(found)
    assert found.hosts[4].disk.content.tail >= 10
    config = found.hosts[4].disk.content.ballot
    assert config is not None
    assert config.config is not None
    assert len(config.config.members) == 4


def test_a_leader_that_is_removed_stops_leading_and_the_others_go_on() -> None:
    found = world()
    first = leader_of(found)
    core = found.hosts[first].core
    assert core is not None
    found.restaff = False
    found.carry_out(found.hosts[first], core.remove(1, first, found.clock(found.hosts[first])))
    found.run(3)
    assert core.role == Role.IDLE
    assert leader_of(found) != first
    found.append(leader_of(found), 5)
    found.run(1)
    assert len(found.checker.acknowledged) == 5


def test_a_stale_leader_gives_up_when_it_hears_of_a_later_epoch() -> None:
    one = Single()
    one.lead()
    one.receive(3, Stale(channel_id=ID, epoch=2))
    assert one.core.role == Role.LEADER
    one.receive(3, Stale(channel_id=ID, epoch=9))
    assert [notice.signal for notice in one.noticed(RoleChanged)] == [Signal.PEER_LEADER_OBSERVED]


def test_a_leader_of_a_later_epoch_is_followed_without_its_proposal() -> None:
    one = Single()
    one.receive(3, data(7, 0, 0, b"a"))
    assert (one.core.epoch, one.core.leader) == (7, 3)
    one.sync()
    assert [(found.epoch, found.tail) for found in one.sent(Stored)] == [(7, 1)]
    one.receive(2, data(7, 0, 0))
    assert one.core.leader == 3, "an epoch has one leader"


def test_the_leader_of_an_epoch_is_followed_even_if_another_candidate_had_the_promise() -> None:
    one = Single()
    one.receive(2, propose(7))
    one.sync()
    one.receive(3, data(7, 0, 0, b"a"))
    assert one.core.leader == 3


def test_missing_events_are_asked_for_once_per_quarter_of_a_heartbeat() -> None:
    one = Single()
    fetched = 0
    for step in range(8):
        one.now = step / 8
        one.receive(2, data(1, 5, 1, b"x"))
        fetched += len(one.sent(Fetch))
    assert fetched == 4


def test_events_that_differ_are_asked_for_at_once_however_fast_the_answers_come() -> None:
    one = Single(epochs=(1, 1, 1))
    one.receive(2, data(2, 9, 2))
    assert [fetch.first for fetch in one.sent(Fetch)] == [3]
    # The answer comes long before a quarter of a heartbeat; waiting for the next heartbeat would begin it all again.
    one.receive(2, data(2, 3, 2, b"x"))
    assert [fetch.first for fetch in one.sent(Fetch)] == [0]
    one.receive(2, data(2, 4, 2, b"y"))
    assert one.sent(Fetch) == []
    one.receive(2, data(2, 0, 0, b"a", b"b"))
    assert one.core.seat.journal.tail == 2


def test_a_member_that_lacks_events_answers_heartbeats_so_that_its_leader_is_not_fenced() -> None:
    one = Single()
    one.receive(2, data(1, 5, 1, b"x"))
    assert (len(one.sent(Fetch)), len(one.sent(Stored))) == (1, 0)
    one.receive(2, data(1, 6, 1, round_=7))
    assert [(answer.round, answer.tail) for answer in one.sent(Stored)] == [(7, 0)]


def test_a_config_is_stored_before_it_is_confirmed() -> None:
    one = Single()
    newer = Config(epoch=1, version=2, members=TRIO.members[:2])
    one.receive(2, Configure(channel_id=ID, epoch=1, config=newer))
    assert (one.core.config, one.out.sends) == (newer, [])
    one.sync()
    assert [(found.config_epoch, found.config_version) for found in one.sent(Stored)] == [(1, 2)]
    one.receive(2, Configure(channel_id=ID, epoch=1, config=TRIO))
    assert one.core.config == newer
    assert len(one.sent(Stored)) == 1


def test_a_log_that_contradicts_a_committed_event_stops_the_member() -> None:
    one = Single(epochs=(1, 1))
    one.receive(2, data(1, 2, 1, committed=2))
    one.receive(3, data(5, 1, 1, b"other"))
    assert len(one.noticed(Halted)) == 1
    assert one.core.halted


def test_requests_that_no_member_can_serve_are_refused() -> None:
    one = Single()
    assert one.core.append(1, [b"a"], Acks.LOCAL, 0).notices == [Refused(1, Refusal.NOT_LEADER)]
    assert one.core.read(2, 0).notices == [Refused(2, Refusal.NOT_LEADER)]
    assert one.core.remove(3, 2, 0).notices == [Refused(3, Refusal.NOT_LEADER)]
    one.lead()
    assert one.core.add(4, 9, 0).notices == [Refused(4, Refusal.NO_CHANGE)], "nothing is known of it"
    assert one.core.add(5, 2, 0).notices == [Refused(5, Refusal.NO_CHANGE)], "it is a member"
    assert one.core.remove(6, 9, 0).notices == [Refused(6, Refusal.NO_CHANGE)]


def test_a_welcome_node_shows_itself_and_is_added() -> None:
    one = Single()
    one.lead()
    one.sync()
    one.receive(2, stored(2, 0))
    one.core.welcome(4)
    one.receive(4, propose(1, 4, trial=True))
    assert one.noticed(Newcomer) == [Newcomer(Member(4, 14))]
    one.receive(4, propose(1, 4, trial=True))
    assert one.noticed(Newcomer) == [], "reported once"
    one.play(one.core.add(1, 4, one.now))
    assert one.core.config is not None
    assert one.core.config.members == (*TRIO.members, Member(4, 14))
    assert {send.to for send in one.out.sends if isinstance(send.message, Data)} == {2, 3, 4}


def test_retention_never_reaches_beyond_what_is_committed() -> None:
    one = Single(epochs=(1, 1, 1))
    one.receive(2, data(1, 3, 1, committed=2))
    one.core.retained(3)
    assert one.core.seat.journal.first_retained == 2
    one.receive(2, data(1, 3, 1, b"new", committed=4))
    one.core.retained(4)
    assert one.core.seat.journal.first_retained == 3, "the last one is not on this disk yet"


def test_a_single_member_acknowledges_by_its_own_disk() -> None:
    found = world(1)
    found.append(1, 3)
    found.run(1)
    assert len(found.checker.acknowledged) == 3


def hand_over(found: World, to: int) -> None:
    host = found.hosts[leader_of(found)]
    assert host.core is not None
    found.carry_out(host, host.core.transfer(0, to, found.clock(host)))


def test_a_leader_hands_over_at_once_and_nothing_is_lost() -> None:
    found = world()
    first = leader_of(found)
    heir = next(node for node in found.nodes if node != first)
    found.append(first, 50)
    hand_over(found, heir)
    found.append(first, 1)  # refused
    found.run(2 * HEARTBEAT_S)
    assert leader_of(found) == heir
    assert len(found.checker.acknowledged) == 50
    found.append(heir, 5)
    found.run(1)
    assert len(found.checker.acknowledged) == 55
    settle(found)


def test_a_leader_goes_on_if_the_member_that_is_to_lead_is_gone() -> None:
    found = world()
    first = leader_of(found)
    heir = next(node for node in found.nodes if node != first)
    found.crash(heir)
    hand_over(found, heir)
    found.run(4 * HEARTBEAT_S)
    assert leader_of(found) == first
    found.append(first, 5)
    found.run(1)
    assert len(found.checker.acknowledged) == 5
    found.start(heir)
    found.run(10 * HEARTBEAT_S)
    assert leader_of(found) == first
    settle(found)


def test_only_members_can_be_asked_to_lead_and_only_by_their_leader() -> None:
    found = world()
    first = leader_of(found)
    for node in (first, 99):
        host = found.hosts[first]
        assert host.core is not None
        assert host.core.transfer(7, node, found.clock(host)).notices == [Refused(7, Refusal.NO_CHANGE)]
    follower = found.hosts[next(node for node in found.nodes if node != first)]
    other = found.hosts[next(node for node in found.nodes if node not in {first, follower.node})]
    assert follower.core is not None
    assert follower.core.transfer(7, other.node, 0.0).notices == [Refused(7, Refusal.NOT_LEADER)]
    strange = Transfer(channel_id=CHANNEL, epoch=follower.core.epoch)
    assert not follower.core.receive(other.node, strange, found.clock(follower)).sends
    assert follower.core.role == Role.REPLICA
