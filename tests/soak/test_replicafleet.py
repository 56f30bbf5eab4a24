"""Three and five real processes and 10^5 events, with every kind of fault again and again; the short form is in tests/node."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.node.replicas.replicafleet import Fleet, Member, fleet
from tests.node.replicas.test_replicafleet import acked_more, finish, keep_publishing

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
    """Cut the leader, and of five another one, off from the others, under loss, delay and duplication."""
    leader = found.wait_for_leader()
    everyone = range(len(found.members))
    others = [member.number for member in found.members if member is not leader]
    found.net.loss, found.net.duplication, found.net.delay_s = 0.02, 0.05, 0.005
    for number in [leader.number, *chance.sample(others, len(found.members) // 2 - 1)]:
        found.net.isolate(number, everyone)
    found.wait_for_leader(other_than=leader)
    acked_more(found)
    found.net.cut.clear()
    found.net.loss = found.net.duplication = found.net.delay_s = 0.0


def silence(found: Fleet, _chance: random.Random) -> None:
    """Let nobody hear the leader, which hears everybody."""
    leader = found.wait_for_leader()
    found.net.silence(leader.number, range(len(found.members)))
    found.wait_for_leader(other_than=leader)
    acked_more(found)
    found.net.cut.clear()


def slow(found: Fleet, chance: random.Random) -> None:
    """Let everything from and to a member take a tenth of a second."""
    member = chance.choice(found.members)
    found.net.slow[member.number] = 0.1
    acked_more(found, 1_000)
    found.net.slow.clear()


def stop(found: Fleet, _chance: random.Random) -> None:
    """Stop the leader for longer than it takes to be replaced."""
    leader = found.wait_for_leader()
    epoch = int(leader.status["epoch"])
    leader.signal(signal.SIGSTOP)
    time.sleep(DETECTED_S)
    leader.signal(signal.SIGCONT)
    assert int(found.wait_for_leader().status["epoch"]) > epoch
    acked_more(found)


def fill(found: Fleet, chance: random.Random) -> None:
    """Fill the disk of a member for a while."""
    member = chance.choice(found.members)
    member.fill_disk()
    acked_more(found, 1_000)
    member.clear_disk()
    found.wait(lambda: found.takes_part(member), "the member whose disk was full to take part again")


def truncate(found: Fleet, chance: random.Random) -> None:
    """Cut the newest file of a member in half; it is taken in again, as one that lost its memory."""
    found.converge_committed()
    member = chance.choice([one for one in found.members if one is not found.wait_for_leader()])
    member.kill()
    member.truncate()
    restart(found, member)
    found.wait(lambda: found.is_member_again(member), "the member to be taken in again")


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


@pytest.mark.parametrize("members", [3, 5])
def test_nothing_acknowledged_is_lost_doubled_or_reordered(tmp_path: Path, members: int) -> None:
    chance = random.Random(members)
    faults = [kill, cut, silence, slow, stop, wipe, late, fill, truncate]
    with fleet(tmp_path, members, heartbeat_s=0.5) as found:
        for member in found.members:
            keep_publishing(member)
        turns, order = 0, faults
        while len(found.acked) < EVENTS or turns < 2 * len(faults):
            # Each kind of fault once, in some order, then again in another one.
            order = chance.sample(faults, len(faults)) if turns % len(faults) == 0 else order
            fault = order[turns % len(faults)]
            fault(found, chance)
            turns += 1
            acked_more(found, 500)
            print(f"{turns}: {fault.__name__}, {len(found.acked)} acknowledged", flush=True)  # noqa: T201
        events = finish(found)
        print(f"{events} events, {len(found.acked)} acknowledged, {len(found.unresolved)} unresolved, {turns} faults")  # noqa: T201
        assert events >= EVENTS
