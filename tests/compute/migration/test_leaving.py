from __future__ import annotations

import pytest

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import MigrationSettings, Pace
from meshbus.compute.migration.leaving import Leaving
from meshbus.wire.messages.migration import TakeSnapshot
from tests.compute.counter import Counter, Stubborn
from tests.compute.migration.trio import DAEMON, ORIGIN, SOURCE, TARGET


def leaving(attempt: int | None, daemon: Counter) -> Leaving:
    request = TakeSnapshot(origin=ORIGIN, attempt=attempt, target_node=TARGET)
    return Leaving(request, SOURCE, DaemonHost(DAEMON, daemon), Pace(MigrationSettings(), 0))


@pytest.mark.parametrize(("attempt", "sequence"), [(None, 12), (5, 700)])
def test_kept_events_carry_the_number_where_their_target_reads_it(attempt: int | None, sequence: int) -> None:
    daemon = leaving(attempt, Stubborn())
    daemon.first = 11
    daemon.keep(DaemonEvent(3, 600, b"a"))
    daemon.keep(DaemonEvent(3, 700, b"bc"))
    assert daemon.bytes == 3
    (event,) = daemon.buffered(1, 2)
    assert (event.link.origin_hash, event.link.sequence, event.payload) == (3, sequence, b"bc")
    assert event.received_at == 12


def test_only_a_deterministic_daemon_among_meshbus_nodes_runs_on() -> None:
    assert leaving(5, Counter()).shadow
    assert not leaving(None, Counter()).shadow
    assert not leaving(5, Stubborn()).shadow
