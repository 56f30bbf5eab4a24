"""The script that measures a module with its own test file alone."""

from pathlib import Path

import pytest

from tests.house.tree import PACKAGE
from tools import owncover


@pytest.mark.slow
def test_a_small_module_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert owncover.main(["background", "--at-least", "50"]) == 0
    percent, _, module = capsys.readouterr().out.split()[:3]
    assert module == "src/meshbus/background.py"
    assert 50 <= float(percent) <= 100
    assert owncover.main(["background", "--at-least", "100.1"]) == 1


def test_rooms_and_modules_are_chosen_by_name() -> None:
    assert list(owncover.choose(["policy/gateway"])) == [PACKAGE / "policy" / "gateway.py"]
    names = {module.parent for module in owncover.choose(["names"])}
    assert names == {PACKAGE / "names"}
    assert PACKAGE / "wire" / "header.py" in owncover.choose([])


def test_an_unknown_name_is_an_error_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        owncover.main(["policy/gatewya"])
    assert caught.value.code == 2
    assert "no module or room 'policy/gatewya' in src/meshbus" in capsys.readouterr().err


def test_a_failing_test_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(module: Path) -> owncover.Result:
        raise RuntimeError("1 failed")

    monkeypatch.setattr(owncover, "measure", fail)
    assert owncover.main(["background"]) == 1
    assert capsys.readouterr().err == "src/meshbus/background.py: 1 failed\n"


def test_missed_lines_are_written_as_ranges() -> None:
    assert owncover._ranges([]) == ""
    assert owncover._ranges([3]) == "3"
    assert owncover._ranges([1, 3, 4, 5, 9]) == "1, 3-5, 9"
