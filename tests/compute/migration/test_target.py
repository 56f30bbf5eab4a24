from __future__ import annotations

import msgspec
import pytest

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration import target as module
from meshbus.compute.migration.base import MigrationSettings, Phase, failure
from meshbus.compute.registry import Factory
from meshbus.compute.store import Status, begin
from meshbus.names.identity import Identity
from meshbus.policy.reason import Reason
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.migration import (
    ActivateAck,
    ActivateTarget,
    BufferedEvent,
    BufferedEvents,
    FailureCode,
    MigrationFailed,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
)
from meshbus.wire.messages.snapshot import encode_snapshot
from tests.compute.counter import Counter, OneEach, Stubborn
from tests.compute.migration.trio import DAEMON, ORIGIN, OTHER, SOURCE, TARGET, Trio

ACTIVATE = ActivateTarget(origin=ORIGIN, attempt=7)


def part(raw: bytes | None = None, attempt: int | None = 7, seq: int = 0, moves: int = 0) -> SnapshotReady:
    if raw is None:
        host = DaemonHost(DAEMON, Stubborn())
        host.moves = moves
        raw = encode_snapshot(host.snapshot(0, bare=attempt is None))
    return SnapshotReady(origin=ORIGIN, attempt=attempt, seq_through=seq, chunk_index=0, total_chunks=1, chunk=raw)


def events(*numbers: int, attempt: int | None = 7) -> BufferedEvents:
    found = tuple(BufferedEvent(CausalLink(9, sequence=number), b"%d" % number, number) for number in numbers)
    return BufferedEvents(origin=ORIGIN, attempt=attempt, events=found)


def failed(trio: Trio, message: SnapshotReady) -> MigrationFailed:
    ((to, answer),) = trio.say(SOURCE, TARGET, message)
    assert to == SOURCE
    assert isinstance(answer, MigrationFailed)
    return answer


def replayed(trio: Trio, message: BufferedEvents) -> int:
    ((_, answer),) = trio.say(SOURCE, TARGET, message)
    assert isinstance(answer, ReplayComplete)
    return answer.replayed_seq


def test_a_snapshot_is_staged_on_disk_before_it_is_confirmed_and_only_once() -> None:
    trio = Trio()
    answer = [(SOURCE, RestoreComplete(origin=ORIGIN, attempt=7, restored_seq=0))]
    assert trio.say(SOURCE, TARGET, part()) == answer
    mark = trio[TARGET].store.marked(ORIGIN)
    assert mark is not None
    assert (mark.status, mark.orchestrator) == (Status.STAGED, SOURCE)
    assert trio.say(SOURCE, TARGET, part()) == answer
    assert trio[TARGET].handler.phase(ORIGIN) == Phase.RESTORE
    assert ORIGIN not in trio[TARGET].registry


def test_completed_moves_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_COMPLETED", 2)
    trio = Trio()
    for attempt in range(1, 6):
        trio.say(SOURCE, TARGET, part(attempt=attempt, moves=attempt))
        replayed(trio, events(attempt=attempt))
        assert trio.say(SOURCE, TARGET, ActivateTarget(origin=ORIGIN, attempt=attempt)) != []
        trio[TARGET].registry.remove(ORIGIN)
        trio[TARGET].store.remove(ORIGIN)
    assert len(trio[TARGET].handler.target._completed) == 2


@pytest.mark.parametrize("attempt", [None, 7])
def test_events_are_replayed_in_order_as_observed(attempt: int | None) -> None:
    """13, 11 and 9 after a snapshot through 10, then 12: 11 first, then 13."""
    trio = Trio()
    host = DaemonHost(DAEMON, OneEach())
    for number in range(1, 11):
        host.replay(DaemonEvent(9, number, b""), shadow=True)
    trio[TARGET].registry.withdraw(ORIGIN)
    trio[TARGET].registry.offer(ORIGIN, Factory(create=OneEach, identity=DAEMON))
    raw = encode_snapshot(host.snapshot(0, bare=attempt is None))
    trio.say(SOURCE, TARGET, part(raw, attempt, seq=10))
    assert replayed(trio, events(13, 11, 9, attempt=attempt)) == 11
    assert replayed(trio, events(12, attempt=attempt)) == 13


def test_activation_is_confirmed_as_often_as_it_is_asked_for() -> None:
    trio = Trio()
    trio.say(SOURCE, TARGET, part())
    replayed(trio, events(1, 2))
    ack = [(SOURCE, ActivateAck(origin=ORIGIN, attempt=7, replayed_seq=2))]
    assert trio.say(SOURCE, TARGET, ACTIVATE) == ack
    assert trio.say(SOURCE, TARGET, ACTIVATE) == ack
    mark = trio[TARGET].store.marked(ORIGIN)
    assert mark is not None
    assert (mark.status, mark.moves, mark.attempt) == (Status.ACTIVE, 1, 7)
    # What runs is not touched by a failure, nor by another snapshot.
    trio.say(SOURCE, TARGET, failure(ORIGIN, 7, "late"))
    assert trio.say(SOURCE, TARGET, part()) == []
    assert "already" in failed(trio, part(attempt=8)).text
    assert trio.say(SOURCE, TARGET, events(3)) == []
    assert ORIGIN in trio[TARGET].registry


