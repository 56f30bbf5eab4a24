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
        Join((Link("ab" * 32), Link("cd" * 32, "127.0.0.1:9000"))),
        Listen((Wish("00000000000000ff", "alarms/safety"),)),
        Fetch("detector", "00000000000000ff"),
        Await("detector", 90),
        Publish((Flow("telemetry/pose", 60), Flow("alarms/safety", 5, reliable=True)), 2.5),
    ],
)
def test_a_command_is_one_line_and_comes_back(command: Line) -> None:
    text = pack(command)
    assert text.index(b"\n") == len(text) - 1
    assert COMMAND.decode(text) == command


@pytest.mark.parametrize(
    "answer",
    [
        Up("127.0.0.1:9000"),
        Done((Refused("00000000000000ff", "line\nbreak", "unauthorized"),)),
        Done((), 0.25),
        Counts({"a": 1}, {"b": 2}, {"c": 3}),
        Left(Counts({"a": 1})),
    ],
)
def test_an_answer_is_one_line_and_comes_back(answer: Line) -> None:
    text = pack(answer)
    assert text.index(b"\n") == len(text) - 1
    assert ANSWER.decode(text) == answer
