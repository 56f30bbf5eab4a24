"""The script that installs what `make test-web` needs: where it cannot, it says in one sentence what is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.tree import ROOT

TOOLS = ("cat", "cksum", "dirname", "id", "mkdir", "sh", "tail", "timeout")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A copy of the script, on a machine that has neither a browser nor Prometheus."""
    for folder in ("bin", "tools", ".venv/.meshbus"):
        (tmp_path / folder).mkdir(parents=True)
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    shutil.copy(ROOT / "tools" / "testweb.sh", tmp_path / "tools")
    return tmp_path


def program(machine: Path, name: str, *lines: str) -> None:
    path = machine / "bin" / name
    path.unlink(missing_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)), "utf-8")
    path.chmod(0o755)


def run(machine: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "tools/testweb.sh"],
        cwd=machine,
        env={"PATH": str(machine / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_package_source_it_fails_with_what_is_missing(machine: Path) -> None:
    program(machine, "id", "echo 0")
    program(machine, "apt-get", "echo 'E: Unable to locate package' >&2", "exit 100")
    failed = run(machine)
    assert failed.returncode == 1
    assert "Unable to locate package" in failed.stderr
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("meshbus: cannot install these packages: prometheus chromium fonts-liberation")
    assert last.endswith("check the network and run this again")


def test_users_without_rights_are_told_what_to_install(machine: Path) -> None:
    program(machine, "id", "echo 1000")
    failed = run(machine)
    assert failed.returncode == 1
    assert failed.stderr.startswith("meshbus: these packages are not installed: prometheus")
    assert "with your system's package manager" in failed.stderr
