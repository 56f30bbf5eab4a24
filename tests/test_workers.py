"""Which tests share a worker, and in what order the work is handed out."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.house.tree import ROOT
from tests.workers import LONG, pytest_collection_modifyitems, unit_of


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/wire/test_header.py::test_it[a::b]", "tests/wire/test_header.py"),
        ("tests/engine/channels/test_roster.py::TestRoster::runTest", "tests/engine/channels/test_roster.py"),
        ("tests/spark/test_gold.py::test_it", "tests/spark"),
    ],
)
def test_a_unit_is_a_file_and_spark_is_one_unit(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


def test_long_units_come_first_and_the_others_keep_their_order() -> None:
    names = [
        "tests/b.py::one",
        f"{LONG[1]}::two",
        "tests/a.py::three",
        f"{LONG[0]}/test_x.py::four",
        "tests/b.py::five",
    ]
    items = [SimpleNamespace(nodeid=name) for name in names]
    pytest_collection_modifyitems(cast("Any", items))
    assert [item.nodeid.rpartition("::")[2] for item in items] == ["four", "two", "one", "three", "five"]


@pytest.mark.parametrize("unit", LONG)
def test_long_units_exist(unit: str) -> None:
    assert (ROOT / unit).exists(), f"{unit} is gone; correct tests/workers.py"


SUITE = """
import os
from pathlib import Path

def test_before():
    pass

def test_that_ends_its_worker():
    with Path("runs").open("a") as file:
        file.write("once ")
    os._exit(1)

def test_after():
    pass
"""


def test_a_test_that_ends_its_worker_is_named_and_the_others_still_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.workers']\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    options = ["-q", "-n1", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "crashed while running 'test_suite.py::test_that_ends_its_worker'" in answer.stdout
    assert "1 failed, 2 passed" in answer.stdout, answer.stdout
    assert (tmp_path / "runs").read_text() == "once "
