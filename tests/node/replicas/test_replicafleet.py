"""Three real processes replicate a channel while leaders are killed, cut off and stopped."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.node.replicas.replicafleet import Fleet, Member, fleet

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


def test_slow_members_one_way_links_and_bad_disks_lose_nothing(tmp_path: Path) -> None:
    with fleet(tmp_path) as found:
        for member in found.members:
            keep_publishing(member)
        slow = found.wait_for_other()
        found.net.slow[slow.number] = 0.05
        acked_more(found)

        # The leader is heard by nobody, and hears everybody.
        silenced = found.wait_for_leader()
        found.net.silence(silenced.number, range(3))
        found.wait_for_leader(other_than=silenced)
        acked_more(found)
        found.net.cut.clear()
        found.net.slow.clear()

        # Its disk is full: it stops, stays readable, and the others go on.
        full = found.wait_for_leader()
        full.fill_disk()
        found.wait_for_leader(other_than=full)
        acked_more(found)
        found.look(full)
        assert full.status["role"] == "idle"
        assert full.status["waiting"], "it says why"
        full.clear_disk()

        # The end of its newest file is gone: it counts for nothing until it has copied again what it had confirmed.
        found.converge_committed()
        cut = found.wait_for_other()
        cut.kill()
        before = cut.incarnation
        cut.truncate()
        late = len(found.acked)
        acked_more(found, 500)  # far more than one packet
        cut.start()
        found.wait(lambda: found.is_member_again(cut), "the damaged member to be taken in again")
        assert len(found.acked) >= late + 500
        assert finish(found) >= len(found.acked)
        assert cut.incarnation != before


def test_what_a_leader_acknowledged_alone_and_lost_is_set_aside_and_named(tmp_path: Path) -> None:
    with fleet(tmp_path, acks="local") as found:
        leader, (other, _) = leader_and_rest(found)
        leader.do("publish", "both.", 10, 10)
        found.wait(lambda: "both." in found.done, "the first events")
        found.converge_committed()
        found.net.isolate(leader.number, range(3))
        leader.do("publish", "alone.", 5, 5)
        found.wait(lambda: "alone." in found.done, "the events of the leader that is cut off")
        found.wait_for_leader(other_than=leader)
        other.do("publish", "others.", 5, 5)
        found.wait(lambda: "others." in found.done, "the events of the others")
        found.net.cut.clear()
        assert finish(found) == 15
        assert leader.counters["replica"]["set_aside"] == 5
        assert leader.set_aside() == [b"alone.%d" % number for number in range(5)]


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
