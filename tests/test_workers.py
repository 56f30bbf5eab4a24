"""Which tests share a worker, and in what order the work is handed out."""

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
