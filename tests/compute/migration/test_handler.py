"""Whole moves, and what any peer may try: sequences as real nodes have them, the traps of the specification refused."""

from __future__ import annotations

import pytest

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.migration import handler as handler_module
from meshbus.compute.migration.base import MigrationSettings, Outbound, Phase, failure
from meshbus.compute.store import Status
from meshbus.policy.reason import Reason
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.migration import (
    CHUNK_BYTES,
    ActivateTarget,
    BufferedEvent,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    MigrationFailed,
    MigrationMessage,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
    TakeSnapshot,
)
from tests.compute.counter import Bulky, Counter, Stubborn, run_alone
from tests.compute.migration.trio import DAEMON, ORIGIN, OTHER, SOURCE, TARGET, Trio
from tests.vectors import load

LETTERS = {"S": SOURCE, "T": TARGET, "O": OTHER}
RECORDED = load("mesh")["migration_messages"]


def event(number: int) -> DaemonEvent:
    return DaemonEvent(0x77, number, b"%d" % number)


@pytest.mark.parametrize("numbered", [True, False])
def test_two_nodes_say_what_real_ones_say(numbered: bool) -> None:
    trio = Trio()
    trio.start(numbered=numbered)
    recorded = [(LETTERS[row["from"]], row["name"]) for row in RECORDED["observed_two_node"]]
    assert [(source, type(message).__name__) for source, _, message in trio.log] == recorded
    assert trio.runs_on() == [TARGET]
    (ended,) = trio[SOURCE].handler.take_ended()
    assert ended == (ORIGIN, SOURCE, TARGET, None)


@pytest.mark.parametrize("envelopes", [True, False])
def test_three_nodes_say_what_real_ones_say(envelopes: bool) -> None:
    trio = Trio(identity=None if envelopes else DAEMON, envelopes=envelopes)
    trio.start(OTHER, numbered=False)
    recorded = [(LETTERS[row["from"]], LETTERS[row["to"]], row["name"]) for row in RECORDED["observed_three_party"]]
    assert [(source, to, type(message).__name__) for source, to, message in trio.log] == recorded
    assert trio.runs_on() == [TARGET]
    host = trio[TARGET].registry.get(ORIGIN)
    assert host is not None
    assert host.identity.seed == DAEMON.seed


@pytest.mark.parametrize("create", [Counter, Stubborn, Bulky])
@pytest.mark.parametrize("driver", [SOURCE, TARGET, OTHER])
def test_any_node_can_drive_a_move_of_any_daemon(driver: int, create: type[Counter]) -> None:
    trio = Trio(create)
    for number in range(1, 6):
        trio[SOURCE].handler.deliver(ORIGIN, event(number))
    trio.host.published()
    trio.start(driver)
    assert trio.runs_on() == [TARGET]
    moved = trio[TARGET].registry.get(ORIGIN)
    assert moved is not None
    assert (moved.moves, moved.head) == (1, trio.host.head)
    for member in trio.members.values():
        assert member.handler.phase(ORIGIN) is None
        assert member.handler.next_timer() is None


@pytest.mark.parametrize("create", [Counter, Stubborn])
@pytest.mark.parametrize(("driver", "numbered"), [(SOURCE, True), (SOURCE, False), (TARGET, True), (OTHER, True)])
def test_events_that_arrive_during_the_move_are_not_lost(driver: int, numbered: bool, create: type[Counter]) -> None:
    trio = Trio(create)
    arrived = iter(range(4, 60))

    def deliver_some(_source: int, _to: int, _message: MigrationMessage) -> bool:
        # Whenever a message is on its way, two more events come for the daemon, wherever it runs.
        for _ in range(2):
            for node in trio.runs_on():
                if (number := next(arrived, None)) is not None:
                    trio[node].handler.deliver(ORIGIN, event(number))
        return False

    for number in range(1, 4):
        trio[SOURCE].handler.deliver(ORIGIN, event(number))
    published = [output.payload for output in trio.host.pending]
    trio.host.published()
    trio.lost = deliver_some
    trio.start(driver, numbered=numbered)
    for _ in range(50):
        # The outputs of the running source have to be published before it can stop.
        published += [output.payload for output in trio.host.pending]
        trio.host.published()
        trio.tick(0.1)
    moved = trio[TARGET].registry.get(ORIGIN)
    assert moved is not None
    for number in arrived:
        trio[TARGET].handler.deliver(ORIGIN, event(number))
    state, outputs = run_alone([b"%d" % number for number in range(1, 60)])
    assert isinstance(moved.daemon, Counter)
    assert moved.daemon.snapshot() == state
    assert published + [output.payload for output in (*trio.host.pending, *moved.pending)] == outputs


