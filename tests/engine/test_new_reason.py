"""How to add a drop reason: a row of the enum, and the rule that counts it.

The example drops greetings that are too long. The row is added to the source of policy/reason.py as it is read here;
the rule is a service that counts it. Everything else follows from the row: the counter, its meaning in
`meshbus counters`, the word of `meshbus packets cat --reason`, and the line in docs/reasons.md.
"""

from types import ModuleType
from typing import Any

import pytest

from meshbus.cli import packets
from meshbus.engine.base.packets import Output
from meshbus.engine.services import SERVICES
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Row, Service
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet
from tests.engine.fleet import meet
from tests.house import reasons

GREETING = 0x7EC2
CODE = 99
ROW = f"""
    GREETING_TOO_LONG = {CODE}, "drop", "greeting_too_long", (
        "A greeting is longer than ten bytes; look at the sender.")
"""


@pytest.fixture
def extended() -> ModuleType:
    """Return policy/reason.py with one more row at the end of its enum."""
    source = reasons.ENUM.read_text("utf-8")
    end = "\n    # fmt: on\n"
    assert source.count(end) == 1
    module = ModuleType("reason")
    exec(compile(source.replace(end, ROW + end), str(reasons.ENUM), "exec"), module.__dict__)
    return module


def test_the_rule_counts_it(extended: ModuleType) -> None:
    new: Any = extended.Reason.GREETING_TOO_LONG

    class Greetings(Service):
        """Takes short greetings."""

        def __init__(self, context: Context) -> None:
            self._counters = context.counters

        def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
            if len(message) > 10:
                self._counters.count(new)

    net = FakeNet(0)
    table = (*SERVICES, Row(Greetings, GREETING, "greeting"))
    here, there = net.create("here", table=table), net.create("there", table=table)
    meet(here, there)
    for text in (b"hello", b"a very long hello"):
        with here.turn() as (engine, _now, out):
            engine.peers.require(there.node_id).send_message(GREETING, text, out)
    net.run(for_s=1)
    assert there.engine.counters.get("drop", "greeting_too_long") == 1


def test_it_has_a_line_in_the_documentation(extended: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "Reason", extended.Reason)
    line = f"| {CODE} | `greeting_too_long` | `drop.greeting_too_long` | A greeting is longer than ten bytes;"
    assert sum(text.startswith(line) for text in reasons.page().splitlines()) == 1


def test_recorded_packets_can_be_filtered_by_it(extended: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "RECORDED", extended.RECORDED)
    assert packets._code_of("greeting_too_long") == CODE
    assert packets._code_of("bad_tag") == Reason.BAD_TAG.code
