from __future__ import annotations

import msgspec

from meshbus.engine.replicas.records import Acks, Ballot, Out, Refusal
from meshbus.wire.messages.leadership import Config, Member


def test_a_ballot_survives_a_file() -> None:
    config = Config(epoch=3, version=2, members=(Member(1, (1 << 64) - 1), Member(2, 7)))
    ballot = Ballot(incarnation=(1 << 64) - 1, promised=9, leader=2, config=config)
    assert msgspec.json.decode(msgspec.json.encode(ballot), type=Ballot) == ballot
    assert msgspec.json.decode(msgspec.json.encode(Ballot(incarnation=1)), type=Ballot).config is None


def test_words_for_settings_and_errors_are_short() -> None:
    assert [str(acks) for acks in Acks] == ["local", "majority"]
    assert str(Refusal.NO_MAJORITY) == "no_majority"


def test_nothing_is_asked_for_at_first() -> None:
    out = Out()
    assert (out.sends, out.writes, out.notices) == ([], [], [])