def test_a_message_that_is_lost_is_sent_again() -> None:
    kinds = {message.split()[1] for message in _whole_move().sequence()}
    for kind in sorted(kinds):
        trio = Trio(Bulky)
        left = {kind}

        def lose(_source: int, _to: int, message: MigrationMessage, left: set[str] = left) -> bool:
            is_lost = type(message).__name__ in left
            left.discard(type(message).__name__)
            return is_lost

        trio.lost = lose
        trio.start(OTHER)
        for _ in range(8):
            trio.tick(0.6)
        assert not left
        assert trio.runs_on() == [TARGET], f"{kind} was lost once"


class Huge(Counter):
    """A state of many windows of parts."""

    def snapshot(self) -> bytes:
        return super().snapshot() + bytes(500 * CHUNK_BYTES)


@pytest.mark.parametrize("driver", [SOURCE, TARGET, OTHER])
def test_only_the_parts_that_were_lost_are_sent_again(driver: int) -> None:
    trio = Trio(Huge)
    lost = iter([number in (40, 41, 300) for number in range(10_000)])
    trio.lost = lambda source, _to, message: isinstance(message, SnapshotReady) and source == SOURCE and next(lost)
    trio.start(driver)
    for _ in range(8):
        trio.tick(0.1)
    assert trio.runs_on() == [TARGET]
    sent = [message for source, _, message in trio.log if source == SOURCE and isinstance(message, SnapshotReady)]
    assert len(sent) <= sent[0].total_chunks + 3 + 2


def test_a_target_that_falls_silent_halfway_ends_the_move() -> None:
    source = Trio(Huge)[SOURCE].handler.source
    source.take(TakeSnapshot(origin=ORIGIN, attempt=7, target_node=TARGET), OTHER, 0.0)
    assert source.phase(ORIGIN) is Phase.TRANSFER
    assert source.next_timer() == MigrationSettings().give_up_s
    ((to, message),) = source.tick(MigrationSettings().give_up_s)
    assert to == OTHER
    assert isinstance(message, MigrationFailed)
    assert source.phase(ORIGIN) is None


def _whole_move() -> Trio:
    trio = Trio(Bulky)
    trio.start(OTHER)
    return trio


# ── traps: what a peer that takes no part may try (compute.md §5) ───────────────────────────────


def halfway(trio: Trio, kind: type[MigrationMessage], driver: int = SOURCE) -> None:
    """Drive a move until the first message of a kind, which is lost."""
    trio.lost = lambda _source, _to, message: isinstance(message, kind)
    trio.start(driver)
    trio.lost = lambda _source, _to, _message: False


def attempt_of(trio: Trio) -> int | None:
    return trio.log[0][2].attempt


def test_events_of_a_stranger_are_not_executed() -> None:
    trio = Trio()
    halfway(trio, RestoreComplete)
    forged = BufferedEvent(CausalLink(1, sequence=1), b"evil", 1)
    for attempt in (attempt_of(trio), None):
        assert trio.say(OTHER, TARGET, BufferedEvents(origin=ORIGIN, attempt=attempt, events=(forged,))) == []
    assert trio[TARGET].counted(Reason.REFUSE_MIGRATION_SENDER) == 2
    trio.tick(0.6)
    moved = trio[TARGET].registry.get(ORIGIN)
    assert moved is not None
    assert moved.stats.processed == 0


def test_a_wrong_target_cannot_take_the_daemon() -> None:
    trio = Trio()
    halfway(trio, RestoreComplete, OTHER)
    attempt, head = attempt_of(trio), trio.host.head
    assert trio.say(SOURCE, OTHER, RestoreComplete(origin=ORIGIN, attempt=attempt, restored_seq=0)) == []
    replayed = ReplayComplete(origin=ORIGIN, attempt=attempt, replayed_seq=0, target_head=head)
    assert trio.say(SOURCE, OTHER, replayed) == []
    assert trio[OTHER].counted(Reason.REFUSE_MIGRATION_SENDER) == 2
    assert trio[OTHER].handler.phase(ORIGIN) == Phase.TRANSFER