def test_a_restart_continues_with_what_was_staged() -> None:
    trio = Trio()
    trio.say(SOURCE, TARGET, part())
    replayed(trio, events(1, 2))
    restarted = Trio()
    restarted[TARGET].store.records |= trio[TARGET].store.records
    restarted[TARGET].handler.recover(0.0)
    ((to, answer),) = restarted[TARGET].handler.tick(1.0)
    assert to == SOURCE
    assert isinstance(answer, ReplayComplete)
    assert answer.replayed_seq == 2
    assert restarted.say(SOURCE, TARGET, ACTIVATE) != []
    host = restarted[TARGET].registry.get(ORIGIN)
    assert host is not None
    assert host.stats.processed == 2


def test_what_is_staged_and_cannot_be_restored_is_neither_lost_nor_confirmed() -> None:
    trio = Trio()
    trio.say(SOURCE, TARGET, part())
    restarted = Trio()
    restarted[TARGET].store.records |= trio[TARGET].store.records
    restarted[TARGET].registry.withdraw(ORIGIN)
    restarted[TARGET].handler.recover(0.0)
    assert restarted.say(SOURCE, TARGET, ACTIVATE) == []
    assert restarted[TARGET].counted(Reason.MIGRATION_UNEXPECTED) == 1
    assert restarted[TARGET].store.marked(ORIGIN) == trio[TARGET].store.marked(ORIGIN)


def test_bad_snapshots_are_refused_with_a_reason() -> None:
    trio = Trio()
    good = encode_snapshot(DaemonHost(DAEMON, Stubborn()).snapshot(0))
    other = encode_snapshot(DaemonHost(Identity.from_seed(bytes(32)), Stubborn()).snapshot(0))
    for raw in (b"nonsense", good[:-1], other):
        assert "failed to parse snapshot bytes on target" in failed(trio, part(raw)).text
    assert "parse" in failed(trio, part(good, seq=5)).text
    bad_state = encode_snapshot(DaemonHost(DAEMON, Stubborn()).snapshot(0, bare=True)).replace(bytes(16), b"")
    assert failed(trio, part(bad_state)).code == FailureCode.STATE_FAILED
    assert trio[TARGET].counted(Reason.REFUSE_MIGRATION_STATE) == 5
    assert trio[TARGET].store.origins() == []


def test_without_a_factory_or_a_key_nothing_arrives() -> None:
    trio = Trio(identity=None)
    assert "envelope" in failed(trio, part()).text
    trio[TARGET].registry.withdraw(ORIGIN)
    assert failed(trio, part()).code == FailureCode.FACTORY_NOT_FOUND
    trio[TARGET].registry.offer(ORIGIN, Factory(create=Counter, identity=Identity.from_seed(bytes(32))))
    assert "another key" in failed(trio, part()).text


def test_a_factory_chooses_who_may_move_its_daemon_here() -> None:
    trio = Trio()
    trio[TARGET].registry.withdraw(ORIGIN)
    factory = Factory(create=Stubborn, identity=DAEMON, orchestrators=frozenset({OTHER}))
    trio[TARGET].registry.offer(ORIGIN, factory)
    assert trio.say(SOURCE, TARGET, part()) == []
    assert trio[TARGET].counted(Reason.REFUSE_MIGRATION_SENDER) == 1
    assert trio.say(OTHER, TARGET, part()) != []


def test_parts_that_do_not_fit_are_counted() -> None:
    trio = Trio()
    assert trio.say(SOURCE, TARGET, part(b"")) == []
    assert trio[TARGET].counted(Reason.MIGRATION_PART) == 1


def test_limits_are_kept() -> None:
    trio = Trio(settings=MigrationSettings(max_buffered_bytes=1))
    trio.say(SOURCE, TARGET, part())
    assert trio.say(SOURCE, TARGET, events(5, 6)) == []
    assert trio[TARGET].counted(Reason.REFUSE_MIGRATION_FULL) == 1
    full = Trio(settings=MigrationSettings(max_moves=0))
    assert failed(full, part()).code == FailureCode.NOT_READY


def test_a_snapshot_from_before_the_last_handover_is_from_the_past() -> None:
    trio = Trio()
    trio.start()
    assert trio.say(TARGET, SOURCE, part(moves=0)) == []
    assert trio[SOURCE].counted(Reason.MIGRATION_STALE) == 1
    assert trio.say(TARGET, SOURCE, part(moves=1)) != []


