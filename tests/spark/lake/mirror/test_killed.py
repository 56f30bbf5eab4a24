"""Wherever the process is killed that keeps a copy, readers of the copy find a whole state, and the next process completes it."""

import shutil
import signal
import subprocess
import sys
from itertools import count, takewhile
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.objectserver import ObjectServer, object_server
from tests.spark.lake.formats.made import EVENTS, numbers, open_table
from tests.spark.lake.mirror.copies import KINDS, copied, with_copy
from tests.spark.lake.mirror.killing import LEFT, REPLACED, STATES, prepare, work

__all__ = ["object_server"]
pytestmark = pytest.mark.slow
TELLING = {"delta": [3, 9, 22], "iceberg": [4, 6, 28]}
"""Steps at which the most is half done: an upload, the commit to the copy (or its hint), and an expiry that is noted."""


def died(root: Path, uri: str, kind: str, step: int) -> bool:
    """Return whether the process was killed at a step, and not at the end of its work."""
    command = [sys.executable, "-m", "tests.spark.lake.mirror.killing", str(root), uri, kind, str(step)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr
    return ended.returncode != 0


def survives(server: ObjectServer, folder: Path, kind: str, step: int) -> bool:
    """Kill a process at a step, check what it leaves, and complete it; return False if the work has fewer steps."""
    root, uri = folder / f"{kind}-{step}", server.uri(f"killed/{folder.name}/{kind}/{step}")
    prepare(with_copy(root, uri, kind))
    if not died(root, uri, kind, step):
        return False
    assert copied(uri, kind) in STATES, step
    work(with_copy(root, uri, kind))
    assert copied(uri, kind) == sorted(REPLACED), step
    assert numbers(open_table(EVENTS, root, kind)) == LEFT, step
    shutil.rmtree(root)
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_process_leaves_a_whole_copy_that_its_successor_completes(
    kind: str, object_server: ObjectServer, tmp_path: Path
) -> None:
    assert all(survives(object_server, tmp_path, kind, step) for step in TELLING[kind])


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_may_be_killed_at_every_step(kind: str, object_server: ObjectServer, tmp_path: Path) -> None:
    steps = takewhile(lambda step: survives(object_server, tmp_path, kind, step), count())
    assert len(list(steps)) >= 25
