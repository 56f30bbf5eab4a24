"""The load test as a verb: what it shows, and two nodes on this machine."""

import pytest

from meshbus.cli.exit import Exit
from tests.cli.conftest import Meshbus
from tests.cli.meshes import PreparedMesh

FOUND = {"events": 9, "missing": 0, "bytes": 90, "seconds": 0.12345, "events_per_s": 72.9, "latency_us": {"p50": 1.0}}


@pytest.mark.parametrize(
    ("found", "code"), [(FOUND, Exit.OK), ({**FOUND, "missing": 1}, Exit.PARTIAL), (None, Exit.UNREACHABLE)]
)
def test_what_was_measured_is_shown(
    meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch, found: dict[str, object] | None, code: Exit
) -> None:
    PreparedMesh(measure=[found]).use(monkeypatch)
    result = meshbus("bench", "receive", "--timeout", "1")
    assert result.code == code
    if found is None:
        assert "no test began within 1 s; start `meshbus bench send` on the other node" in result.err
    else:
        assert (result.row["seconds"], result.row["events_per_s"]) == (0.123, 73.0)


@pytest.mark.usefixtures("terminal")
def test_people_are_told_how_to_lose_less(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh(measure=[{**FOUND, "missing": 3, "events_per_s": None}]).use(monkeypatch)
    assert "3 events are missing; send with --reliable" in meshbus("bench", "receive").err


def test_the_load_is_sent_when_somebody_has_subscribed(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {"events": 5, "size": 64, "subscribers": 1, "seconds": 1.0, "events_per_s": 5.0}
    mesh = PreparedMesh(load=[sent], subscribers=[0, 1]).use(monkeypatch)
    assert meshbus("bench", "send", "a/b", "--events", "5", "--size", "64", "--unreliable").row == sent
    assert mesh.asked[-1] == ("load", ("a/b",), {"events": 5, "size": 64, "reliable": False})
    assert len(mesh.asked) == 3


def test_two_nodes_on_this_machine(meshbus: Meshbus) -> None:
    result = meshbus("bench", "local", "--events", "500", "--size", "32")
    assert result.code == Exit.OK, result.err
    assert (result.row["events"], result.row["missing"]) == (500, 0)
