from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.replicas.budget import BandwidthBudget
from meshbus.wire.messages.redex import BandwidthClass
from tests.vectors import load

CASES: list[dict[str, Any]] = load("subprotocols")["bandwidth_budget"]["cases"]
CLASSES = {"f": BandwidthClass.FOREGROUND, "b": BandwidthClass.BACKGROUND, "t": BandwidthClass.REALTIME}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_the_reference_admits_the_same(case: dict[str, Any]) -> None:
    budget = BandwidthBudget(
        case["fraction"],
        background_fraction=case["background_fraction"],
        nic_peak_bytes_per_s=case["nic_peak_bytes_per_s"],
    )
    results = []
    for step in case["steps"]:
        kind, size, at = step.split(":")
        if kind == "r":
            budget.refund(int(size))
            word = "r"
        else:
            word = str(int(budget.admit(int(size), CLASSES[kind], int(at) / 1000)))
        results.append(f"{word}/{int(budget.available)}")
    assert results == case["results"]


def test_time_that_runs_backward_takes_nothing_away() -> None:
    budget = BandwidthBudget(1, nic_peak_bytes_per_s=100)
    assert budget.admit(60, BandwidthClass.FOREGROUND, 10)
    assert budget.admit(40, BandwidthClass.FOREGROUND, 5)
    assert budget.available == 0
