"""Groups: which node runs what, decided alike by all."""

from __future__ import annotations

import random

import pytest

from meshbus.compute.groups import (
    SETTLE_S,
    TELL_S,
    GroupCoordinator,
    GroupKind,
    GroupSpec,
    Start,
    Stop,
    member_seed,
)
from meshbus.errors import LocalProtocolError
from meshbus.wire.messages.groups import GroupState, SlotFlags, SlotState, decode_group
from tests.seeds import for_each_seed
from tests.vectors import load

SEED = bytes(range(32))


def spec(kind: GroupKind = GroupKind.STANDBY, size: int = 3, nodes: tuple[int, ...] = (1, 2, 3)) -> GroupSpec:
    return GroupSpec(seed=SEED, kind=kind, size=size, nodes=nodes, parent_origin=7, fork_seq=4)


class Fleet:
    """The nodes of a group; daemons start and stop at once, and have emitted `heads` events."""

    def __init__(self, of: GroupSpec, seed: int = 0) -> None:
        self.spec = of
        self.rng = random.Random(seed)
        self.now = 0.0
        self.nodes = {node: GroupCoordinator(of, node, 0.0) for node in of.nodes}
        self.links: set[frozenset[int]] = set()

    def link(self, *nodes: int) -> None:
        """Connect these nodes with each other."""
        for node in nodes:
            for other in nodes:
                if node != other:
                    self.links.add(frozenset((node, other)))
                    self.nodes[node].node_up(other, self.now)

    def cut(self, *nodes: int) -> None:
        """Separate these nodes from all others."""
        for pair in [pair for pair in self.links if len(pair & set(nodes)) == 1]:
            self.links.discard(pair)
            left, right = pair
            self.nodes[left].node_down(right, self.now)
            self.nodes[right].node_down(left, self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            for node in self.rng.sample(list(self.nodes), len(self.nodes)):
                out, actions = self.nodes[node].tick(self.now)
                for action in actions:
                    self.act(node, action)
                for to, _, message in out:
                    if frozenset((node, to)) in self.links:
                        state = decode_group(message)
                        assert isinstance(state, GroupState)
                        self.nodes[to].heard(state, node)

    def act(self, node: int, action: Start | Stop) -> None:
        one = self.nodes[node]
        if isinstance(action, Start):
            one.has(action.slot, SlotFlags.RUNS, 0, 0, action.epoch)
        else:
            one.has(action.slot, SlotFlags.COPY, 0, 0)

    def running(self) -> dict[int, list[int]]:
        return {slot: [node for node, one in self.nodes.items() if one.runs(slot)] for slot in self.spec.slots}


def test_members_have_the_keys_of_the_reference() -> None:
    vector = load("mesh")["groups"]["replica_seed"]
    group = GroupSpec(seed=bytes.fromhex(vector["group_seed"]), kind=GroupKind.REPLICA, size=3, nodes=(1, 2, 3))
    assert group.group_id == vector["group_id"]
    for member in vector["members"]:
        assert member_seed(group.seed, member["index"]).hex() == member["secret_seed"]
        assert group.identity(member["index"]).origin_hash == member["origin_hash"]
    assert group.fork(0) is None


def test_forks_have_keys_of_their_own_and_begin_where_they_were_forked() -> None:
    group = spec(GroupKind.FORK)
    record = group.fork(1)
    assert record is not None
    assert (record.original_origin, record.fork_seq) == (7, 4)
    assert record.forked_origin == group.identity(1).origin_hash != spec(GroupKind.REPLICA).identity(1).origin_hash


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": b"short"},
        {"size": 1},
        {"size": 256},
        {"size": 4},
        {"nodes": (1, 1, 2)},
    ],
)
def test_a_group_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"seed": SEED, "kind": GroupKind.STANDBY, "size": 3, "nodes": (1, 2, 3)}
    with pytest.raises(LocalProtocolError):
        GroupSpec(**(right | wrong))  # type: ignore[arg-type]


def test_a_node_outside_of_the_group_has_no_part_in_it() -> None:
    with pytest.raises(LocalProtocolError, match="add it to `nodes`"):
        GroupCoordinator(spec(), 9, 0.0)


