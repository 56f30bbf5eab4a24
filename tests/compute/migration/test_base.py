from __future__ import annotations

import pytest

from meshbus.compute.migration.base import (
    MigrationSettings,
    Pace,
    Phase,
    advance,
    confirmation,
    failure,
    is_confirmation,
    is_withdrawal,
    withdrawal,
)
from meshbus.errors import MigrationError, MigrationFault
from tests.vectors import load


def test_phases_follow_each_other_as_in_the_reference() -> None:
    vectors = load("mesh")["migration_state_machine"]
    assert [phase.name.capitalize() for phase in Phase] == vectors["phases"]
    allowed = {(row["frm"], row["to"]) for row in vectors["transitions"]}
    for phase in Phase:
        for to in Phase:
            if (phase.name.capitalize(), to.name.capitalize()) in allowed:
                assert advance(1, phase, to) == to
            else:
                with pytest.raises(MigrationError) as caught:
                    advance(1, phase, to)
                assert caught.value.fault == MigrationFault.WRONG_PHASE


def test_repetitions_become_rarer_and_silence_ends() -> None:
    pace = Pace(MigrationSettings(resend_s=1, max_resend_s=5, give_up_s=30), 0.0)
    due = [now for now in range(1, 30) if pace.is_due(now)]
    assert due == [1, 3, 7, 12, 17, 22, 27]
    assert not pace.is_over(29)
    assert pace.is_over(30)
    pace.progress(30)
    assert not pace.is_over(31)
    assert pace.due_at() == 31


def test_a_withdrawal_its_confirmation_and_a_refusal_differ() -> None:
    messages = withdrawal(1, 2), confirmation(1, 2), failure(1, 2, "no")
    assert [is_withdrawal(message) for message in messages] == [True, False, False]
    assert [is_confirmation(message) for message in messages] == [False, True, False]
