"""The unit of a node: readable by systemd, and with no right that a node does not need."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from tests.cli.conftest import Meshbus


class Unit(configparser.RawConfigParser):
    """A unit file: keys in their own case, and some of them more than once."""

    def __init__(self, text: str) -> None:
        super().__init__(strict=False)
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string(text)


def test_a_unit_runs_the_program_as_its_user_and_may_write_little(meshbus: Meshbus) -> None:
    unit = Unit(meshbus("systemd", "/etc/meshbus/node.toml", "--program", "/opt/meshbus/bin/meshbus").out)
    service = unit["Service"]
    assert service["ExecStart"] == "/opt/meshbus/bin/meshbus up /etc/meshbus/node.toml --admin /run/meshbus/admin.sock"
    assert (service["User"], service["Restart"], service["ProtectHome"]) == ("meshbus", "always", "yes")
    assert (service["ProtectSystem"], service["CapabilityBoundingSet"]) == ("strict", "")
    assert service["ReadWritePaths"] == "/var/lib/meshbus"
    # Seen with a real systemd: a refused call ended the node, and after five restarts in ten seconds it stayed down.
    assert (service["SystemCallErrorNumber"], unit["Unit"]["StartLimitIntervalSec"]) == ("EPERM", "0")


def test_the_folders_of_a_configuration_can_be_written(meshbus: Meshbus, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('identity = "keys/id.toml"\nlog_dir = "logs"\ndaemons_dir = "daemons"\n', "utf-8")
    service = Unit(meshbus("systemd", config, "--program", "/usr/bin/meshbus").out)["Service"]
    folders = {str(tmp_path / name) for name in ("keys", "logs", "daemons")}
    assert set(service["ReadWritePaths"].split()) == {"/var/lib/meshbus", *folders}


def test_a_file_is_written_once(meshbus: Meshbus, home: Path) -> None:
    assert meshbus("systemd", "--out", "a.service").code == Exit.OK
    assert "[Service]" in (home / "a.service").read_text("utf-8")
    result = meshbus("systemd", "--out", "a.service")
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert "the file exists; delete it first" in result.err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_accepts_the_unit(meshbus: Meshbus, home: Path) -> None:
    config = home / "node.toml"
    config.write_text("", "utf-8")
    assert (
        meshbus("systemd", config, "--user", "root", "--program", "/bin/true", "--out", "meshbus.service").code
        == Exit.OK
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", home / "meshbus.service"], capture_output=True, text=True, check=False
    )
    assert "meshbus.service" not in done.stderr
