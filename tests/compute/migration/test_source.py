from __future__ import annotations

import pytest

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration import source as module
from meshbus.compute.migration.base import MigrationSettings, Phase, withdrawal
from meshbus.compute.recovery import keep
from meshbus.compute.registry import Factory
from meshbus.compute.store import Status
from meshbus.errors import MigrationError, MigrationFault
from meshbus.names.channel import ChannelName
from meshbus.policy.reason import Reason
from meshbus.wire.messages.checkpoint import InputPosition, term_in
from meshbus.wire.messages.migration import (
    CHUNK_BYTES,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    FailureCode,
    MigrationFailed,
    SnapshotReady,
    TakeSnapshot,
)
from meshbus.wire.messages.snapshot import decode_snapshot
from tests.compute.counter import Counter, Stubborn
from tests.compute.migration.trio import DAEMON, ORIGIN, OTHER, SOURCE, TARGET, Trio

REQUEST = TakeSnapshot(origin=ORIGIN, attempt=7, target_node=TARGET)
CUTOVER = CutoverNotify(origin=ORIGIN, attempt=7, target_node=TARGET)


class Random(Counter):
    """Says that it is deterministic, and is not."""

    created = 0

    def __init__(self) -> None:
        super().__init__()
        Random.created += 1
        self.number = Random.created

    def process(self, event: DaemonEvent) -> list[bytes]:
        return [*super().process(event), b"%d" % self.number]


def event(number: int, payload: bytes = b"x") -> DaemonEvent:
    return DaemonEvent(0x77, number, payload)


def refusal(trio: Trio, request: TakeSnapshot) -> MigrationFailed:
    ((to, message),) = trio.say(OTHER, SOURCE, request)
    assert to == OTHER
    assert isinstance(message, MigrationFailed)
    return message


def test_outputs_on_their_way_are_published_before_the_snapshot() -> None:
    trio = Trio()
    for number in range(1, 5):
        trio[SOURCE].handler.deliver(ORIGIN, event(number))
    assert trio.host.pending
    assert trio.say(OTHER, SOURCE, REQUEST) == []
    assert trio.host.paused
    trio.host.published()
    ((to, message),) = trio[SOURCE].handler.tick(0)
    assert to == OTHER
    assert isinstance(message, SnapshotReady)


def test_a_daemon_with_a_ledger_leaves_after_the_ledger_knows_that_it_runs_here() -> None:
    trio = Trio()
    registry = trio[SOURCE].registry
    registry.withdraw(ORIGIN)
    registry.offer(ORIGIN, Factory(create=Stubborn, identity=DAEMON, has_ledger=True))
    assert trio.say(OTHER, SOURCE, REQUEST) == []
    trio.host.term, trio.host.in_ledger = 7, True
    ((_, message),) = trio[SOURCE].handler.tick(0)
    assert isinstance(message, SnapshotReady)
    assert term_in(decode_snapshot(message.chunk).state) == 7


def test_what_cannot_move_is_refused_with_a_reason() -> None:
    trio = Trio()
    unknown = TakeSnapshot(origin=1, attempt=7, target_node=TARGET)
    assert "does not run" in refusal(trio, unknown).text
    assert "already" in refusal(trio, TakeSnapshot(origin=ORIGIN, attempt=7, target_node=SOURCE)).text
    trio[SOURCE].registry.remove(ORIGIN)
    trio[SOURCE].registry.add(DaemonHost(DAEMON, Stubborn(), [InputPosition(9, ChannelName("in"))]))
    assert "logs" in refusal(trio, TakeSnapshot(origin=ORIGIN, target_node=TARGET)).text
    assert trio[SOURCE].counted(Reason.REFUSE_MIGRATION_STATE) == 3


def test_a_snapshot_that_is_too_large_is_refused() -> None:
    trio = Trio(settings=MigrationSettings(max_snapshot_bytes=100))
    assert "bytes" in refusal(trio, REQUEST).text
    assert not trio.host.paused


