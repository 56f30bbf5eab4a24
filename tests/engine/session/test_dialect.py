from __future__ import annotations

from meshbus.engine.session.dialect import Dialect, Level
from tests.engine.ends import Ends


def test_nothing_is_known_at_first_and_both_forms_are_needed() -> None:
    dialect = Dialect()
    assert dialect.level is None
    assert (dialect.reads_short_grants, dialect.reads_long_grants) == (True, True)
    assert (dialect.repairs, dialect.reads_withdrawals) == (False, False)


def test_a_level_only_rises() -> None:
    dialect = Dialect()
    assert dialect.learn(Level.A)
    assert (dialect.reads_short_grants, dialect.reads_long_grants) == (True, False)
    assert dialect.learn(Level.B), "what looked like level A was an early message"
    assert not dialect.learn(Level.A)
    assert not dialect.learn(Level.B)
    assert (dialect.reads_short_grants, dialect.reads_long_grants, dialect.repairs) == (False, True, True)
    assert not dialect.reads_withdrawals, "0.32 is in the middle of level B"
    assert dialect.learn(Level.C)
    assert dialect.level is Level.C
    assert dialect.reads_withdrawals


def test_who_withdraws_a_route_reads_what_came_with_that_version() -> None:
    dialect = Dialect()
    dialect.withdraws = True
    assert dialect.reads_withdrawals


def test_a_new_session_forgets_the_level() -> None:
    ends = Ends(profile=False)
    ends.left.peer.dialect.learn(Level.C)
    ends.new_session(1.0)
    assert ends.left.peer.dialect.level is None
