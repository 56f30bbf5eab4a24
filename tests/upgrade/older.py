"""The older build of meshbus, unpacked once for a test run (tools/olderbuild.py says what is in it)."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.patience import PATIENCE_S
from tools.olderbuild import archived

CURRENT = ROOT / "src"
"""The folder of this build."""


def unpack(folder: Path) -> Path:
    """Write the files of the older build into a folder, and return what to put into PYTHONPATH."""
    for name, content in archived().items():
        path = folder / "meshbus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@cache
def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MESHBUS_", "PYTHON"))}
    # Kernels are compiled for each place of a build anew, which takes longer than the tests.
    return {**kept, "MESHBUS_JIT": "0"}


def environment(build: Path) -> dict[str, str]:
    """Return the environment of a process that uses a build."""
    return {**_environment(), "PYTHONPATH": str(build)}


def run(build: Path, program: str, *arguments: str | Path) -> str:
    """Run a short program with a build, and return what it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(
        command, env=environment(build), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the older build."""
    return unpack(tmp_path_factory.mktemp("older"))
