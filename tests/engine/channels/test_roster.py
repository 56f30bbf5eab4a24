"""Roster: modes and groups as observed at a reference node, fair turns, and a comparison with a plain model."""

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from meshbus.engine.channels.roster import BROADCAST, RosterView, SubscriberRoster
from meshbus.engine.settings import LivenessConfig
from meshbus.names.channel import ChannelName
from tests.engine.fleet import CHANNEL, pair, subscribed
from tests.vectors import load

TURNS = load("policy")["queue_group_observed"]
MODES = load("policy")["queue_group_mode_change"]
EMPTY = load("policy")["publish_empty_roster"]["report"]
SILENCE = load("policy")["failure_reap_observed"]

A, B = ChannelName("a"), ChannelName("b")


def test_two_members_of_a_group_take_turns_as_observed() -> None:
    roster = SubscriberRoster()
    roster.add(A, 1, "workers")
    roster.add(A, 2, "workers")
    got: dict[int, list[str]] = {1: [], 2: []}
    sizes = set()
    for number in range(TURNS["published"]):
        legs = roster.dispatch(A)
        sizes.add(len(legs))
        got[legs[0]].append(str(number))
    assert got == {1: TURNS["peer1"], 2: TURNS["peer2"]}
    assert sorted(sizes) == TURNS["attempted_each"]


def test_a_peer_is_in_one_mode_per_channel_as_observed() -> None:
    roster = SubscriberRoster()
    roster.add(A, 1)
    roster.add(A, 2, "g")
    assert len(roster.dispatch(A)) == MODES["broadcast+group"]
    assert roster.add(A, 1, "g")
    assert len(roster.dispatch(A)) == MODES["both_in_same_group"]
    roster.add(A, 1, "h")
    assert len(roster.dispatch(A)) == MODES["two_groups"]
    roster.add(A, 1)
    assert len(roster.dispatch(A)) == MODES["broadcast_again+group"]
    assert roster.release(A, 2), "whatever mode it is in"
    assert len(roster.dispatch(A)) == MODES["after_unsubscribe_of_mode_agnostic"]
    assert not roster.add(A, 1), "the same mode again changes nothing"


def test_an_empty_roster_means_no_attempts() -> None:
    assert len(SubscriberRoster().dispatch(A)) == EMPTY["attempted"]


def test_a_refused_member_is_replaced_by_the_next_and_keeps_its_turn() -> None:
    roster = SubscriberRoster()
    for peer in (1, 2, 3):
        roster.add(A, peer, "g")
    roster.add(A, 9)
    assert roster.dispatch(A, lambda peer: peer not in {1, 9}) == [2]
    assert roster.dispatch(A) == [9, 1], "refused before, so it is its turn"
    assert roster.dispatch(A) == [9, 3]
    assert roster.dispatch(A) == [9, 2]
    assert roster.dispatch(A, lambda _peer: False) == []
    assert roster.dispatch(A) == [9, 1], "nobody was served, so nobody lost a turn"


@given(st.integers(1, 6), st.lists(st.frozensets(st.integers(0, 5)), max_size=40))
def test_all_allowed_members_are_served_before_one_is_served_again(size: int, refusals: list[frozenset[int]]) -> None:
    roster = SubscriberRoster()
    for peer in range(size):
        roster.add(A, peer, "g")
    last_served: dict[int, int] = {}
    for number, refused in enumerate(refusals):
        allowed = set(range(size)) - refused
        legs = roster.dispatch(A, allowed.__contains__)
        assert len(legs) == bool(allowed)
        for leg in legs:
            assert last_served.get(leg, -1) == min(last_served.get(peer, -1) for peer in allowed)
            last_served[leg] = number


def test_turns_are_even_while_members_come_and_go() -> None:
    roster = SubscriberRoster()
    for peer in range(3):
        roster.add(A, peer, "g")
    served = Counter(roster.dispatch(A)[0] for _ in range(300))
    assert set(served.values()) == {100}
    roster.remove(A, 1)
    served = Counter(roster.dispatch(A)[0] for _ in range(300))
    assert served == {0: 150, 2: 150}


