"""The records between the events of a replica: epochs as the core knows them, and files replayed from their opening."""

import random

import pytest

from meshbus.engine.replicas.runs import EpochRuns
from meshbus.log.embedded.block import Unreadable
from meshbus.log.embedded.controls import (
    NewBallot,
    NewEpoch,
    Opening,
    Record,
    SetAside,
    State,
    decode_record,
    encode_record,
    opening_of,
    state_after,
)


@pytest.mark.parametrize(
    "record",
    [
        Opening(State()),
        Opening(State(b"ballot", ((1, 0), (4, 9)), ((2, 7),), damaged=True), 3, skips=True),
        Opening(State(), 1, asides=(SetAside(2, 5, 9, ((1, 0),), 4, b"blocks"),)),
        NewBallot(b""),
        NewEpoch(7, 1 << 60, joined=True),
    ],
)
def test_records_are_read_back(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


def test_epochs_are_those_of_the_core() -> None:
    for seed in range(200):
        rng, state, runs, tail, epoch = random.Random(seed), State(), EpochRuns(), 0, 0
        for _ in range(30):
            match rng.randrange(4):
                case 0:
                    tail = rng.randint(0, tail)
                    state = state.cut(tail)
                    runs.truncate(tail)
                case 1 if tail:
                    first = rng.randint(1, tail)
                    state = state.trimmed(first)
                    runs.trim(first)
                case _:
                    epoch += rng.randrange(3) == 0
                    if epoch != state.epoch:
                        state = state.started(epoch, tail)
                    runs.append(epoch, tail)
                    tail += rng.randrange(3)
            assert state.runs == tuple(runs), f"seed {seed}"
            assert state.epoch == runs.last_epoch


def replayed(end: int, *records: tuple[int, Record]) -> State:
    return state_after([(seq, encode_record(record)) for seq, record in records], end)


def test_a_file_is_replayed_from_its_opening() -> None:
    opened = Opening(State(b"old", ((1, 0),), damaged=True))
    found = replayed(9, (4, opened), (4, NewEpoch(2, 4, joined=True)), (6, NewBallot(b"new")), (9, NewEpoch(3, 9)))
    assert found == State(b"new", ((1, 0), (2, 4), (3, 9)))


def test_the_start_of_an_epoch_is_cut_off_with_its_events() -> None:
    opened, start = (4, Opening(State(None, ((1, 0),)))), (4, NewEpoch(2, 4, joined=True))
    assert replayed(5, opened, start).epoch == 2
    assert replayed(4, opened, start).epoch == 1
    assert replayed(5, opened, start, (4, NewBallot(b"b"))).epoch == 1, "the events are those of a later append"


def test_a_file_of_another_log_has_no_opening() -> None:
    assert opening_of([]) is None
    assert opening_of([(0, encode_record(NewBallot(b"")))]) is None
    assert opening_of([(0, encode_record(Opening(State(b"b"))))]) == Opening(State(b"b"))


@pytest.mark.parametrize("content", [b"", b"\x07", b"\x81\xa4type\xa1\xff", b"\x91" * 5000])
def test_what_is_no_record_is_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable, match="no record"):
        decode_record(content)
