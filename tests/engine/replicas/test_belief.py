from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.replicas.belief import Belief, keeps_leading, silence_s
from meshbus.wire.messages.redex import Role
from tests.vectors import load

BELIEFS: list[dict[str, Any]] = load("subprotocols")["leader_belief"]["cases"]
DUELS: list[dict[str, Any]] = load("subprotocols")["dual_leader"]["cases"]


@pytest.mark.parametrize("case", BELIEFS, ids=lambda case: case["case"])
def test_the_reference_believes_the_same(case: dict[str, Any]) -> None:
    belief, now = Belief(case["heartbeat_ms"]), 0.0
    for step in case["steps"]:
        match step.split(":"):
            case ["?", at]:
                now = int(at) / 1000
            case ["clear", _]:
                belief.clear()
            case ["drop", node]:
                belief.drop(int(node))
            case [node, role, tail, at]:
                belief.hear(int(node), Role(int(role)), int(tail), int(at) / 1000)
    assert belief.leader == case["believed_leader"]
    assert belief.silent(now) == case["leader_silent"]
    assert belief.healthy(now) == case["healthy_peers"]


@pytest.mark.parametrize("case", DUELS)
def test_of_two_leaders_the_same_one_stays(case: dict[str, Any]) -> None:
    mine, theirs = (case["own_tail"], case["own_id"]), (case["peer_tail"], case["peer_id"])
    assert keeps_leading(*mine, *theirs) == case["keeps"]
    assert keeps_leading(*theirs, *mine) != case["keeps"], "exactly one of the two stays"


def test_the_member_that_is_silent_the_longest_counts() -> None:
    assert silence_s([3.0, 1.0], 5.0) == 4.0
    assert silence_s([3.0, None], 5.0) is None
    assert silence_s([], 5.0) is None
    assert silence_s([6.0], 5.0) == 0.0, "a clock that was set back"


def test_the_last_heartbeat_of_a_member_is_remembered() -> None:
    belief = Belief(500)
    assert belief.tail_of(7) is None
    assert belief.heard_at(7) is None
    belief.hear(7, Role.REPLICA, 40, 1.5)
    assert (belief.tail_of(7), belief.heard_at(7)) == (40, 1.5)
