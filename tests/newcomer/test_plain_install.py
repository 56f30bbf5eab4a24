"""After `pip install meshbus`, without extras, the command works; what needs an extra says so before it starts."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from meshbus import __version__
from meshbus.cli import VERBS
from meshbus.cli.exit import Exit
from tests.children import child
from tests.newcomer.installed import install

pytestmark = pytest.mark.slow


class Shell(NamedTuple):
    """A shell in an empty folder, with a plain install of meshbus."""

    scripts: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.scripts}:/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8"}

    def run(self, *arguments: str, program: str = "meshbus") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.scripts / program, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("plain") / "venv")


@pytest.fixture
def shell(scripts: Path, tmp_path: Path) -> Shell:
    return Shell(scripts, tmp_path)


def test_the_packages_of_the_extras_are_not_there(shell: Shell) -> None:
    for name in ("pyarrow", "pyspark", "numba"):
        assert shell.run("-c", f"import {name}", program="python").returncode == 1


def test_help_lists_every_verb_and_what_to_install(shell: Shell) -> None:
    shown = shell.run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(name in shown.stdout for name in VERBS)
    assert "pip install 'meshbus[spark]'" in " ".join(shown.stdout.replace("│", " ").split())


def test_every_verb_has_help(shell: Shell) -> None:
    for name in VERBS:
        shown = shell.run(name, "--help")
        assert (shown.returncode, shown.stderr) == (0, ""), name


def test_the_module_is_the_command(shell: Shell) -> None:
    shown = shell.run("-m", "meshbus", "--version", program="python")
    assert (shown.returncode, shown.stdout.strip(), shown.stderr) == (0, __version__, "")


@pytest.mark.parametrize("arguments", [["demo", "out"], ["pipeline", "run", "--log", ".", "--once"]])
def test_what_needs_spark_says_so_before_it_starts(shell: Shell, arguments: list[str]) -> None:
    refused = shell.run(*arguments)
    assert refused.returncode == Exit.FAILED
    assert "pyspark is not installed; run: pip install 'meshbus[spark]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (shell.folder / "out").exists()


def test_a_node_runs_publishes_and_logs(shell: Shell) -> None:
    assert shell.run("key", "psk", "mesh.key").returncode == 0
    (shell.folder / "node.toml").write_text(
        'identity = "id.toml"\npsk_file = "mesh.key"\nadmin_socket = "run/admin.sock"\nlog_dir = "log"\n'
        '[[channels]]\nname = "a/b"\nlog = "published"\n',
        "utf-8",
    )
    checked = shell.run("check", "node.toml")
    assert (checked.returncode, "Traceback" in checked.stderr) == (0, False)
    with child(
        [shell.scripts / "meshbus", "up", "node.toml"],
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        json.loads(node.stdout.readline())
        published = shell.run("pub", "a/b", "one", "--wait", "0", "--admin", "run/admin.sock")
        assert published.returncode == Exit.LOGGED
        node.terminate()
        assert node.wait(timeout=30) == 0
    shown = shell.run("log", "cat", "log", "a/b")
    assert [json.loads(line)["payload"] for line in shown.stdout.splitlines()] == ["one"]


def test_sealing_says_which_extra_it_needs(shell: Shell) -> None:
    program = 'import meshbus\nwith meshbus.Redex("logs") as redex:\n    redex.open("a").append(b"x")\n'
    assert shell.run("-c", program, program="python").returncode == 0
    refused = shell.run("log", "seal", "logs", "a")
    assert refused.returncode == Exit.FAILED
    assert "meshbus[arrow]" in refused.stderr
    assert "Traceback" not in refused.stderr
