from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.errors import DaemonError, DaemonFault, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.wire.messages.bindings import Binding
from meshbus.wire.messages.causal import hash_event, pack_link
from meshbus.wire.messages.checkpoint import InputPosition, decode_checkpoint, encode_checkpoint
from meshbus.wire.messages.snapshot import decode_snapshot, encode_snapshot
from tests.compute.counter import Counter, OneEach
from tests.vectors import load

DAEMON = Identity.from_seed(bytes(range(32)))
LOG = InputPosition(7, ChannelName("in"))


class Broken:
    def process(self, _event: DaemonEvent) -> Sequence[bytes]:
        raise RuntimeError("boom")


class Refusing(Counter):
    def snapshot(self) -> bytes:
        raise RuntimeError("not now")

    def restore(self, _state: bytes) -> None:
        raise RuntimeError("never")


class Nothing(Counter):
    def snapshot(self) -> bytes:
        return None  # type: ignore[return-value]


def fed(host: DaemonHost, first: int, count: int) -> DaemonHost:
    for sequence in range(first, first + count):
        host.deliver(DaemonEvent(LOG.origin, sequence, b"%d" % sequence))
    return host


def test_the_chain_of_a_real_daemon_is_reproduced() -> None:
    host = DaemonHost(DAEMON, OneEach())
    outputs = [event for number in range(5) for event in host.deliver(DaemonEvent(0x77, number + 1, b""))]
    recorded = load("mesh")["causal_chain"]["links"][1:]
    assert [pack_link(event.link).hex() for event in outputs] == [row["link"] for row in recorded]
    assert [event.payload.hex() for event in outputs] == [row["payload"] for row in recorded]
    assert host.stats == (5, 5, 0, 0)


def test_a_bare_snapshot_continues_as_on_a_real_node() -> None:
    raw = bytes.fromhex(load("mesh")["state_snapshot"]["computed_minimal"]["hex"])
    snapshot = decode_snapshot(raw)
    daemon = OneEach()
    daemon.restore = lambda state: setattr(daemon, "count", int.from_bytes(state, "little"))  # type: ignore[method-assign]
    host = DaemonHost.restored(snapshot, daemon, DAEMON)
    (event,) = host.deliver(DaemonEvent(0x77, 6, b""))
    assert event.payload == (6).to_bytes(4, "little")
    assert event.link.parent_hash == hash_event(snapshot.head, snapshot.state)


def test_a_checkpoint_continues_the_chain_the_horizon_and_the_logs() -> None:
    alone = fed(DaemonHost(DAEMON, Counter(), [LOG]), 0, 20)
    host = fed(DaemonHost(DAEMON, Counter(), [LOG]), 0, 8)
    host.bindings = (Binding(3, ChannelName("x")),)
    host.moves = 2
    snapshot = decode_snapshot(encode_snapshot(host.snapshot(5)))
    moved = DaemonHost.restored(snapshot, Counter(), DAEMON)
    assert (moved.pending, moved.moves, moved.bindings) == (host.pending, 2, host.bindings)
    assert moved.batch == host.batch == host.head.sequence - len(host.pending) + 1
    moved.published()
    fed(moved, 8, 12)
    assert moved.head == alone.head
    assert moved.inputs == alone.inputs == (InputPosition(7, ChannelName("in"), 20),)
    assert moved.horizon.pairs() == alone.horizon.pairs()
    assert moved.writer == alone.writer == f"daemon/{DAEMON.origin_hash:016x}"


def test_pending_outputs_keep_their_links_and_must_lead_to_the_head() -> None:
    host = fed(DaemonHost(DAEMON, Counter(), [LOG]), 0, 4)
    host.deliver(DaemonEvent(0x77, 1, b"of another origin"))
    fed(host, 4, 4)
    assert len({event.link.horizon for event in host.pending}) == 2
    snapshot = host.snapshot(5)
    assert DaemonHost.restored(snapshot, Counter(), DAEMON).pending == host.pending
    checkpoint = decode_checkpoint(snapshot.state)
    changes: list[dict[str, Any]] = [
        {"pending_parent": 1},
        {"pending": checkpoint.pending[1:]},
        {"pending": checkpoint.pending * 2},
        {"parent_hash": 1},
    ]
    for change in changes:
        state = encode_checkpoint(msgspec.structs.replace(checkpoint, **change))
        with pytest.raises(MalformedPacket, match="outputs"):
            DaemonHost.restored(msgspec.structs.replace(snapshot, state=state), Counter(), DAEMON)


