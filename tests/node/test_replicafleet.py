"""Three real processes replicate a channel while leaders are killed, cut off and stopped."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.node.replicafleet import Fleet, Member, fleet

pytestmark = pytest.mark.slow

DETECTED_S = 2.0
"""Longer than three heartbeats of the leader and the random time that a candidate waits."""


def keep_publishing(member: Member, life: str = "") -> None:
    """Let a member publish until the end, some events one by one and some in batches."""
    for batch in (1, 20):
        member.do("publish", f"n{member.number}{life}.{batch}.", 1 << 30, batch)


def finish(found: Fleet) -> int:
    """Stop everything when all members have the same log, and compare it with what was acknowledged."""
    for member in found.running():
        member.do("halt")
    found.converge()
    for member in found.running():
        member.stop()
    return found.check()


def acked_more(found: Fleet, events: int = 20) -> None:
    """Wait until more events were acknowledged: the set works."""
    before = len(found.acked)
    found.wait(lambda: len(found.acked) >= before + events, "acknowledgements")


def test_nothing_acknowledged_is_lost_doubled_or_reordered(tmp_path: Path) -> None:
    with fleet(tmp_path) as found:
        for member in found.members:
            keep_publishing(member)
        acked_more(found)

        killed = found.wait_for_leader()
        killed.kill()
        found.wait_for_leader(other_than=killed)
        acked_more(found)
        killed.start()
        keep_publishing(killed, "again")

        cut = found.wait_for_leader()
        found.net.loss, found.net.duplication, found.net.delay_s = 0.02, 0.05, 0.005
        found.net.isolate(cut.number, range(3))
        found.wait_for_leader(other_than=cut)
        acked_more(found)
        found.net.cut.clear()

        stopped = found.wait_for_leader()
        stopped.signal(signal.SIGSTOP)
        time.sleep(DETECTED_S)
        stopped.signal(signal.SIGCONT)
        acked_more(found)
        found.net.loss = found.net.duplication = found.net.delay_s = 0.0

        wiped = next(member for member in found.members if member is not found.wait_for_leader())
        wiped.kill()
        wiped.wipe()
        wiped.start()
        acked_more(found)
        assert finish(found) >= len(found.acked)


def leader_and_rest(found: Fleet) -> tuple[Member, list[Member]]:
    leader = found.wait_for_leader()
    return leader, [member for member in found.members if member is not leader]


def test_without_a_majority_appends_are_refused_and_reading_goes_on(tmp_path: Path) -> None:
    with fleet(tmp_path) as found:
        leader, rest = leader_and_rest(found)
        leader.do("publish", "before.", 10, 10)
        found.wait(lambda: "before." in found.done, "the first events")
        for member in rest:
            member.kill()
        leader.do("publish", "alone.", 1, 1)
        found.wait(lambda: found.refused["no_majority"] + len(found.unresolved) > 0, "a refusal")
        assert "alone.0" not in found.acked
        found.look(leader)
        assert leader.status["committed"] == 10
        for member in rest:
            member.start()
        found.wait(lambda: "alone." in found.done, "the last event")
        assert finish(found) >= 10
