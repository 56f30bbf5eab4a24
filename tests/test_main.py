"""`python -m meshbus` is the command."""

import runpy
import sys

import pytest

from meshbus import __version__


def test_the_module_runs_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["meshbus", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("meshbus", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


def test_importing_it_runs_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["meshbus", "--version"])
    runpy.run_module("meshbus.__main__", run_name="meshbus.__main__")
    assert capsys.readouterr().out == ""
