"""Every target with the inputs of its corpus and some hundred changes of them, the same ones in every run."""

import pytest

from fuzz import corpus
from fuzz.loop import Loop
from fuzz.targets import TARGETS, compute, config, edge, engine, log, wire

CHANGES = {wire: 150, compute: 150, edge: 60, config: 40, log: 20, engine: 2}
"""Changed inputs for each target of a room, so that none takes more than a moment; `make fuzz` and `make soak` go on."""


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_no_finding(name: str) -> None:
    room = next(room for room in CHANGES if TARGETS[name] in room.TARGETS)
    outcome = Loop(TARGETS[name], corpus.load(name)).run(executions=CHANGES[room])
    assert outcome.findings == []


ACCEPTED = [target.name for target in wire.TARGETS]


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_corpus_has_a_valid_input(name: str) -> None:
    """A corpus of junk alone would never get past the first check of a decoder."""
    target = TARGETS[name]
    run = target.make()

    def accepted(data: bytes) -> bool:
        try:
            run(data)
        except target.refuses:
            return False
        return True

    assert any(map(accepted, corpus.load(name)))
