"""The fuzzer itself: it finds what is hidden behind comparisons, says how to repeat it, and keeps a corpus small."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import corpus
from fuzz.__main__ import main
from fuzz.finding import Finding, finding_of, shortened
from fuzz.loop import Loop, Outcome, TooSlow, replay
from fuzz.mutation import Mutator
from fuzz.pieces import cut, join
from fuzz.reach import Reach, unwatched
from fuzz.target import Target, decoder
from fuzz.targets import TARGETS
from fuzz.worker import Order, fuzz_apart
from meshbus.errors import MalformedPacket
from meshbus.wire.constants import PUNCH_MAGIC
from meshbus.wire.messages.window import Grant, decode_grant, encode_grant
from meshbus.wire.punch import pack_keepalive, unpack_keepalive

KEEPALIVE = TARGETS["keepalive"]


def failing(data: bytes) -> None:
    """Fail for keep-alives of one node, far from what a valid one of the corpus has."""
    if unpack_keepalive(data).punch_id > 0xFFFF:
        raise KeyError("found")


def test_a_finding_is_found_shortened_and_counted_once() -> None:
    valid = bytes.fromhex("5048") + bytes(12)
    target = Target("hidden", lambda: failing)
    outcome = Loop(target, [valid]).run(executions=3_000)
    (finding,) = outcome.findings
    assert finding.kind.startswith("KeyError at ")
    assert finding.target == "hidden"
    with pytest.raises(KeyError):
        replay(target, finding.data)


def test_what_is_only_a_refusal_is_no_finding() -> None:
    outcome = Loop(KEEPALIVE, [b""]).run(executions=200)
    assert outcome.findings == []
    replay(KEEPALIVE, b"junk")


def test_constants_of_the_code_lead_into_it() -> None:
    """From an empty input, the magic number of a keep-alive is found by no chance within so few tries."""
    outcome = Loop(KEEPALIVE, [b""]).run(executions=4_000)
    run = KEEPALIVE.make()

    def accepted(data: bytes) -> bool:
        try:
            run(data)
        except MalformedPacket:
            return False
        return True

    assert any(map(accepted, outcome.kept))
    assert outcome.lines <= outcome.of_lines
    assert outcome.arcs > 3


def test_a_run_can_be_repeated() -> None:
    inputs = corpus.load("grant")
    runs = [Loop(TARGETS["grant"], inputs, seed=3).run(executions=300) for _ in range(2)]
    assert runs[0].kept == runs[1].kept
    assert runs[0].arcs == runs[1].arcs


def test_a_round_trip_that_changes_a_message_is_a_finding() -> None:
    grant = encode_grant(Grant(stream_id=5, total_consumed=6))
    lossy = decoder("lossy", decode_grant, lambda grant: encode_grant(type(grant)(stream_id=1, total_consumed=2)))
    (finding,) = Loop(lossy, [grant]).run(executions=0).findings
    assert finding.error.startswith("AssertionError: Grant(")


def test_an_input_that_never_ends_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.loop.SLOW_S", 0.05)

    def endless(_: bytes) -> None:
        while True:
            pass

    (finding,) = Loop(Target("endless", lambda: endless), [b"x"]).run(executions=0).findings
    assert finding.error.startswith(TooSlow.__name__)


def test_reach_counts_lines_of_meshbus_only() -> None:
    reach = Reach()
    reach.follow(sum, b"abc")
    assert reach.arcs == set()
    reach.follow(unpack_keepalive, bytes.fromhex("5048") + bytes(12))
    first = reach.arcs
    assert first
    with pytest.raises(MalformedPacket):
        reach.follow(unpack_keepalive, b"")
    assert reach.arcs
    assert not reach.arcs <= first, "a refusal takes another way"
    assert PUNCH_MAGIC in set(reach.new_constants()), "what a decoder compares with is known"

    def hidden(data: bytes) -> None:
        with unwatched():
            pack_keepalive(unpack_keepalive(data))

    reach.follow(hidden, bytes.fromhex("5048") + bytes(12))
    assert reach.arcs == set()


def test_changes_are_many_and_bounded() -> None:
    mutator = Mutator(random.Random(1), 64)
    mutator.learn([0x4D42, b"magic", "text", True, -1, "ü"])
    seen = {mutator.change(b"some input", [b"another input"]) for _ in range(500)}
    assert len(seen) > 400
    assert max(map(len, seen)) <= 64
    assert any(b"magic" in one for one in seen)
    assert any(b"\x42\x4d" in one for one in seen)
    assert mutator.change(b"", []) is not None


def test_an_input_is_shortened_to_what_matters() -> None:
    assert shortened(b"-" * 100 + b"!" + b"-" * 77, lambda data: b"!" in data) == b"!"


def test_pieces_round_trip_and_every_input_has_some() -> None:
    assert list(cut(join([b"a", b"", b"bc"]))) == [b"a", b"", b"bc"]
    assert list(cut(b"\xff\xffabc")) == [b"abc"]
    assert list(cut(b"x")) == []


def test_a_corpus_is_stored_by_line_and_distilled(tmp_path: Path) -> None:
    corpus.store("grant", [b"\x02", b"\x01\x00", b"\x02"], tmp_path)
    assert (tmp_path / "grant.hex").read_text() == "02\n0100\n"
    assert corpus.load("grant", tmp_path) == [b"\x02", b"\x01\x00"]
    assert corpus.load("missing", tmp_path) == []
    valid = bytes.fromhex("5048") + bytes(12)
    few = corpus.distil(KEEPALIVE, [valid, valid[:-1] + b"\1", b"", b"\0", b"\0\0"])
    assert len(few) == 2
    assert any(len(one) == len(valid) for one in few)


def test_a_finding_becomes_a_file_with_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def died(order: Order) -> object:
        found = finding_of(order.target, KeyError("x"), b"\x50\x48")
        return Outcome(order.target, 10, 1.0, 3, 2, 4, [b""], [found])

    monkeypatch.setattr("fuzz.__main__.fuzz_apart", died)
    monkeypatch.chdir(tmp_path)
    assert main(["keepalive", "--seconds", "1"]) == 1
    printed = capsys.readouterr().out
    (path,) = (tmp_path / "build" / "fuzz").iterdir()
    assert path.read_bytes() == b"\x50\x48"
    assert f"python -m fuzz keepalive build/fuzz/{path.name}" in printed
    assert main(["keepalive", str(path)]) == 0
    assert "no finding" in capsys.readouterr().out
    assert main(["--list"]) == 0
    assert "keepalive" in capsys.readouterr().out.split()


@pytest.mark.slow
def test_a_target_runs_in_a_process_of_its_own() -> None:
    outcome = fuzz_apart(Order("keepalive", 0.2, 0))
    assert outcome.executions > 0
    assert outcome.findings == []


@pytest.mark.slow
def test_the_input_that_killed_a_process_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, sys\n"
        "import fuzz.worker as worker\n"
        "from fuzz.target import Target\n"
        "worker.TARGETS = {'keepalive': Target('keepalive', lambda: lambda data: os.kill(os.getpid(), 9))}\n"
        "worker.main()\n"
    )
    real = subprocess.run

    def run(command: list[str], **options: object) -> object:
        return real(
            [sys.executable, str(script), command[-1]],
            **options,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # type: ignore[call-overload]

    monkeypatch.setattr("fuzz.worker.subprocess.run", run)
    (finding,) = fuzz_apart(Order("keepalive", 1.0, 0)).findings
    assert finding == Finding("keepalive", "Died: the process ended with -9", "unknown", corpus.load("keepalive")[0])
