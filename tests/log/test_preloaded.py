"""The same faults below the interpreter: a library that is loaded first lets system calls fail (preload.c).

It is compiled here; without a C compiler, or on a system that does not load it, the faults of test_faults.py have to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.log.preloaded import LIVES

HERE = Path(__file__).parent
EVERY = {"log": 97, "reading": 23, "reopening": 29, "recorder": 61, "replica": 199, "census": 113}
"""One in so many cases, so that each takes a second or two."""
FAILED = {
    "log": {"open", "write", "fsync", "rename"},
    "reading": {"open"},
    "reopening": {"open"},
    "recorder": {"open", "write"},
    "replica": {"open", "write", "fsync"},
    "census": {"open"},
}
"""Calls that must be among those that failed: otherwise the library has no effect."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler (cc)")
    made = tmp_path_factory.mktemp("preload") / "preload.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "preload.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the C compiler does not work here: {done.stderr}")
    return made


def play(kind: str, library: Path, root: Path, every: int) -> set[str]:
    command = [sys.executable, "-m", "tests.log.preloaded", kind, str(root), str(every)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parents[1],
        env={**os.environ, "LD_PRELOAD": str(library)},
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("kind", LIVES)
def test_system_calls_that_fail_cost_no_event_and_tell_no_lie(kind: str, library: Path, tmp_path: Path) -> None:
    assert play(kind, library, tmp_path / "files", EVERY[kind]) >= FAILED[kind]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", LIVES)
def test_every_system_call_that_fails(kind: str, library: Path, tmp_path: Path) -> None:
    assert play(kind, library, tmp_path / "files", 1) >= FAILED[kind]
