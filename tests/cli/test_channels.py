"""Channels as rows, and as a table that says what the node does with each."""

import pytest

from meshbus.cli.exit import Exit
from tests.cli.conftest import Meshbus
from tests.cli.meshes import CHANNEL, PreparedMesh

OTHER = {**CHANNEL, "channel": "alarms", "published": False, "subscribed": False, "publishers": []}


def test_rows_are_chosen_by_prefix(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh(channels=[[CHANNEL, OTHER]]).use(monkeypatch)
    assert meshbus("channels").rows == [CHANNEL, OTHER]
    assert meshbus("channels", "sens").rows == [CHANNEL]


@pytest.mark.usefixtures("terminal")
def test_people_see_names_and_unknown_is_a_dash(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh(channels=[[CHANNEL, OTHER]]).use(monkeypatch)
    _, lidar, alarms = meshbus("channels").out.splitlines()
    assert lidar.split() == ["sensors/lidar", "publishes", "subscribes", "2", "hub", "10", "–"]
    assert alarms.split() == ["alarms", "–", "2", "–", "10", "–"]
    result = meshbus("channels", "x/")
    assert (result.code, result.err) == (
        Exit.OK,
        "meshbus: no channels below 'x/'; publish on one, or subscribe to one\n",
    )
