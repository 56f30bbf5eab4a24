"""Placement: who is eligible, the same choice everywhere, few changes when nodes come and go, one at a time."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.replicas.placement import Add, Ineligible, Ranking, Remove, aim, next_change, pinned, rank
from meshbus.errors import ConfigError
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.wire.messages.redex import channel_id

CHANNEL = channel_id("alarms/fire")
REPLICATES = "subprotocol:0x4d05"
ABLE = CapabilitySet([REPLICATES])
DISK = CapabilityFilter(require_tags=("disk.ssd",))

nodes = st.frozensets(st.integers(1, 40), max_size=12)


def known(*ids: int) -> dict[int, CapabilitySet]:
    return dict.fromkeys(ids, ABLE)


# ── who is eligible ─────────────────────────────────────────────────────────────────────────


def test_a_node_must_replicate_and_have_what_the_channel_requires() -> None:
    fleet = {
        1: ABLE.with_tags(["disk.ssd"]),
        2: ABLE,
        3: CapabilitySet(["disk.ssd"]),
        4: ABLE.with_tags(["disk.ssd", "gpu"]),
    }
    ranking = rank(CHANNEL, fleet, DISK)
    assert set(ranking.eligible) == {1, 4}
    assert ranking.ineligible == {2: Ineligible.CAPABILITIES, 3: Ineligible.NOT_REPLICATING}
    assert ranking.shortage(2) is None
    assert ranking.shortage(3) == (
        "replicas = 3 needs 3 eligible nodes, and 2 of the known ones are;"
        " 0000000000000003 does not replicate; 0000000000000002 lacks required capabilities"
    )


def test_a_shortage_is_told_without_any_node() -> None:
    assert rank(CHANNEL, {}).shortage(1) == "replicas = 1 needs 1 eligible nodes, and 0 of the known ones are"


@pytest.mark.parametrize("given_nodes", [(), (7, 7), tuple(range(17))])
def test_pinned_members_are_1_to_16_different_nodes(given_nodes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="1 to 16 different nodes"):
        pinned(given_nodes)
    assert pinned((3, 1, 2)) == (3, 1, 2)


# ── the choice ──────────────────────────────────────────────────────────────────────────────


@given(nodes, st.randoms())
def test_every_node_chooses_the_same(ids: frozenset[int], chance: object) -> None:
    shuffled = sorted(ids, key=lambda _node: chance.random())  # type: ignore[attr-defined]
    assert rank(CHANNEL, known(*ids)) == rank(CHANNEL, known(*shuffled))


@given(nodes, st.integers(1, 40))
def test_a_node_that_comes_or_goes_does_not_change_the_order_of_the_others(ids: frozenset[int], other: int) -> None:
    with_it = rank(CHANNEL, known(*ids, other)).eligible
    assert tuple(node for node in with_it if node != other) == rank(CHANNEL, known(*(ids - {other}))).eligible


def test_channels_spread_over_the_fleet() -> None:
    fleet = known(*range(1, 11))
    load = Counter(
        node for number in range(1000) for node in aim(rank(channel_id(f"alarms/{number}"), fleet), 3)
    )  # 300 each if it were even
    assert set(load) == set(fleet)
    assert min(load.values()) > 200
    assert max(load.values()) < 400


@given(nodes, nodes, st.integers(1, 5), st.data())
def test_members_stay_unless_they_are_lost_and_can_be_replaced(
    ids: frozenset[int], strangers: frozenset[int], replicas: int, data: st.DataObject
) -> None:
    members = data.draw(
        st.lists(st.sampled_from(sorted(ids | strangers)), unique=True) if ids | strangers else st.just([])
    )
    lost = data.draw(
        st.frozensets(st.sampled_from(sorted(ids | strangers))) if ids | strangers else st.just(frozenset())
    )
    wanted = aim(rank(CHANNEL, known(*ids)), replicas, members, lost)
    assert len(set(wanted)) == len(wanted) <= replicas
    assert len(wanted) == min(replicas, len(ids - lost | set(members)))
    healthy = [node for node in members if node in ids and node not in lost]
    assert list(wanted[: len(healthy)]) == healthy[:replicas]
    newcomers = set(wanted) - set(members)
    assert newcomers <= ids - lost
    if any(node not in healthy for node in wanted if node in members):
        assert newcomers == ids - lost - set(members), "a bad member stays only if no other node is left"


# ── the way there ───────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.integers(1, 12), unique=True, min_size=1), st.lists(st.integers(1, 12), unique=True, min_size=1), nodes
)
def test_changes_lead_to_the_wanted_members_one_at_a_time(
    members: list[int], wanted: list[int], lost: frozenset[int]
) -> None:
    present = list(members)
    for _ in range(len(members) + len(wanted)):
        match next_change(present, wanted, lost):
            case Add(node):
                assert node not in present
                present.append(node)
            case Remove(node):
                present.remove(node)
            case None:
                break
        assert present
    assert set(present) == set(wanted)
    assert next_change(present, wanted, lost) is None


def test_a_lost_member_is_removed_before_its_replacement_is_added() -> None:
    ranking = rank(CHANNEL, known(1, 2, 3, 4))
    members = [1, 2, 3]
    assert aim(ranking, 3, members) == (1, 2, 3)
    wanted = aim(ranking, 3, members, lost={2})
    assert wanted == (1, 3, 4)
    assert next_change(members, wanted, lost={2}) == Remove(2)
    assert next_change([1, 3], wanted, lost={2}) == Add(4)
    assert next_change([1, 3, 4], wanted, lost={2}) is None


def test_without_another_node_a_lost_member_stays() -> None:
    wanted = aim(rank(CHANNEL, known(1, 2, 3)), 3, [1, 2, 3], lost={2})
    assert set(wanted) == {1, 2, 3}
    assert next_change([1, 2, 3], wanted, lost={2}) is None


def test_a_member_that_is_replaced_alive_goes_after_the_newcomer_came() -> None:
    assert next_change([1, 2, 3], [1, 2, 4]) == Add(4)
    assert next_change([1, 2, 3, 4], [1, 2, 4]) == Remove(3)


def test_sixteen_members_are_not_exceeded_and_one_stays() -> None:
    assert next_change(list(range(16)), [*range(1, 16), 99]) == Remove(0)
    assert next_change([1], [], lost={1}) is None
    assert next_change([1], [2], lost={1}) == Add(2)


def test_a_ranking_is_a_value() -> None:
    assert rank(CHANNEL, {}) == Ranking((), {})
