from __future__ import annotations

import pytest

from meshbus.engine.replicas.base import ReplicaSettings, Seat
from meshbus.engine.replicas.journal import Journal, Recovered
from meshbus.engine.replicas.records import Ballot, Out, PersistBallot, Send
from meshbus.wire.messages.leadership import Config, Member, Stale
from tests.engine.replicas.memorydisk import MemoryDisk


def seat(entropy: bytes = b"\x00\x80") -> Seat:
    journal = Journal(Recovered(), Ballot(incarnation=5, promised=2), MemoryDisk())
    return Seat(bytes(32), 1, ReplicaSettings(nodes=(1, 2, 3)), journal, lambda _size: entropy)


def test_a_change_of_the_ballot_keeps_the_rest_of_it() -> None:
    one, out = seat(), Out()
    config = Config(epoch=1, version=1, members=(Member(1, 5),))
    assert one.persist(out, config=config) == 1
    assert out.writes == [PersistBallot(1, Ballot(incarnation=5, promised=2, config=config))]
    assert (one.member, one.config) == (Member(1, 5), config)


def test_a_set_without_a_config_has_no_leader() -> None:
    with pytest.raises(AssertionError, match="without a config"):
        _ = seat().config


def test_messages_and_chance_come_from_outside() -> None:
    one, out = seat(), Out()
    one.send(2, Stale(channel_id=bytes(32), epoch=1), out)
    assert out.sends == [Send(2, Stale(channel_id=bytes(32), epoch=1))]
    assert one.jitter() == 0.5