# ── requests that hold a peer ───────────────────────────────────────────────────────────────


def test_a_peer_leaves_with_the_last_request_that_holds_it() -> None:
    roster = SubscriberRoster()
    assert roster.add(A, 1, "g", request=7)
    assert roster.add(A, 1), "the later request decides the mode"
    assert roster.group_of(A, 1) == BROADCAST
    assert not roster.release(A, 1)
    assert roster.group_of(A, 1) == "g", "back to what the other one asked for"
    assert not roster.release(A, 1, request=8)
    assert roster.holds(A, 1, 7)
    assert not roster.holds(A, 1)
    assert roster.release(A, 1, request=7)
    assert roster.group_of(A, 1) is None
    assert not roster.release(A, 1, request=7)
    assert len(roster) == 0


def test_removing_ends_all_requests() -> None:
    roster = SubscriberRoster()
    roster.add(A, 1, request=7)
    roster.add(A, 1)
    assert roster.remove(A, 1)
    assert not roster.remove(A, 1)
    assert not roster.holds(A, 1, 7)
    assert roster.peers() == []


def test_a_removed_peer_is_removed_from_every_channel() -> None:
    roster = SubscriberRoster()
    roster.add(A, 1)
    roster.add(B, 1, "g")
    roster.add(B, 2)
    assert roster.count(1) == 2
    assert roster.remove_peer(1) == [A, B]
    assert roster.remove_peer(1) == []
    assert (roster.count(1), len(roster)) == (0, 1)
    assert roster.dispatch(B) == [2]


def test_every_change_increments_the_version_and_turns_do_not() -> None:
    roster = SubscriberRoster()
    versions = [roster.version]
    changes: list[Callable[[], object]] = [
        lambda: roster.add(A, 1),
        lambda: roster.add(A, 1, "g"),
        lambda: roster.add(A, 1, request=7),
        lambda: roster.release(A, 1, request=7),
        lambda: roster.remove(A, 1),
    ]
    for change in changes:
        change()
        versions.append(roster.version)
    assert versions == [0, 1, 2, 3, 4, 5]
    roster.add(B, 1, "g")
    before = roster.version
    roster.dispatch(B)
    roster.add(B, 1, "g")
    roster.remove(A, 1)
    assert roster.version == before


def test_the_groups_of_a_channel_are_listed() -> None:
    roster = SubscriberRoster()
    roster.add(A, 1)
    assert not roster.has_groups(A)
    roster.add(A, 2, "g")
    assert roster.has_groups(A)
    assert not roster.has_groups(B)


# ── reading ─────────────────────────────────────────────────────────────────────────────────


def test_the_view_equals_the_roster() -> None:
    roster = SubscriberRoster()
    view = RosterView(roster)
    assert (len(view), list(view), A in view) == (0, [], False)
    roster.add(B, 5)
    roster.add(A, 3, "g")
    roster.add(A, 2, "g")
    roster.add(A, 1)
    assert list(view) == [A, B]
    assert len(view) == 2
    assert "a" in view
    assert view.members("a") == [1, 2, 3]
    assert view.groups("a") == {"g": [2, 3]}
    assert view.groups("nothing") == {}
    assert view.members("nothing") == []
    assert view.channels_of(5) == [B]
    assert repr(view) == "RosterView({'a': [1, 2, 3], 'b': [5]})"
    assert not {name for name in dir(view) if not name.startswith("_")} & {"add", "remove", "release", "dispatch"}


# ── against a plain model ───────────────────────────────────────────────────────────────────

CHANNELS = st.sampled_from([A, B])
PEERS = st.integers(1, 4)
GROUPS = st.sampled_from(["", "g", "h"])
REQUESTS = st.sampled_from([None, 7, 8])


