"""A fleet of an older build is upgraded node by node under load: nothing acknowledged is lost or doubled.

Real processes on loopback, on the directories of the older build. While one node is replaced, the other two go on: they
publish to each other on reliable streams and append to a replicated log. Then one node is taken back to the older build by
mistake: it is refused by the others and damages nothing, and the next attempt with this build goes on.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from tests.upgrade.fleet import ALARMS, READINGS, Fleet, Member, fleet
from tests.upgrade.older import CURRENT

pytestmark = pytest.mark.slow


class Streams:
    """Two nodes that publish readings to each other."""

    def __init__(self, found: Fleet, one: Member, other: Member) -> None:
        self._fleet = found
        self._labels = {(one, other): found.follow(one, other), (other, one): found.follow(other, one)}
        self._prefixes = {member: member.publish(READINGS) for member in (one, other)}

    def wait_flowing(self, events: int = 5) -> None:
        """Wait until more events have arrived on both sides."""
        before = {label: len(self._fleet.followed[label]) for label in self._labels.values()}
        self._fleet.wait(
            lambda: all(len(self._fleet.followed[label]) >= seen + events for label, seen in before.items()),
            f"events on {', '.join(before)}",
        )

    def end(self) -> None:
        """Stop, and check that each side has got every event of the other once and in order."""
        counts = {member: member.halt(prefix) for member, prefix in self._prefixes.items()}
        for (subscriber, publisher), label in self._labels.items():
            found, prefix = self._fleet.followed[label], self._prefixes[publisher]
            self._fleet.wait(lambda: len(found) >= counts[publisher], f"all of {prefix}")  # noqa: B023 - called here
            assert found == [f"{prefix}{number}" for number in range(counts[publisher])]
            subscriber.do("unfollow", label)


def replace(found: Fleet, member: Member, alarms: dict[Member, str], build: Path) -> None:
    """Replace the process of one node while the others work."""
    others = [one for one in found.members if one is not member]
    streams = Streams(found, *others)
    streams.wait_flowing()
    member.halt(alarms[member])
    if member is found.members[-1]:
        member.kill()  # an upgrade after a crash; it dials the others itself, which do not know that it is gone
    else:
        member.stop()
    found.wait_acked()  # the other two are a majority
    member.start(build)
    found.wait_together(*found.members)
    alarms[member] = member.publish(ALARMS)
    found.wait_acked()
    streams.wait_flowing()
    streams.end()
    # Each node reads what the others have logged, whichever builds wrote it and ask for it.
    for reader, publisher in permutations(found.members, 2):
        logged = found.acked[READINGS, publisher.name]
        if logged:
            assert found.read_history(reader, publisher) == sorted(logged, key=logged.__getitem__)


def test_a_fleet_is_upgraded_node_by_node_and_a_node_that_goes_back_damages_nothing(
    older: Path, tmp_path: Path
) -> None:
    with fleet(tmp_path, older) as found:
        alarms = {member: member.publish(ALARMS) for member in found.members}
        for member in found.members:
            replace(found, member, alarms, CURRENT)

        # All are of this build now, and know each other as secure.
        found.look()
        for one, other in permutations(found.members, 2):
            assert one.status["peers"][other.id] is True

        back, (first, second) = found.members[2], found.members[:2]
        back.halt(alarms[back])
        back.stop()
        back.start(older)

        def refused() -> bool:
            found.look(first, second)
            return all(member.status["refused"] for member in (first, second))

        found.wait(refused, "the older build to be refused")
        assert not first.status["peers"].get(back.id)
        found.wait_acked()
        back.stop()
        back.start(CURRENT)
        found.wait_together(*found.members)
        alarms[back] = back.publish(ALARMS)
        found.wait_acked()

        for member, prefix in alarms.items():
            member.halt(prefix)
        found.wait_same()
        for member in found.members:
            member.stop()
        assert found.check() >= len(found.acked[ALARMS, ""])
