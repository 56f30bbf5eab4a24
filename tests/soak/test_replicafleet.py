"""Five real processes and 10^5 events, with every kind of fault again and again; the short form is in tests/node."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.node.replicafleet import Fleet, Member, fleet
from tests.node.test_replicafleet import acked_more, finish, keep_publishing

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

EVENTS = 100_000
DETECTED_S = 4.0
"""Longer than three heartbeats of 0.5 s and the random time that a candidate waits."""


def kill(found: Fleet, _chance: random.Random) -> None:
    """Kill the leader, and start it again when another leads."""
    leader = found.wait_for_leader()
    leader.kill()
    found.wait_for_leader(other_than=leader)
    acked_more(found)
    restart(found, leader)


def restart(found: Fleet, member: Member) -> None:
    member.start()
    found.lives += 1
    keep_publishing(member, f"x{found.lives}")


def cut(found: Fleet, chance: random.Random) -> None:
    """Cut the leader and another member off, under loss, delay and duplication."""
    leader = found.wait_for_leader()
    other = chance.choice([member.number for member in found.members if member is not leader])
    found.net.loss, found.net.duplication, found.net.delay_s = 0.02, 0.05, 0.005
    for number in (leader.number, other):
        found.net.isolate(number, range(len(found.members)))
    found.wait_for_leader(other_than=leader)
    acked_more(found)
    found.net.cut.clear()
    found.net.loss = found.net.duplication = found.net.delay_s = 0.0


def stop(found: Fleet, _chance: random.Random) -> None:
    """Stop the leader for longer than it takes to be replaced."""
    leader = found.wait_for_leader()
    leader.signal(signal.SIGSTOP)
    time.sleep(DETECTED_S)
    leader.signal(signal.SIGCONT)
    acked_more(found)


def wipe(found: Fleet, chance: random.Random) -> None:
    """Remove the folder of a member that follows; it is taken in again."""
    found.converge_committed()
    leader = found.wait_for_leader()
    member = chance.choice([one for one in found.members if one is not leader])
    member.kill()
    member.wipe()
    restart(found, member)
    found.wait(lambda: found.is_member_again(member), "the member to be taken in again")


def late(found: Fleet, chance: random.Random) -> None:
    """Keep a member away until it has a backlog of thousands of packets."""
    leader = found.wait_for_leader()
    member = chance.choice([one for one in found.members if one is not leader])
    member.kill()
    acked_more(found, 5_000)
    restart(found, member)


def test_nothing_acknowledged_is_lost_doubled_or_reordered(tmp_path: Path) -> None:
    chance = random.Random(5)
    with fleet(tmp_path, 5, heartbeat_s=0.5) as found:
        for member in found.members:
            keep_publishing(member)
        turns = 0
        while len(found.acked) < EVENTS or turns < 10:
            fault = chance.choice([kill, kill, cut, stop, wipe, late])
            fault(found, chance)
            turns += 1
            acked_more(found, 500)
            print(f"{turns}: {fault.__name__}, {len(found.acked)} acknowledged", flush=True)  # noqa: T201
        events = finish(found)
        print(f"{events} events, {len(found.acked)} acknowledged, {len(found.unresolved)} unresolved, {turns} faults")  # noqa: T201
        assert events >= EVENTS
