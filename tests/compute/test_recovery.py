from __future__ import annotations

import msgspec
import pytest

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.recovery import event_of, keep, revive
from meshbus.compute.registry import Factory
from meshbus.compute.store import Mark, Status, Stored
from meshbus.errors import DaemonError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.checkpoint import InputPosition
from meshbus.wire.messages.migration import BufferedEvent
from meshbus.wire.messages.snapshot import encode_snapshot
from tests.compute.counter import Counter
from tests.compute.memorystore import MemoryStore

DAEMON = Identity.from_seed(bytes(range(32)))
LOG = InputPosition(7, ChannelName("in"))


def test_what_is_kept_comes_back() -> None:
    store, host = MemoryStore(), DaemonHost(DAEMON, Counter(), [LOG])
    for sequence in range(10):
        host.deliver(DaemonEvent(LOG.origin, sequence, b"%d" % sequence))
    host.moves = 4
    keep(store, host, 0)
    stored = store.load(host.origin)
    assert stored is not None
    revived = revive(stored, Factory(create=Counter))
    assert (revived.head, revived.inputs, revived.pending) == (host.head, host.inputs, host.pending)
    assert (revived.moves, revived.identity.seed) == (4, DAEMON.seed)


def test_a_checkpoint_keeps_what_the_record_knows_of_moves() -> None:
    store, host = MemoryStore(), DaemonHost(DAEMON, Counter())
    keep(store, host, 0)
    mark = Mark(status=Status.ACTIVE, attempt=5, begun=(6,))
    store.mark(host.origin, mark)
    keep(store, host, 0)
    assert store.marked(host.origin) == mark


@pytest.mark.parametrize("shadow", [True, False])
def test_events_that_were_replayed_are_replayed_again(shadow: bool) -> None:
    host = DaemonHost(DAEMON, Counter(), [LOG])
    snapshot = encode_snapshot(host.snapshot(0, shadow=shadow))
    events = tuple(BufferedEvent(CausalLink(LOG.origin, sequence=n), b"%d" % n, n + 1) for n in range(9))
    for event in events:
        host.deliver(event_of(event))
    stored = Stored(mark=Mark(status=Status.STAGED, moves=1), snapshot=snapshot, replayed=events)
    revived = revive(stored, Factory(create=Counter, identity=DAEMON))
    assert revived.head == host.head
    assert revived.pending == ([] if shadow else host.pending)
    assert revived.moves == 1


def test_without_the_key_nothing_comes_back() -> None:
    store, host = MemoryStore(), DaemonHost(Identity.from_public(DAEMON.entity_id), Counter())
    keep(store, host, 0)
    stored = store.load(host.origin)
    assert stored is not None
    assert stored.seed is None
    for factory in (Factory(create=Counter), Factory(create=Counter, identity=Identity.from_seed(bytes(32)))):
        with pytest.raises(DaemonError, match="key is missing"):
            revive(stored, factory)
    revive(msgspec.structs.replace(stored, seed=DAEMON.seed), Factory(create=Counter))
