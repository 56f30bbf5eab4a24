"""Every target of the fuzzer for a minute, with another seed each day."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from fuzz.targets import TARGETS
from fuzz.worker import GRACE_S
from tests.house.tree import ROOT

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
"""For each target; set it lower for a look."""


@pytest.mark.soak
@pytest.mark.timeout(len(TARGETS) * (SECONDS + GRACE_S))
def test_a_minute_of_every_target_finds_nothing() -> None:
    seed = time.time_ns() // (86_400 * 1_000_000_000)
    command = [sys.executable, "-m", "fuzz", "--seconds", str(SECONDS), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout
    assert all(name in done.stdout for name in TARGETS)
