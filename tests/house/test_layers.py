"""The arrows between the rooms: the contracts of pyproject.toml hold."""

import subprocess
import sys
from pathlib import Path

from tests.house.tree import ROOT


def test_nothing_imports_upward() -> None:
    # In a process of its own: it sets up logging for itself, and switches other loggers off.
    tool = str(Path(sys.executable).with_name("lint-imports"))
    command = [tool, "--config", str(ROOT / "pyproject.toml"), "--no-logo", "--no-cache"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