def test_a_silent_peer_leaves_the_roster_and_the_index_no_later_than_at_a_reference_node() -> None:
    quick = {"liveness": LivenessConfig(heartbeat_s=0.3, session_timeout_s=1.0)}  # as in the observation
    net, publisher, subscriber = pair(left=quick, right=quick)
    subscribed(subscriber, publisher)
    roster, directory = publisher.engine.admission.roster, publisher.engine.directory
    channel = ChannelName(CHANNEL)
    assert len(roster.members(channel)) == SILENCE["attempted_before"]
    assert directory.capabilities_of(subscriber.node_id) is not None
    net.partition(["left"], ["right"])
    silent_at = net.clock.now
    net.run_until(lambda: not roster.members(channel))
    assert 1.0 <= net.clock.now - silent_at <= SILENCE["seconds_until_roster_evicted"]
    net.run_until(lambda: directory.capabilities_of(subscriber.node_id) is None)
    assert net.clock.now - silent_at <= SILENCE["seconds_until_capabilities_evicted"]


class RosterMachine(RuleBasedStateMachine):
    """A list of (channel, peer, request, group), the latest last, says the same."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = SubscriberRoster()
        self.held: list[tuple[ChannelName, int, int | None, str]] = []

    def modes(self) -> dict[tuple[ChannelName, int], str]:
        return {(channel, peer): group for channel, peer, _, group in self.held}

    @rule(channel=CHANNELS, peer=PEERS, group=GROUPS, request=REQUESTS)
    def add(self, channel: ChannelName, peer: int, group: str, request: int | None) -> None:
        before = self.modes()
        self.held = [row for row in self.held if row[:3] != (channel, peer, request)]
        self.held.append((channel, peer, request, group))
        assert self.roster.add(channel, peer, group, request=request) == (before != self.modes())

    @rule(channel=CHANNELS, peer=PEERS, request=REQUESTS)
    def release(self, channel: ChannelName, peer: int, request: int | None) -> None:
        before = self.modes()
        self.held = [row for row in self.held if row[:3] != (channel, peer, request)]
        left = (channel, peer) in before and (channel, peer) not in self.modes()
        assert self.roster.release(channel, peer, request=request) == left

    @rule(channel=CHANNELS, peer=PEERS)
    def remove(self, channel: ChannelName, peer: int) -> None:
        assert self.roster.remove(channel, peer) == ((channel, peer) in self.modes())
        self.held = [row for row in self.held if row[:2] != (channel, peer)]

    @rule(peer=PEERS)
    def remove_peer(self, peer: int) -> None:
        gone = {channel for channel, other in self.modes() if other == peer}
        assert set(self.roster.remove_peer(peer)) == gone
        self.held = [row for row in self.held if row[1] != peer]

    @invariant()
    def the_same_everywhere(self) -> None:
        modes = self.modes()
        assert len(self.roster) == len({channel for channel, _ in modes})
        assert set(self.roster.peers()) == {peer for _, peer in modes}
        for channel in (A, B):
            here = {peer: group for (name, peer), group in modes.items() if name == channel}
            assert self.roster.members(channel) == sorted(here)
            assert {peer: self.roster.group_of(channel, peer) for peer in here} == here
            legs = self.roster.dispatch(channel)
            assert {peer for peer in legs if not here[peer]} == {peer for peer in here if not here[peer]}
            assert Counter(here[peer] for peer in legs if here[peer]) == Counter(
                {group for group in here.values() if group}
            )


TestRosterMachine = RosterMachine.TestCase


def test_a_subscriber_with_another_id_keeps_its_place() -> None:
    roster = SubscriberRoster()
    one, two = ChannelName("a"), ChannelName("b")
    roster.add(one, 1)
    roster.add(two, 1, "group", request=5)
    roster.add(one, 2)
    version = roster.version
    assert roster.rename(1, 9) == [one, two]
    assert roster.version > version
    assert roster.members("a") == [2, 9]
    assert roster.groups("b") == {"group": [9]}
    assert roster.holds(two, 9, 5)
    assert roster.channels_of(1) == roster.rename(1, 9) == []
