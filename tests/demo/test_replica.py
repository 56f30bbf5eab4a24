"""The commands and answers of a replica of the demo survive the way through a pipe."""

import msgspec
import pytest

from meshbus.demo.replica import COMMAND, STATE, Look, Sound, State, alarm


@pytest.mark.parametrize("command", [Sound(3, 2.5), Look()])
def test_commands_are_read_as_they_were_written(command: Sound | Look) -> None:
    assert COMMAND.decode(msgspec.json.encode(command)) == command


def test_a_state_is_read_as_it_was_written() -> None:
    state = State("127.0.0.1:9", 7, True, 3, {"east": 0, "west": None}, 0.5)
    assert STATE.decode(msgspec.json.encode(state)) == state


def test_alarms_differ() -> None:
    assert len({alarm(number) for number in range(100)}) == 100
