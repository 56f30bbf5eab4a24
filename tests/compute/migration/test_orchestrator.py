from __future__ import annotations

import pytest

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.migration import orchestrator as module
from meshbus.compute.migration.base import MigrationSettings, Phase, confirmation, failure, withdrawal
from meshbus.compute.store import Decision, Outcome
from meshbus.errors import MigrationError, MigrationFault
from meshbus.policy.reason import Reason
from meshbus.wire.messages.migration import (
    ActivateAck,
    ActivateTarget,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    FailureCode,
    MigrationMessage,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
    TakeSnapshot,
)
from tests.compute.migration.trio import ORIGIN, OTHER, SOURCE, TARGET, Trio


def stopped_at(kind: type[MigrationMessage], *, numbered: bool = True) -> Trio:
    """A move with a separate orchestrator, in which everything of one kind is lost."""
    trio = Trio()
    trio.lost = lambda _source, _to, message: isinstance(message, kind)
    trio.start(OTHER, numbered=numbered)
    return trio


def outcomes(trio: Trio) -> list[Outcome]:
    return [decision.outcome for decision in trio[OTHER].store.decisions()]


@pytest.mark.parametrize(
    ("lost", "phase", "repeated", "to"),
    [
        (TakeSnapshot, Phase.SNAPSHOT, TakeSnapshot, SOURCE),
        (RestoreComplete, Phase.TRANSFER, TakeSnapshot, SOURCE),
        (ReplayComplete, Phase.REPLAY, BufferedEvents, TARGET),
        (CleanupComplete, Phase.CUTOVER, CutoverNotify, SOURCE),
        (ActivateAck, Phase.COMPLETE, ActivateTarget, TARGET),
    ],
)
def test_each_phase_repeats_its_question(
    lost: type[MigrationMessage], phase: Phase, repeated: type[MigrationMessage], to: int
) -> None:
    trio = stopped_at(lost)
    assert trio[OTHER].handler.phase(ORIGIN) == phase
    ((found_to, message),) = trio[OTHER].handler.orchestrator.tick(1.0)
    assert (found_to, type(message)) == (to, repeated)


def test_what_is_decided_is_on_disk_before_it_is_told() -> None:
    assert outcomes(stopped_at(ReplayComplete)) == []
    assert outcomes(stopped_at(CutoverNotify)) == [Outcome.HAND_OVER]
    trio = stopped_at(ActivateTarget)
    assert outcomes(trio) == [Outcome.BEGIN]
    trio.lost = lambda _source, _to, _message: False
    trio.tick(1.0)
    assert outcomes(trio) == []
    (ended,) = trio[OTHER].handler.take_ended()
    assert ended == (ORIGIN, SOURCE, TARGET, None)


def test_a_late_refusal_of_the_first_message_does_not_end_a_move_that_its_source_may_hand_over() -> None:
    trio = stopped_at(CutoverNotify)
    (told,) = [message for _, _, message in trio.log if isinstance(message, CutoverNotify)]
    # The source was busy when the first TakeSnapshot came, and began with its repetition; the refusal was on its way.
    refusal = failure(ORIGIN, told.attempt, "", FailureCode.ALREADY_MIGRATING)
    out = trio.say(SOURCE, OTHER, refusal)
    assert {to for to, _ in out} == {SOURCE, TARGET}
    assert outcomes(trio) == [Outcome.TAKE_BACK]
    # The word to stop was only late. What the orchestrator has decided since brings the daemon back.
    ((_, handed_over),) = trio.say(OTHER, SOURCE, told)
    assert isinstance(handed_over, CleanupComplete)
    assert ORIGIN not in trio[SOURCE].registry
    trio.lost = lambda _source, _to, _message: False
    trio.carry(OTHER, out)
    assert ORIGIN in trio[SOURCE].registry
    assert ORIGIN not in trio[TARGET].registry
    assert outcomes(trio) == []
    assert len(trio[OTHER].handler.take_ended()) == 1


@pytest.mark.parametrize(
    ("outcome", "message"),
    [(Outcome.HAND_OVER, CutoverNotify), (Outcome.BEGIN, ActivateTarget), (Outcome.TAKE_BACK, type(withdrawal(1, 2)))],
)
def test_a_restart_carries_out_what_was_decided(outcome: Outcome, message: type[MigrationMessage]) -> None:
    trio = Trio()
    trio[OTHER].store.decide(Decision(origin=ORIGIN, source=SOURCE, target=TARGET, attempt=7, outcome=outcome))
    trio[OTHER].handler.recover(0.0)
    ((_, found),) = trio[OTHER].handler.tick(1.0)
    assert isinstance(found, message)


def test_a_decided_move_does_not_end_by_itself_and_others_do() -> None:
    trio = stopped_at(CleanupComplete)
    assert [type(message) for _, message in trio[OTHER].handler.tick(1000.0)] == [CutoverNotify]
    early = stopped_at(RestoreComplete)
    out = early[OTHER].handler.tick(1000.0)
    assert out == [(SOURCE, withdrawal(ORIGIN, _attempt(early))), (TARGET, withdrawal(ORIGIN, _attempt(early)))]
    early.say(SOURCE, OTHER, confirmation(ORIGIN, _attempt(early)))
    (ended,) = early[OTHER].handler.take_ended()
    assert ended.error is not None
    assert ended.error.fault == MigrationFault.TIMED_OUT


def _attempt(trio: Trio) -> int:
    attempt = trio.log[0][2].attempt
    assert attempt is not None
    return attempt


