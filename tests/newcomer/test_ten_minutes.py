"""A newcomer follows "How do I query a log with Spark?" literally, in a fresh environment with the built wheel."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.children import child
from tests.newcomer.installed import install
from tests.newcomer.page import Step, steps_of

PAGE = "ten-minutes-to-a-table.md"


class Newcomer:
    """Somebody in an empty folder, who types what the page says."""

    def __init__(self, scripts: Path, folder: Path) -> None:
        self._scripts, self.folder = scripts, folder
        self.environment = {
            "PATH": f"{scripts}:/usr/bin:/bin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
        }

    def python(self, text: str) -> str:
        """Run a block as a script."""
        (self.folder / "script.py").write_text(text, "utf-8")
        return self.type("python script.py")

    def type(self, line: str) -> str:
        """Type a command, and return what it prints."""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def type_in_another_terminal(self, line: str, until: str) -> None:
        """Type a command that does not end by itself, and another one that ends it."""
        with child(
            ["sh", "-c", f"exec {line}"], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE
        ) as running:
            while subprocess.run(
                ["sh", "-c", "meshbus pipeline status tables"],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                check=False,
            ).returncode:
                assert running.poll() is None
            self.type(until)
            assert running.wait(timeout=120) == 0


@pytest.fixture(scope="module")
def newcomer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    folder = tmp_path_factory.mktemp("spark")
    home = folder / "home"
    home.mkdir()
    return Newcomer(install(wheel, folder / "venv", ["fast", "report", "spark"]), home)


def commands_of(step: Step) -> list[str]:
    """Return the commands of a console block, without the installation in the first one: it is done already."""
    lines = [line.removeprefix("$ ").partition("#")[0].strip() for line in step.text.splitlines()]
    return [line for line in lines if not line.startswith(("pip ", "python3 -m venv "))]


def check_rows(newcomer: Newcomer, shown: str) -> None:
    assert "sensors/temp" in shown
    assert re.search(r"^400$", shown, re.MULTILINE)
    assert (newcomer.folder / "tables" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_leads_to_rows_and_a_report(newcomer: Newcomer) -> None:
    """The short form: each kind of step once, so that Spark starts twice."""
    _, make, fill, query, figures = steps_of(PAGE)[:5]
    assert (make.kind, query.kind) == ("python", "python in order")
    newcomer.python(make.text)
    for line in commands_of(fill):
        if "--once" in line or "report" in line:
            newcomer.type(line)
    check_rows(newcomer, newcomer.python(query.text))
    newcomer.python(figures.text)
    assert "vegaEmbed" in (newcomer.folder / "gaps.html").read_text("utf-8")


@pytest.mark.soak
def test_every_line_of_the_page_works(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    newcomer = Newcomer(install(wheel, tmp_path / "venv", ["fast", "report", "spark"]), home)
    check, make, fill, query = steps_of(PAGE)[:4]
    for line in commands_of(check):
        assert all(json.loads(row)["result"] == "good" for row in newcomer.type(line).splitlines())
    newcomer.python(make.text)
    once, forever, *others = commands_of(fill)
    newcomer.type(once)
    newcomer.type_in_another_terminal(forever, "meshbus pipeline stop tables")
    for line in others:
        newcomer.type(line)
    check_rows(newcomer, newcomer.python(query.text))