def test_another_attempt_waits_until_the_orchestrator_has_ended_the_first() -> None:
    trio = Trio()
    trio.say(SOURCE, TARGET, part())
    assert trio.say(SOURCE, TARGET, part(attempt=8)) == [
        (SOURCE, RestoreComplete(origin=ORIGIN, attempt=7, restored_seq=0))
    ]
    trio.say(SOURCE, TARGET, failure(ORIGIN, 7, "over"))
    assert trio.say(SOURCE, TARGET, part(attempt=8)) == [
        (SOURCE, RestoreComplete(origin=ORIGIN, attempt=8, restored_seq=0))
    ]


def test_attempts_that_began_here_are_remembered_when_the_daemon_comes_and_goes() -> None:
    trio = Trio()
    trio.start()
    begun = trio.log[0][2].attempt
    mark = trio[SOURCE].store.marked(ORIGIN)
    # Nothing was kept on disk before the move, so that only the memory of the source has the attempt.
    assert mark is not None
    trio[SOURCE].store.mark(ORIGIN, begin(mark, begun or 0))
    trio.say(TARGET, SOURCE, part(moves=1))
    trio.say(TARGET, SOURCE, failure(ORIGIN, 7, "over"))
    mark = trio[SOURCE].store.marked(ORIGIN)
    assert mark is not None
    assert (mark.status, mark.begun) == (Status.MOVED, (begun,))
    assert trio.say(TARGET, SOURCE, part(attempt=8, moves=1)) != []
    trio.say(TARGET, SOURCE, ActivateTarget(origin=ORIGIN, attempt=8))
    mark = trio[SOURCE].store.marked(ORIGIN)
    assert mark is not None
    assert (mark.status, mark.begun) == (Status.ACTIVE, (begun,))


def test_events_for_an_unknown_move_end_it() -> None:
    trio = Trio()
    ((to, answer),) = trio.say(SOURCE, TARGET, events(1))
    assert to == SOURCE
    assert isinstance(answer, MigrationFailed)
    assert trio.say(SOURCE, TARGET, events(1, attempt=None)) == []
    assert trio[TARGET].counted(Reason.MIGRATION_UNEXPECTED) == 2


def test_a_plain_move_that_nobody_continues_is_forgotten_before_the_replay_only() -> None:
    trio = Trio()
    trio.say(SOURCE, TARGET, part(attempt=None))
    trio[TARGET].handler.tick(31.0)
    assert trio[TARGET].handler.phase(ORIGIN) is None
    trio.say(SOURCE, TARGET, part(attempt=None))
    replayed(trio, events(1, attempt=None))
    trio[TARGET].handler.tick(400.0)
    assert trio[TARGET].handler.phase(ORIGIN) == Phase.REPLAY


def plain(count: int, created_ns: int) -> SnapshotReady:
    """Return the snapshot of a counter in a move without a number."""
    host = DaemonHost(DAEMON, Stubborn())
    host.daemon.count = count  # type: ignore[attr-defined]
    return part(encode_snapshot(host.snapshot(created_ns, bare=True)), None)


def test_a_plain_orchestrator_that_tries_again_is_believed_its_newer_snapshot() -> None:
    trio = Trio()
    restored = [(SOURCE, RestoreComplete(origin=ORIGIN, restored_seq=0))]
    assert trio.say(SOURCE, TARGET, plain(1, 1000)) == restored
    assert trio.say(SOURCE, TARGET, plain(5, 2000)) == restored
    # A late copy of the first one changes nothing.
    assert trio.say(SOURCE, TARGET, plain(1, 1000)) == restored
    unreadable = msgspec.structs.replace(plain(1, 3000), chunk=b"CDS1")
    assert failed(trio, unreadable).code == FailureCode.STATE_FAILED
    trio.say(SOURCE, TARGET, BufferedEvents(origin=ORIGIN))
    trio.say(SOURCE, TARGET, ActivateTarget(origin=ORIGIN))
    host = trio[TARGET].registry.get(ORIGIN)
    assert host is not None
    assert host.daemon.count == 5  # type: ignore[attr-defined]


def test_a_failure_before_the_snapshot_is_complete_removes_its_parts() -> None:
    trio = Trio()
    whole = plain(1, 1000)
    half = len(whole.chunk) // 2
    first, second = (
        msgspec.structs.replace(whole, chunk_index=index, total_chunks=2, chunk=chunk)
        for index, chunk in enumerate((whole.chunk[:half], whole.chunk[half:]))
    )
    assert trio.say(SOURCE, TARGET, first) == []
    assert trio.say(SOURCE, TARGET, failure(ORIGIN, None, "cancel requested")) == []
    assert trio.say(SOURCE, TARGET, second) == []
    assert trio.say(SOURCE, TARGET, first) == [(SOURCE, RestoreComplete(origin=ORIGIN, restored_seq=0))]
