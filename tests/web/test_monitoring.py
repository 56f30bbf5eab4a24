"""The dashboard and the alert rules that we ship use metrics that a node has."""

import json
import re

import pytest

from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonState
from meshbus.node.node import Node
from meshbus.web.families import _daemons, families
from tests.house.tree import ROOT

FOLDER = ROOT / "examples" / "monitoring"
PANELS = [
    pytest.param(panel, id=panel["title"])
    for panel in json.loads((FOLDER / "dashboard.json").read_text("utf-8"))["panels"]
]


async def names() -> set[str]:
    """Return the names of all time series; those without a value yet by the name of their family."""
    async with Node.open(psk="5a" * 32, ephemeral=True, web={"bind": "127.0.0.1:0"}) as node:
        found = list(families(node, [], []))
    found += list(_daemons([DaemonInfo(origin=1, name="a", state=DaemonState.RUNNING, node=1, processed=1)]))
    series = {sample.name for family in found for sample in family.samples}
    return series | {family.name + ("_total" if family.type == "counter" else "") for family in found}


async def test_every_metric_of_a_rule_exists() -> None:
    used = set(re.findall(r"\bmeshbus_\w+", (FOLDER / "alerts.yml").read_text("utf-8")))
    assert used
    assert used <= await names()


@pytest.mark.parametrize("panel", PANELS)
async def test_every_panel_asks_a_question_and_uses_metrics_that_exist(panel: dict[str, object]) -> None:
    assert str(panel["title"]).endswith("?")
    used = set(re.findall(r"\bmeshbus_\w+", json.dumps(panel["targets"])))
    assert used
    assert used <= await names()
