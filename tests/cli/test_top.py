"""The live view: rates between two looks, JSON in a pipe, tables on a terminal."""

import copy

import pytest
from rich.console import Console

from meshbus.cli.exit import Exit
from meshbus.cli.top import changes, view
from meshbus.policy.reason import Reason
from tests.cli.conftest import Meshbus
from tests.cli.meshes import CHANNEL, COUNTERS, PEER, STATUS, PreparedMesh

BEFORE = {"at": 10.0, "status": STATUS, "peers": [PEER], "channels": [CHANNEL], "counters": COUNTERS}


def later() -> dict[str, object]:
    after = copy.deepcopy(BEFORE)
    after["at"] = 12.0
    after["counters"]["drop"]["bad_tag"] += 4  # type: ignore[index]
    after["counters"]["sent"]["events"] += 10  # type: ignore[index]
    after["channels"][0]["published_events"] += 10  # type: ignore[index]
    return after


def test_rates_are_differences_by_time() -> None:
    update = changes(BEFORE, later())
    assert (update["sent_events_per_s"], update["received_events_per_s"]) == (5.0, 0.0)
    (channel,) = update["channels"]
    assert (channel["published_per_s"], channel["received_per_s"]) == (5.0, None)
    (lost,) = update["lost"]
    assert lost == {"counter": "drop.bad_tag", "count": 7, "per_s": 2.0, "meaning": Reason.BAD_TAG.sentence}


def test_a_channel_that_is_new_began_at_zero() -> None:
    update = changes({**BEFORE, "channels": []}, later())
    assert update["channels"][0]["published_per_s"] == 10.0


def test_the_view_has_names_rates_and_reasons() -> None:
    console = Console(width=160, record=True, file=None, quiet=True)
    console.quiet = False
    with console.capture() as captured:
        console.print(view(changes(BEFORE, later())))
    text = captured.get()
    for wanted in ("leaf", "hub", "sensors/lidar", "drop.bad_tag", Reason.BAD_TAG.sentence[:40], "out 5 events/s"):
        assert wanted in text


def test_long_tables_are_cut_and_say_so() -> None:
    many = {**later(), "peers": [PEER] * 30}
    console = Console(width=120)
    with console.capture() as captured:
        console.print(view(changes(BEFORE, many)))
    assert "peers (the first 12 of 30 rows)" in captured.get()


def test_a_pipe_gets_one_object_for_each_update(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh().use(monkeypatch)
    result = meshbus("top", "--count", "2", "--interval", "0.001")
    assert (result.code, len(result.rows)) == (Exit.OK, 2)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_is_left_as_it_was(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh().use(monkeypatch)
    result = meshbus("top", "--count", "1", "--interval", "0.001")
    assert result.code == Exit.OK
    assert "\x1b[?1049h" in result.out
    assert result.out.endswith("\x1b[?25h\x1b[?1049l")  # the cursor is back, and the screen from before
