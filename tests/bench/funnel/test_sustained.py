"""The chain of a version, as another process reports it."""

import sys

import msgspec
import pytest

from bench.funnel import sustained
from bench.funnel.chain import Probe
from bench.funnel.nodes import Published

KEPT = Probe(500.0, 4.0, Published(2_000, 4.0), 10, 1.5, True)
LOST = Probe(900.0, 4.0, Published(3_600, 4.0), 900, None, False)


def test_the_rate_is_that_of_the_last_probe() -> None:
    assert sustained.rate_of([LOST, KEPT]) == 500
    assert sustained.rate_of([KEPT, LOST]) == 0
    assert sustained.most_of([LOST, KEPT]) == 500
    assert sustained.most_of([KEPT, LOST]) == LOST.rate
    assert "500 events/s sustained for 4 s" in sustained.chain_table("x", [LOST, KEPT], []).title
    assert "no rate was sustained" in sustained.chain_table("x", [LOST], []).title


def test_probes_are_the_same_after_they_were_written_and_read() -> None:
    assert msgspec.json.decode(msgspec.json.encode([KEPT, LOST]), type=list[Probe]) == [KEPT, LOST]


def test_a_chain_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="the chain of this version ended with status 1"):
        sustained.sustained(None, first=1.0, probe_s=1.0, long_s=1.0)