def test_a_withdrawal_that_nobody_confirms_ends_before_the_handover_only() -> None:
    trio = stopped_at(RestoreComplete)
    trio[OTHER].handler.cancel(ORIGIN, 0.0)
    assert trio[OTHER].handler.tick(1.0) != []
    assert trio[OTHER].handler.tick(100.0) == []
    assert len(trio[OTHER].handler.take_ended()) == 1
    decided = stopped_at(CleanupComplete)
    decided[OTHER].handler.cancel(ORIGIN, 0.0)
    assert outcomes(decided) == [Outcome.TAKE_BACK]
    assert decided[OTHER].handler.tick(100.0) != []


def test_a_plain_move_that_is_stuck_in_the_handover_is_reported() -> None:
    trio = stopped_at(CleanupComplete, numbered=False)
    assert trio[OTHER].handler.tick(100.0) == []
    (ended,) = trio[OTHER].handler.take_ended()
    assert ended.error is not None
    assert "look where" in str(ended.error)


def test_a_plain_move_that_this_node_has_not_handed_over_is_taken_back() -> None:
    trio = Trio()
    # A 0.23 target does not say that its daemon has failed at an event (compute.md §6).
    trio.lost = lambda _source, _to, message: isinstance(message, BufferedEvents) and bool(message.events)
    source = trio[SOURCE].handler
    started = source.start(ORIGIN, SOURCE, TARGET, 0.0, numbered=False)
    source.deliver(ORIGIN, DaemonEvent(9, 1, b"x"))
    trio.carry(SOURCE, started)
    assert source.phase(ORIGIN) is Phase.CUTOVER
    trio.carry(SOURCE, source.tick(100.0))
    assert trio.runs_on() == [SOURCE]
    assert trio[TARGET].handler.phase(ORIGIN) is None, "the target must hear that the move is over"
    assert not trio.host.paused


def test_a_plain_source_is_not_asked_twice() -> None:
    trio = stopped_at(SnapshotReady, numbered=False)
    assert trio[OTHER].handler.tick(1.0) == []


def test_moves_that_cannot_begin_are_errors() -> None:
    trio = stopped_at(RestoreComplete)
    handler = trio[OTHER].handler
    for source, target, fault in (
        (SOURCE, TARGET, MigrationFault.ALREADY_MIGRATING),
        (SOURCE, SOURCE, MigrationFault.TARGET_UNAVAILABLE),
    ):
        origin = ORIGIN if source != target else 5
        with pytest.raises(MigrationError) as caught:
            handler.start(origin, source, target, 0.0, numbered=True)
        assert caught.value.fault == fault
    with pytest.raises(MigrationError) as caught:
        trio[OTHER].handler.start(6, OTHER, TARGET, 0.0, numbered=True)
    assert "does not run" in str(caught.value)
    with pytest.raises(MigrationError) as caught:
        Trio(settings=MigrationSettings(max_moves=0))[OTHER].handler.start(1, SOURCE, TARGET, 0.0, numbered=True)
    assert caught.value.fault == MigrationFault.BUFFER_FULL


def test_only_a_move_that_goes_on_can_be_canceled() -> None:
    with pytest.raises(MigrationError):
        Trio()[OTHER].handler.cancel(ORIGIN, 0.0)
    with pytest.raises(MigrationError) as caught:
        stopped_at(ActivateAck)[OTHER].handler.cancel(ORIGIN, 0.0)
    assert caught.value.fault == MigrationFault.WRONG_PHASE


def test_ends_of_moves_that_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ENDED", 2)
    trio = Trio()
    handler = trio[OTHER].handler
    for _ in range(5):
        handler.start(ORIGIN, SOURCE, TARGET, 0.0, numbered=False)
        handler.cancel(ORIGIN, 0.0)
    assert len(handler.orchestrator.ended) == 2


def test_a_target_that_is_not_ready_is_asked_again() -> None:
    trio = stopped_at(RestoreComplete)
    answer = failure(ORIGIN, _attempt(trio), "", FailureCode.NOT_READY)
    assert trio.say(TARGET, OTHER, answer) == []
    assert trio[OTHER].handler.phase(ORIGIN) == Phase.TRANSFER
    assert trio.say(TARGET, OTHER, failure(ORIGIN, _attempt(trio), "", FailureCode.FACTORY_NOT_FOUND)) != []


def test_a_target_that_asks_about_no_move_is_told_so() -> None:
    trio = Trio()
    ((to, answer),) = trio.say(TARGET, OTHER, RestoreComplete(origin=ORIGIN, attempt=7, restored_seq=0))
    assert (to, type(answer).__name__) == (TARGET, "MigrationFailed")
    assert trio.say(TARGET, OTHER, RestoreComplete(origin=ORIGIN, restored_seq=0)) == []
    assert trio[OTHER].counted(Reason.MIGRATION_STALE) == 2


def test_a_part_that_is_no_start_of_a_snapshot_is_not_passed_on() -> None:
    trio = stopped_at(SnapshotReady)
    (_, _, request), (_, _, good) = trio.log
    assert isinstance(good, SnapshotReady)
    forged = SnapshotReady(
        origin=ORIGIN, attempt=request.attempt, seq_through=0, chunk_index=0, total_chunks=1, chunk=b"CDS1"
    )
    assert trio.say(SOURCE, OTHER, forged) == []
    assert trio[OTHER].counted(Reason.MIGRATION_PART) == 1
    assert trio.say(SOURCE, OTHER, good) == [(TARGET, good)]
    assert trio.say(TARGET, OTHER, good) == []
    assert trio[OTHER].counted(Reason.REFUSE_MIGRATION_SENDER) == 1
