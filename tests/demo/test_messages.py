"""What the fleet and its members say survives the pipe."""

import pytest

from meshbus.demo.messages import (
    ANSWER,
    COMMAND,
    Await,
    Counts,
    Done,
    Fetch,
    Flow,
    Join,
    Left,
    Line,
    Link,
    Listen,
    Publish,
    Refused,
    Up,
    Wish,
    pack,
)


@pytest.mark.parametrize(
    "command",
    [
        Join((Link("ab" * 32), Link("cd" * 32, "127.0.0.1:9000", "00000000000000ff"))),
        Listen((Wish("00000000000000ff", "alarms/safety"),)),
        Fetch("detector", "00000000000000ff"),
        Await("detector", 90),
        Publish((Flow("telemetry/pose", 60), Flow("alarms/safety", 5, reliable=True, bytes=9)), 2.5),
    ],
)
def test_a_command_is_one_line_and_comes_back(command: Line) -> None:
    text = pack(command)
    assert text.index(b"\n") == len(text) - 1
    assert COMMAND.decode(text) == command


@pytest.mark.parametrize(
    "answer",
    [
        Up("127.0.0.1:9000", {"publishers": "tcp://127.0.0.1:1"}, "127.0.0.1:2"),
        Done((Refused("00000000000000ff", "line\nbreak", "unauthorized"),)),
        Done((), 0.25),
        Counts({"a": 1}, {"b": 2}, {"ff": {"c": 3}}),
        Left(Counts({"a": 1}, counters={"drop": {"x": 1}}, edge={"publish": {"sent": 2}})),
    ],
)
def test_an_answer_is_one_line_and_comes_back(answer: Line) -> None:
    text = pack(answer)
    assert text.index(b"\n") == len(text) - 1
    assert ANSWER.decode(text) == answer


def test_what_arrived_is_counted_over_publishers() -> None:
    assert Counts(received={"ff": {"a": 1, "b": 2}, "ee": {"a": 4}}).arrived == 7
