"""A command line in this process, in a home of its own."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from meshbus.cli import main


class Result(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of JSON."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def row(self) -> dict[str, Any]:
        """The one line of JSON."""
        (row,) = self.rows
        return row


Meshbus = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any configuration, in an empty folder."""
    for variable in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    for variable in ("MESHBUS_CONFIG", "MESHBUS_TRACEBACK"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def meshbus(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Meshbus:
    """Run a command line, with what a pipe would give it."""

    def run(*arguments: object, stdin: str = "") -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard output a terminal of 200 columns."""
    monkeypatch.setattr("meshbus.cli.output.is_terminal", lambda: True)
    for variable, value in {"COLUMNS": "200", "TERM": "xterm-256color", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