def test_too_many_moves_at_once_are_refused() -> None:
    trio = Trio(settings=MigrationSettings(max_moves=0))
    assert refusal(trio, REQUEST).code == FailureCode.NOT_READY
    assert trio[SOURCE].counted(Reason.REFUSE_MIGRATION_FULL) == 1


def test_an_attempt_begins_only_once_even_after_a_restart() -> None:
    trio = Trio()
    keep(trio[SOURCE].store, trio.host, 0)
    trio.say(OTHER, SOURCE, REQUEST)
    assert trio.say(OTHER, SOURCE, withdrawal(ORIGIN, 7)) != []
    assert "over" in refusal(trio, REQUEST).text
    restarted = Trio()
    restarted[SOURCE].store.records |= trio[SOURCE].store.records
    assert "over" in refusal(restarted, REQUEST).text


def test_attempts_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_BEGUN", 2)
    trio = Trio()
    keep(trio[SOURCE].store, trio.host, 0)
    for attempt in range(1, 6):
        trio.say(OTHER, SOURCE, TakeSnapshot(origin=ORIGIN, attempt=attempt, target_node=TARGET))
        trio.say(OTHER, SOURCE, withdrawal(ORIGIN, attempt))
    assert len(trio[SOURCE].handler.source._begun) == 2


def test_a_repeated_request_sends_the_same_snapshot() -> None:
    trio = Trio()
    first = trio.say(OTHER, SOURCE, REQUEST)
    trio.now = 1.0
    assert trio.say(OTHER, SOURCE, REQUEST) == first


def test_events_wait_while_a_daemon_is_handed_over_and_come_back() -> None:
    trio = Trio()
    trio.say(OTHER, SOURCE, REQUEST)
    for number in range(1, 4):
        assert trio[SOURCE].handler.deliver(ORIGIN, event(number)) == []
    assert trio.host.stats.processed == 0
    trio.say(OTHER, SOURCE, withdrawal(ORIGIN, 7))
    assert trio.host.stats.processed == 3
    assert trio[SOURCE].handler.phase(ORIGIN) is None


@pytest.mark.parametrize("limit", ["size", "room"])
def test_rather_no_move_than_a_lost_event(limit: str) -> None:
    settings = MigrationSettings(max_buffered_bytes=64 << 20 if limit == "size" else 0)
    trio = Trio(settings=settings)
    trio.say(OTHER, SOURCE, REQUEST)
    payload = bytes(CHUNK_BYTES + 1) if limit == "size" else b"x"
    trio[SOURCE].handler.deliver(ORIGIN, event(1, payload))
    assert trio.host.stats.processed == 1
    assert trio[SOURCE].handler.phase(ORIGIN) is None
    assert trio[SOURCE].counted(Reason.REFUSE_MIGRATION_FULL) == 1


def test_an_event_for_a_daemon_that_is_elsewhere_is_an_error() -> None:
    with pytest.raises(MigrationError) as caught:
        Trio()[OTHER].handler.deliver(ORIGIN, event(1))
    assert caught.value.fault == MigrationFault.DAEMON_NOT_FOUND


def test_silence_lets_the_daemon_go_on() -> None:
    trio = Trio()
    trio.say(OTHER, SOURCE, REQUEST)
    handler = trio[SOURCE].handler
    assert handler.next_timer() == trio[SOURCE].settings.give_up_s
    ((to, message),) = handler.tick(trio[SOURCE].settings.give_up_s)
    assert to == OTHER
    assert isinstance(message, MigrationFailed)
    assert not trio.host.paused


def test_the_handover_is_written_before_it_is_confirmed_and_confirmed_again() -> None:
    trio = Trio()
    trio.say(OTHER, SOURCE, REQUEST)
    cleanup = [(OTHER, CleanupComplete(origin=ORIGIN, attempt=7))]
    assert trio.say(OTHER, SOURCE, CUTOVER) == cleanup
    mark = trio[SOURCE].store.marked(ORIGIN)
    assert mark is not None
    assert (mark.status, mark.target, mark.orchestrator) == (Status.MOVED, TARGET, OTHER)
    assert trio.say(OTHER, SOURCE, CUTOVER) == cleanup
    assert trio.say(OTHER, SOURCE, REQUEST) == []
    assert trio[SOURCE].counted(Reason.MIGRATION_STALE) == 1
    assert trio.runs_on() == []


