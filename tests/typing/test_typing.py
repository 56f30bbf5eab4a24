"""The public face as type checkers see it: right uses pass, and wrong uses are errors.

Each program marks its wrong uses with two comments, one for mypy and one for pyright. Both checkers are set to report a
comment that suppresses nothing, so a wrong use that is no longer an error fails too. mypy reads the programs with the
rest of the tests (`make check`); pyright, strict, is run here.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PROGRAMS = ["asynchronous.py", "blocking.py"]


def pyright(folder: Path) -> list[str]:
    """Check the programs of a folder; return what is wrong with them, a line each."""
    command = [sys.executable, "-m", "basedpyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    answer: dict[str, Any] = json.loads(checked.stdout)
    assert answer["summary"]["filesAnalyzed"] >= 1, checked.stderr
    return [
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1} {one.get('rule')} {one['message']}"
        for one in answer["generalDiagnostics"]
    ]


@pytest.mark.slow
def test_right_uses_pass_and_wrong_uses_are_errors_for_pyright() -> None:
    assert pyright(HERE) == []


@pytest.mark.slow
def test_a_wrong_use_without_its_comment_and_a_comment_without_a_wrong_use_are_reported(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text((HERE / "pyrightconfig.json").read_text())
    (tmp_path / "program.py").write_text(
        "import meshbus\n\nmeshbus.Node.open(psks='')\nmeshbus.Node.open(psk='')  # pyright: ignore[reportCallIssue]\n"
    )
    wrong, unneeded = pyright(tmp_path)
    assert wrong.startswith("program.py:3 reportCallIssue")
    assert unneeded.startswith("program.py:4 reportUnnecessaryTypeIgnoreComment")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_wrong_use_is_marked_for_both_checkers(program: str) -> None:
    marked = [line for line in (HERE / program).read_text("utf-8").splitlines() if "ignore[" in line]
    assert len(marked) >= 8
    assert all("# type: ignore[" in line and "# pyright: ignore[" in line for line in marked)