def test_events_of_a_log_are_processed_once_and_in_order() -> None:
    host = fed(DaemonHost(DAEMON, Counter(), [LOG]), 0, 3)
    head = host.head
    assert host.deliver(DaemonEvent(LOG.origin, 1, b"1")) == []
    assert host.head == head
    with pytest.raises(DaemonError) as caught:
        host.deliver(DaemonEvent(LOG.origin, 5, b"5"))
    assert caught.value.fault == DaemonFault.GAP


def test_outputs_of_a_shadow_are_not_pending() -> None:
    original, copy = (fed(DaemonHost(DAEMON, Counter(), [LOG]), 0, 4) for _ in range(2))
    pending = list(copy.pending)
    for sequence in range(4, 12):
        event = DaemonEvent(LOG.origin, sequence, b"%d" % sequence)
        original.deliver(event)
        copy.replay(event, shadow=True)
    assert copy.head == original.head
    assert copy.pending == pending


def test_a_paused_daemon_takes_no_events() -> None:
    host = DaemonHost(DAEMON, Counter())
    host.paused = True
    with pytest.raises(DaemonError) as caught:
        host.deliver(DaemonEvent(1, 1, b""))
    assert caught.value.fault == DaemonFault.PAUSED


def test_an_error_of_the_daemon_is_counted_and_raised() -> None:
    host = DaemonHost(DAEMON, Broken())
    with pytest.raises(DaemonError, match="boom"):
        host.deliver(DaemonEvent(1, 1, b""))
    assert host.stats.errors == 1


@pytest.mark.parametrize(
    ("daemon", "fault"),
    [(Broken(), DaemonFault.STATELESS), (Nothing(), DaemonFault.STATELESS), (Refusing(), DaemonFault.FAILED)],
)
def test_what_has_no_snapshot_cannot_move(daemon: Counter, fault: DaemonFault) -> None:
    with pytest.raises(DaemonError) as caught:
        DaemonHost(DAEMON, daemon).snapshot(0)
    assert caught.value.fault == fault


def test_a_state_that_is_refused_is_an_error() -> None:
    snapshot = DaemonHost(DAEMON, Counter()).snapshot(0)
    for daemon in (Refusing(), Broken()):
        with pytest.raises(DaemonError) as caught:
            DaemonHost.restored(snapshot, daemon, DAEMON)
        assert caught.value.fault == DaemonFault.RESTORE


def test_a_daemon_without_state_is_restored_from_nothing() -> None:
    snapshot = DaemonHost(DAEMON, Counter()).snapshot(0, bare=True)
    empty = msgspec.structs.replace(snapshot, state=b"")
    assert DaemonHost.restored(empty, Broken(), DAEMON).origin == DAEMON.origin_hash


def test_a_part_of_the_outputs_can_be_confirmed_and_the_rest_keeps_its_number() -> None:
    host = DaemonHost(Identity.from_seed(bytes(32)), OneEach())
    for number in range(5):
        host.deliver(DaemonEvent(1, number, b"x"))
    assert (host.batch, len(host.pending)) == (1, 5)
    host.published(3)
    assert (host.batch, len(host.pending)) == (4, 2)
    host.published()
    assert host.pending == []


def test_a_gap_in_a_log_can_be_skipped_but_never_backward() -> None:
    log = InputPosition(7, ChannelName("numbers"), 10)
    host = DaemonHost(Identity.from_seed(bytes(32)), Counter(), [log])
    host.skip(log.origin, 20)
    host.skip(log.origin, 15)
    assert host.inputs[0].next_seq == 20
    host.deliver(DaemonEvent(log.origin, 20, b"x"))
    assert host.inputs[0].next_seq == 21


def test_a_daemon_that_leaves_by_sys_exit_has_failed() -> None:
    class Leaver(Counter):
        def process(self, _event: DaemonEvent) -> list[bytes]:
            raise SystemExit(1)

    host = DaemonHost(Identity.from_seed(bytes(32)), Leaver())
    with pytest.raises(DaemonError) as caught:
        host.deliver(DaemonEvent(1, 1, b"x"))
    assert caught.value.fault is DaemonFault.FAILED
