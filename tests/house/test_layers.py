"""The arrows between the rooms: the contracts of pyproject.toml hold."""

import pytest
from importlinter.cli import lint_imports

from tests.house.tree import ROOT


def test_nothing_imports_upward(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out
