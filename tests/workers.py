"""How tests are spread over the workers of pytest-xdist: whole files, the long ones first, and Spark in one worker.

A pytest plugin, loaded by `tests/conftest.py`. The tests of one file share its fixtures, so a file runs in one worker.
Those in `tests/spark` share one Spark besides, whose start takes longer than most of them: together they are one unit of
work. The longest units come first, so that no worker waits long for the last one.
"""

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

LONG = [
    "tests/spark",
    "tests/cli/test_demo.py",
]
"""The units of work that take longest, longest first; `make test ARGS=--durations=50` shows which ones."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # it is published without types
    """Assign whole files, and some folders as if they were one file."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def remove_node(self, node: object) -> str | None:
        """Go on after a test that has ended its worker, instead of running it again: it would end the next one too."""
        units = self.assigned_work[node]
        ended = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        if ended is not None:
            units[unit_of(ended)][ended] = True
        super().remove_node(node)
        return ended


def unit_of(nodeid: str) -> str:
    """Return the name of the unit of work that a test belongs to."""
    return "tests/spark" if nodeid.startswith("tests/spark/") else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)  # so that `-p no:xdist` works
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    config.option.loadscopereorder = False  # keep the order below
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the long units to the front, and otherwise keep the order."""
    rank = {unit: place for place, unit in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(unit_of(item.nodeid), len(rank)))
