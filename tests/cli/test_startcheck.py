"""`check` finds what `up` would refuse, and leaves nothing behind."""

import os
from pathlib import Path
from typing import Any

import pytest

from meshbus.cli.check import Result
from meshbus.cli.exit import Exit
from meshbus.log.log import Redex
from meshbus.node.daemons.daemonfiles import DaemonFiles
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.peers.pinfile import save_pins
from tests.cli.conftest import Meshbus
from tests.cli.conftest import Result as Ran
from tests.cli.running import running

GOOD = 'identity = "id.toml"\npsk_file = "mesh.key"\nadmin_socket = "run/admin.sock"\n'


@pytest.fixture
def good(meshbus: Meshbus, home: Path) -> Path:
    meshbus("key", "new", "id.toml")
    meshbus("key", "psk", "mesh.key")
    (home / "node.toml").write_text(GOOD, "utf-8")
    return home / "node.toml"


def _rows(ran: Ran) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in ran.rows}


def _both(meshbus: Meshbus, config: Path, what: str) -> dict[str, Any]:
    """Return the finding that `check` reports for what `up` refuses too."""
    checked = meshbus("check", config)
    assert checked.code == Exit.FAILED
    assert meshbus("up", config).code != Exit.OK
    row = _rows(checked)[what]
    assert row["result"] == Result.BAD
    return row


def test_a_valid_configuration_passes_and_nothing_is_created(meshbus: Meshbus, good: Path) -> None:
    before = sorted(path.name for path in good.parent.iterdir())
    checked = meshbus("check", good)
    assert checked.code == Exit.OK
    assert _rows(checked)["admin socket"]["result"] == Result.GOOD
    assert "this machine only" in _rows(checked)["address"]["found"]
    assert sorted(path.name for path in good.parent.iterdir()) == before


def test_an_admin_folder_that_others_can_enter(meshbus: Meshbus, good: Path) -> None:
    (good.parent / "run").mkdir(mode=0o755)
    (good.parent / "run").chmod(0o755)
    assert "chmod 700" in _both(meshbus, good, "admin socket")["found"]


def test_an_admin_socket_that_is_a_file(meshbus: Meshbus, good: Path) -> None:
    (good.parent / "run").mkdir(mode=0o700)
    (good.parent / "run" / "admin.sock").write_text("x", "utf-8")
    assert "not a socket" in _both(meshbus, good, "admin socket")["found"]


def test_a_port_that_is_in_use(meshbus: Meshbus, good: Path) -> None:
    with UdpSocket.bind("127.0.0.1", 0) as taken:
        good.write_text(f'{GOOD}bind = "127.0.0.1:{taken.address[1]}"\n', "utf-8")
        assert "is used by another program" in _both(meshbus, good, "address")["found"]


def test_an_address_of_another_machine(meshbus: Meshbus, good: Path) -> None:
    good.write_text(f'{GOOD}bind = "192.0.2.1:9000"\n', "utf-8")
    assert "is not an address of this machine" in _both(meshbus, good, "address")["found"]


def test_a_log_dir_that_is_a_file(meshbus: Meshbus, good: Path) -> None:
    (good.parent / "log").write_text("x", "utf-8")
    good.write_text(f'{GOOD}log_dir = "log"\n[[channels]]\nname = "a"\nlog = "published"\n', "utf-8")
    assert "not a writable directory" in _both(meshbus, good, "logs")["found"]


def test_a_damaged_log(meshbus: Meshbus, good: Path) -> None:
    with Redex(good.parent / "log" / "published") as redex:
        redex.open("a").append(b"x")
    (manifest,) = (good.parent / "log" / "published").glob("*/_manifest.json")
    manifest.write_text("{", "utf-8")
    good.write_text(f'{GOOD}log_dir = "log"\n[[channels]]\nname = "a"\nlog = "published"\n', "utf-8")
    assert str(manifest.parent) in _both(meshbus, good, "logs")["found"]


