"""The completion scripts name every command."""

import shutil
import subprocess
from pathlib import Path

import pytest

from meshbus.cli import VERBS
from tests.cli.conftest import Meshbus


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_completed(meshbus: Meshbus, shell: str, home: Path) -> None:
    result = meshbus("completion", shell)
    assert result.code == 0
    assert not [verb for verb in VERBS if verb not in result.out]
    if program := shutil.which(shell):
        (home / "script").write_text(result.out, "utf-8")
        assert subprocess.run([program, "-n", "script"], check=False).returncode == 0