def test_a_stranger_cannot_stop_the_source() -> None:
    trio = Trio()
    halfway(trio, ReplayComplete)
    cutover = CutoverNotify(origin=ORIGIN, attempt=attempt_of(trio), target_node=TARGET)
    assert trio.say(OTHER, SOURCE, cutover) == []
    assert trio.say(OTHER, SOURCE, failure(ORIGIN, attempt_of(trio), "stop")) == []
    assert trio[SOURCE].counted(Reason.REFUSE_MIGRATION_SENDER) == 2
    assert trio.runs_on() == [SOURCE]


def test_a_stranger_cannot_make_the_target_begin() -> None:
    trio = Trio()
    halfway(trio, CleanupComplete, OTHER)
    assert trio.say(SOURCE, TARGET, ActivateTarget(origin=ORIGIN, attempt=attempt_of(trio))) == []
    assert trio.say(SOURCE, TARGET, failure(ORIGIN, attempt_of(trio), "stop")) == []
    assert trio[TARGET].counted(Reason.REFUSE_MIGRATION_SENDER) == 2
    trio.tick(0.6)
    assert trio.runs_on() == [TARGET]


@pytest.mark.parametrize("attempt", [None, 5])
def test_a_running_daemon_is_not_confirmed_as_handed_over(attempt: int | None) -> None:
    trio = Trio()
    ((to, answer),) = trio.say(OTHER, SOURCE, CutoverNotify(origin=ORIGIN, attempt=attempt, target_node=TARGET))
    assert (to, answer) == (OTHER, failure(ORIGIN, attempt, "the source knows of no such move"))
    assert trio[SOURCE].counted(Reason.MIGRATION_UNEXPECTED) == 1
    assert trio.runs_on() == [SOURCE]


def test_a_second_orchestrator_is_refused() -> None:
    trio = Trio()
    halfway(trio, RestoreComplete)
    ((to, _),) = trio.say(OTHER, SOURCE, TakeSnapshot(origin=ORIGIN, attempt=9, target_node=TARGET))
    assert to == OTHER
    assert trio[SOURCE].counted(Reason.REFUSE_MIGRATION_BUSY) == 1


def test_a_late_message_of_an_attempt_that_is_over_is_stale() -> None:
    trio = Trio()
    trio.start()
    log = list(trio.log)
    for source, to, message in log:
        for answer_to, answer in trio.say(source, to, message):
            trio.say(to, answer_to, answer)
    assert trio.runs_on() == [TARGET]
    assert trio[SOURCE].counted(Reason.MIGRATION_STALE) > 0
    assert trio[TARGET].counted(Reason.MIGRATION_STALE) > 0


def test_a_node_does_not_talk_to_itself_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    trio = Trio()

    def echo(_self: object, message: MigrationMessage, _sender: int, _now: float) -> list[Outbound]:
        return [(SOURCE, message)]

    monkeypatch.setattr(handler_module.MigrationSubprotocolHandler, "_dispatch", echo)
    assert trio.say(OTHER, SOURCE, ActivateTarget(origin=ORIGIN)) == []
    assert trio[SOURCE].counted(Reason.MIGRATION_LOOP) == 1


@pytest.mark.parametrize("driver", [SOURCE, TARGET, OTHER])
@pytest.mark.parametrize("kind", [RestoreComplete, ReplayComplete, CutoverNotify, CleanupComplete])
def test_a_move_can_be_taken_back_until_the_target_begins(driver: int, kind: type[MigrationMessage]) -> None:
    trio = Trio(settings=MigrationSettings())
    trio.lost = lambda _source, _to, message: isinstance(message, kind)
    trio.start(driver)
    if trio[driver].handler.orchestrator.phase(ORIGIN) is None:
        return  # This message stays inside of one node in this layout, so the move is over.
    trio.carry(driver, trio[driver].handler.cancel(ORIGIN, trio.now))
    trio.lost = lambda _source, _to, _message: False
    for _ in range(5):
        trio.tick(1.0)
    assert trio.runs_on() == [SOURCE]
    mark = trio[TARGET].store.marked(ORIGIN)
    assert mark is None or mark.status != Status.STAGED
    host = trio[SOURCE].registry.get(ORIGIN)
    assert host is not None
    assert not host.paused
    (ended,) = trio[driver].handler.take_ended()
    assert ended.error is not None