LOGGED = 'log_dir = "log"\n[[channels]]\nname = "a"\nlog = "published"\n'
NEWER: dict[str, tuple[str, str, str, str]] = {
    "configuration": ("node.toml", "", "file_version = 2\n", "settings file, version 2"),
    "identity": ("id.toml", "version = 1", "version = 2", "key file, version 2"),
    "mesh key": ("mesh.key", "version = 1", "version = 2", "key file, version 2"),
    "pins": ("id.pins.toml", "version = 1", "version = 2", "key file, version 2"),
    "policy": ("policy.toml", "", "file_version = 2\n", "settings file, version 2"),
    "logs": ("log/published/*/_manifest.json", '"version":1', '"version":4', "manifest of a log, version 4"),
    "daemons": ("daemons/version", '"version":1', '"version":2', "records of daemons, version 2"),
}
"""For each check: the file, how it becomes one of a newer build, and how the sentence about it begins."""


@pytest.mark.parametrize("what", NEWER)
def test_a_file_of_a_newer_build_is_named_by_the_check_and_refused_at_the_start(
    meshbus: Meshbus, good: Path, what: str
) -> None:
    name, old, new, sentence = NEWER[what]
    settings = GOOD + 'daemons_dir = "daemons"\n' + ('policy_file = "policy.toml"\n' if what == "policy" else LOGGED)
    good.write_text(settings, "utf-8")
    (good.parent / "policy.toml").write_text("", "utf-8")
    save_pins(good.parent / "id.pins.toml", {})
    DaemonFiles(good.parent / "daemons", os.urandom).close()
    with Redex(good.parent / "log" / "published") as redex:
        redex.open("a").append(b"x")
    (path,) = good.parent.glob(name)
    text = path.read_text("utf-8")
    path.write_text(text.replace(old, new, 1), "utf-8")
    before = path.read_bytes()
    found = _both(meshbus, good, what)["found"]
    assert path.name in found
    assert f"{sentence}, was written by a newer meshbus; this one reads version" in found
    refused = meshbus("up", good)
    assert refused.err.count("\n") == 1
    assert found in refused.err
    assert path.read_bytes() == before


def test_an_edge_address_that_is_in_use(meshbus: Meshbus, good: Path) -> None:
    import socket  # noqa: TID251 - somebody else's program

    with socket.create_server(("127.0.0.1", 0)) as taken:
        edge = f'[[edge]]\npublishers = "tcp://127.0.0.1:{taken.getsockname()[1]}"\nchannels_in = ["a/"]\n'
        good.write_text(GOOD + edge, "utf-8")
        assert "cannot listen" in _both(meshbus, good, "edge[0].publishers")["found"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_cannot_be_written(meshbus: Meshbus, good: Path) -> None:
    sealed = good.parent / "sealed"
    sealed.mkdir(mode=0o500)
    good.write_text(GOOD.replace("run/", "sealed/run/"), "utf-8")
    assert "is not writable" in _both(meshbus, good, "admin socket")["found"]


def test_a_running_node_is_not_a_failed_check(meshbus: Meshbus, tmp_path: Path) -> None:
    meshbus("key", "psk", tmp_path / "mesh.key")
    with running(tmp_path / "a", 'log_dir = "log"\n[[channels]]\nname = "a"\nlog = "published"\n') as node:
        checked = meshbus("check", tmp_path / "a" / "node.toml")
        assert checked.code == Exit.OK
        assert "a node serves" in _rows(checked)["admin socket"]["found"]
        assert node.process.poll() is None


@pytest.mark.parametrize(
    ("channels", "result", "found"),
    [
        ("", Result.GOOD, "0 entries; other channels are open"),
        ('[[channels]]\nname = "a"\nlog = "published"\n', Result.GOOD, "1 entry; other channels are open"),
        ('[[channels]]\nname = "a"\nrequire_token = true\n', Result.ADVICE, "refused as unknown"),
        ('unlisted_channels = "refuse"\n', Result.GOOD, "refused as unknown"),
        ('unlisted_channels = "open"\n[[channels]]\nname = "a"\nrequire_token = true\n', Result.GOOD, "are open"),
    ],
)
def test_the_check_shows_what_applies_to_unlisted_channels(
    meshbus: Meshbus, good: Path, channels: str, result: Result, found: str
) -> None:
    good.write_text(f'{GOOD}log_dir = "log"\n{channels}', "utf-8")
    row = _rows(meshbus("check", good))["channels"]
    assert row["result"] == result
    assert found in row["found"]
