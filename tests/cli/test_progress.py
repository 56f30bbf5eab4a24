"""Progress is one line that is written over on a terminal, and few plain lines elsewhere."""

import io

import pytest

from meshbus.cli import progress
from meshbus.cli.progress import Stage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setattr("sys.stderr", found)
    return found


def test_a_terminal_shows_one_line_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    with Stage("fleet", "starting") as stage:
        stage.say("half of it")
        stage.say("all of it")
    lines = terminal.getvalue().split("\r\033[K")
    assert lines[:4] == ["", "fleet     starting …", "fleet     half of it …", "fleet     all of it …"]
    assert lines[4].startswith("fleet     all of it (")
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith(" s)\n")


def test_a_line_never_wraps_nor_moves_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    monkeypatch.setattr(progress, "_width", lambda: 40)
    with Stage("fleet", "x" * 100) as stage:
        stage.say("\r\033[2J" + "y" * 100)
    written = terminal.getvalue().rstrip("\n").split("\r\033[K")
    assert all(len(line) <= 40 and line.isprintable() for line in written)


def test_without_a_terminal_a_stage_prints_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Stage("spark", "starting") as stage:
        for second in range(12):
            now[0] = float(second)
            stage.say(f"{second} rows")
    assert capsys.readouterr().err.splitlines() == [
        "meshbus: spark     starting …",
        "meshbus: spark     5 rows …",
        "meshbus: spark     10 rows …",
        "meshbus: spark     11 rows (11.0 s)",
    ]


def test_a_failed_stage_is_shown_as_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no"), Stage("spark", "starting"):
        raise ValueError("no")
    assert "spark     starting (stopped after " in capsys.readouterr().err