def test_only_the_orchestrator_can_take_back_what_was_handed_over() -> None:
    trio = Trio()
    trio.say(OTHER, SOURCE, REQUEST)
    trio.say(OTHER, SOURCE, CUTOVER)
    trio.say(TARGET, SOURCE, withdrawal(ORIGIN, 7))
    trio.say(OTHER, SOURCE, withdrawal(ORIGIN, 8))
    assert trio.runs_on() == []
    assert trio[SOURCE].counted(Reason.MIGRATION_STALE) == 2
    trio.say(OTHER, SOURCE, withdrawal(ORIGIN, 7))
    assert trio.runs_on() == [SOURCE]


def test_a_copy_that_does_something_else_ends_the_move() -> None:
    trio = Trio(Random)
    trio.lost = lambda _source, _to, message: isinstance(message, SnapshotReady)
    trio.start()
    trio[SOURCE].handler.deliver(ORIGIN, event(1))
    trio.host.published()
    trio.lost = lambda _source, _to, _message: False
    for _ in range(4):
        trio.tick(0.6)
    (ended,) = trio[SOURCE].handler.take_ended()
    assert ended.error is not None
    assert "deterministic" in str(ended.error)
    assert trio.runs_on() == [SOURCE]
    assert trio[TARGET].handler.phase(ORIGIN) is None


def test_a_plain_orchestrator_gets_what_real_sources_send() -> None:
    trio = Trio()
    plain = TakeSnapshot(origin=ORIGIN, target_node=TARGET)
    trio.say(OTHER, SOURCE, plain)
    trio[SOURCE].handler.deliver(ORIGIN, event(900))
    assert trio[SOURCE].handler.phase(ORIGIN) == Phase.TRANSFER
    out = trio.say(OTHER, SOURCE, CutoverNotify(origin=ORIGIN, target_node=TARGET))
    (to, events), cleanup = out
    assert to == TARGET
    assert isinstance(events, BufferedEvents)
    # Renumbered, so that a 0.23 target finds the event next in its replay (compute.md §6).
    assert [item.link.sequence for item in events.events] == [1]
    assert cleanup == (OTHER, CleanupComplete(origin=ORIGIN))


def test_a_daemon_that_fails_in_a_move_ends_the_move_and_keeps_what_it_has_not_processed() -> None:
    trio = Trio()
    trio.say(OTHER, SOURCE, REQUEST)
    trio[SOURCE].handler.deliver(ORIGIN, event(1))
    source = trio[SOURCE].handler.source
    assert source.phase(ORIGIN) is not None
    assert not source.is_stopping(ORIGIN)
    trio.say(OTHER, SOURCE, CUTOVER)
    assert source.is_stopping(ORIGIN)
    ((to, message),), kept = source.abandon(ORIGIN)
    assert (to, kept) == (OTHER, [event(1)])
    assert isinstance(message, MigrationFailed)
    assert source.phase(ORIGIN) is None
    assert source.abandon(ORIGIN) == ([], [])


def test_only_the_nodes_that_a_factory_names_may_take_a_daemon_away() -> None:
    trio = Trio()
    registry = trio[SOURCE].registry
    registry.withdraw(ORIGIN)
    registry.offer(ORIGIN, Factory(create=Stubborn, identity=DAEMON, orchestrators=frozenset({TARGET})))
    assert trio.say(OTHER, SOURCE, REQUEST) == []
    assert trio[SOURCE].counted(Reason.REFUSE_MIGRATION_SENDER) == 1
    assert trio.say(TARGET, SOURCE, REQUEST) != []
    trio = Trio()
    trio[SOURCE].registry.withdraw(ORIGIN)
    trio[SOURCE].registry.offer(ORIGIN, Factory(create=Stubborn, identity=DAEMON, orchestrators=frozenset()))
    trio.start(SOURCE)
    assert trio.runs_on() == [TARGET], "the node itself always may"
