"""The archive of the older build is what the history has, and unpacks to a package that Python can use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.upgrade.older import CURRENT, run
from tools.olderbuild import ARCHIVE, COMMIT, archived, from_history, pack

MOST_BYTES = 600_000
"""Of the archive: it is in every clone."""


def has_history() -> bool:
    asked = ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"]
    try:
        return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not has_history(), reason="this copy of the repository has no history")
def test_the_archive_is_what_the_history_has() -> None:
    assert archived() == from_history()


def test_the_archive_is_small_and_made_the_same_way_each_time() -> None:
    assert ARCHIVE.stat().st_size < MOST_BYTES
    files = {"b/c.py": b"2", "a.py": b"1"}
    assert pack(files) == pack(dict(reversed(files.items())))


def test_a_process_uses_the_build_that_it_is_given(older: Path) -> None:
    program = (
        "import importlib.util, meshbus; print(meshbus.__file__, importlib.util.find_spec('meshbus.formats') is None)"
    )
    assert run(older, program) == f"{older / 'meshbus' / '__init__.py'} True"
    assert run(CURRENT, program) == f"{CURRENT / 'meshbus' / '__init__.py'} False"
