"""Round trips are shown one by one, and a missing answer does not end the test."""

import pytest

from meshbus.cli.exit import Exit, Refusal
from meshbus.errors import PeerError, PeerFault, Timeout
from tests.cli.conftest import Meshbus
from tests.cli.meshes import WHO, PreparedMesh

ROW = {**WHO, "rtt_ms": 1.25}
PING = ("ping", "--interval", "0.001")


def test_each_round_trip_is_a_row(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = PreparedMesh(ping=[ROW]).use(monkeypatch)
    result = meshbus(*PING, "hub", "--count", "2", "--timeout", "3")
    assert (result.code, result.rows) == (Exit.OK, [ROW, ROW])
    assert mesh.asked == [("ping", ("hub", 3.0), {})] * 2


@pytest.mark.usefixtures("terminal")
def test_people_get_a_summary(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedMesh(ping=[ROW, {**ROW, "rtt_ms": 3.0}]).use(monkeypatch)
    result = meshbus(*PING, "--count", "2")
    assert result.out.splitlines() == [
        "hub: 1.250 ms",
        "hub: 3.000 ms",
        "2 of 2 answered; 1.250 / 3.000 / 3.000 ms min/median/max",
    ]


@pytest.mark.parametrize("missing", [Timeout("ping", 1.0), Refusal("timeout", None, "ping: no answer within 1 s")])
def test_missing_answers_are_counted(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch, missing: Exception) -> None:
    PreparedMesh(ping=[missing, ROW]).use(monkeypatch)
    result = meshbus(*PING, "--count", "3")
    assert (result.code, len(result.rows)) == (Exit.PARTIAL, 2)
    assert "no answer within 1 s" in result.err
    PreparedMesh(ping=[missing]).use(monkeypatch)
    assert meshbus(*PING, "--count", "2").code == Exit.UNREACHABLE


@pytest.mark.parametrize(
    "error", [PeerError(PeerFault.UNKNOWN, 7, "no session"), Refusal("peer", "unknown", "no session")]
)
def test_other_errors_end_it(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    mesh = PreparedMesh(ping=[error]).use(monkeypatch)
    assert meshbus(*PING).code == Exit.UNREACHABLE
    assert len(mesh.asked) == 1
