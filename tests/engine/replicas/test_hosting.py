"""What the services of replicated channels share: timers, sending, and work for the node."""

from __future__ import annotations

import pytest

from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.base.packets import Output
from meshbus.engine.replicas.base import ReplicaSettings, Seat
from meshbus.engine.replicas.hosting import Hosting
from meshbus.engine.replicas.journal import Journal, Recovered
from meshbus.engine.replicas.records import Ballot, Committed, Out, Send
from meshbus.engine.services import SERVICES
from meshbus.engine.session.service import Context, Row
from meshbus.testing.rig import rig
from meshbus.wire.messages.leadership import Stale
from tests.engine.replicas.memorydisk import MemoryDisk

ID = bytes(32)


class Ticking:
    """A member that wants to be called every second, and says so."""

    def __init__(self) -> None:
        journal = Journal(Recovered(), Ballot(incarnation=1), MemoryDisk())
        self.seat = Seat(ID, 1, ReplicaSettings(nodes=(1, 2)), journal, bytes)
        self.due: float | None = None

    def open(self, now: float) -> Out:
        self.due = now + 1
        return Out()

    def tick(self, now: float) -> Out:
        out = Out()
        out.notices.append(Committed(int(now)))
        out.sends.append(Send(2, Stale(channel_id=ID, epoch=1)))
        self.due = None if now >= 3 else now + 1
        return out

    def next_timer(self) -> float | None:
        return self.due

    def measured(self, node: int, rtt_us: int) -> None:
        raise AssertionError


def hosting() -> Hosting[Ticking]:
    found: list[Hosting[Ticking]] = []

    def make(context: Context) -> Hosting[Ticking]:
        found.append(Hosting(context, 0x7EC0))
        return found[0]

    rig(table=(*SERVICES, Row(make)))
    return found[0]


def test_members_are_called_when_they_are_due_and_their_work_is_handed_over() -> None:
    host, out = hosting(), Output()
    host.begin(ID, Ticking(), 0.0, out)
    assert host.next_timer() == 1
    for now in (0.5, 1.0, 2.5, 4.0, 9.0):
        host.tick(now, out)
        host.finish(now, out)
    assert out.control == [ReplicaWork(ID, (), (Committed(seen),)) for seen in (1, 2, 4)]
    assert host.next_timer() is None
    # There is no session with the other member, so nothing was sent.
    assert not out.trains


def test_a_closed_member_is_forgotten_with_what_it_wanted() -> None:
    host, out = hosting(), Output()
    host.begin(ID, Ticking(), 0.0, out)
    assert ID in host
    host.tick(1.0, out)
    host.close(ID)
    host.finish(1.0, out)
    assert (out.control, host.next_timer(), ID in host) == ([], None, False)
    with pytest.raises(KeyError):
        host[ID]