def test_a_standby_group_runs_on_one_node_and_moves_when_that_is_lost() -> None:
    fleet = Fleet(spec())
    fleet.link(1, 2, 3)
    fleet.run(SETTLE_S * 2)
    assert fleet.running() == {0: [1]}
    fleet.nodes[2].has(0, SlotFlags.COPY, 3, 0)
    fleet.nodes[3].has(0, SlotFlags.COPY, 3, 0)
    fleet.run(TELL_S * 2)
    fleet.cut(1)
    fleet.nodes[1].has(0, SlotFlags.NONE, 0, 0)
    del fleet.nodes[1]
    fleet.run(SETTLE_S * 2)
    # The reference promotes the highest index of those that are synchronized equally far.
    assert fleet.running() == {0: [3]}
    assert load("mesh")["groups"]["standby_promote"]["promoted_index"] == 2
    assert fleet.nodes[3]._here[0].epoch == 2


def test_the_copy_that_is_synchronized_furthest_takes_over() -> None:
    fleet = Fleet(spec())
    fleet.link(1, 2, 3)
    fleet.run(SETTLE_S * 2)
    fleet.nodes[2].has(0, SlotFlags.COPY, 9, 0)
    fleet.nodes[3].has(0, SlotFlags.COPY, 3, 0)
    fleet.run(TELL_S * 2)
    fleet.cut(1)
    del fleet.nodes[1]
    fleet.run(SETTLE_S * 2)
    assert fleet.running() == {0: [2]}


def test_a_replica_group_runs_on_different_nodes_and_fails_where_nodes_run_out() -> None:
    fleet = Fleet(spec(GroupKind.REPLICA, 3, (1, 2, 3, 4)))
    fleet.link(1, 2, 3, 4)
    fleet.run(SETTLE_S * 2)
    assert fleet.running() == {0: [1], 1: [2], 2: [3]}
    for lost, left in ((2, {0: [1], 1: [4], 2: [3]}), (4, {0: [1], 1: [], 2: [3]})):
        fleet.cut(lost)
        del fleet.nodes[lost]
        fleet.run(SETTLE_S * 2)
        assert fleet.running() == left


@for_each_seed(range(20))
def test_after_any_partition_every_slot_runs_once(seed: int) -> None:
    kind = list(GroupKind)[seed % 3]
    fleet = Fleet(spec(kind, 2, (1, 2, 3, 4)), seed)
    fleet.link(1, 2, 3, 4)
    for _ in range(fleet.rng.randrange(1, 4)):
        fleet.run(fleet.rng.choice((0.5, 3.0, 9.0)))
        fleet.cut(*fleet.rng.sample((1, 2, 3, 4), 2))
    fleet.run(SETTLE_S * 2)
    fleet.link(1, 2, 3, 4)
    fleet.run(SETTLE_S * 3)
    assert all(len(nodes) == 1 for nodes in fleet.running().values())
    views = {tuple(node.runner(slot) for slot in fleet.spec.slots) for node in fleet.nodes.values()}
    assert len(views) == 1


def test_different_chains_are_not_decided_by_claims() -> None:
    fleet = Fleet(spec())
    fleet.link(1, 2)
    for node in (1, 2):
        fleet.nodes[node].has(0, SlotFlags.RUNS, node, node, epoch=node)
    fleet.run(SETTLE_S)
    assert fleet.running()[0][:2] == [1, 2]
    fleet.nodes[1].has(0, SlotFlags.RUNS, 2, 2)
    fleet.run(SETTLE_S)
    # The same chain: the higher epoch stays.
    assert fleet.running()[0][:1] == [2]


def test_events_go_to_members_in_turn_or_by_key() -> None:
    fleet = Fleet(spec(GroupKind.REPLICA))
    assert fleet.nodes[1].route() is None
    fleet.link(1, 2, 3)
    fleet.run(SETTLE_S * 2)
    router = fleet.nodes[1]
    assert {router.route() for _ in range(3)} == {(0, 1), (1, 2), (2, 3)}
    keys = [b"%d" % number for number in range(200)]
    before = {key: router.route(key) for key in keys}
    assert {router.route(key) == before[key] for key in keys} == {True}
    assert len(set(before.values())) == 3
    router.heard(GroupState(group=1, slots=(SlotState(2),)), 3)
    for key in keys:
        found = before[key]
        assert found is not None
        assert router.route(key) == found or found[0] == 2


def test_a_node_tells_what_it_has_again_and_again() -> None:
    one = GroupCoordinator(spec(), 1, 0.0)
    one.node_up(2, 0.0)
    assert [out[0] for out in one.tick(0.0)[0]] == [2]
    assert one.tick(0.5) == ([], [])
    assert one.next_timer() == TELL_S
    one.has(0, SlotFlags.COPY, 1, 1)
    assert [out[0] for out in one.tick(0.5)[0]] == [2]
