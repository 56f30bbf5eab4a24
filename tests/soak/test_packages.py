"""Packages in clean roots: the service of the Debian package survives `kill -9`, and the container image runs a node."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.patience import PATIENCE_S
from tools.release.__main__ import main as release

ROOT = Path(__file__).parents[2]
TOOLS = ("dpkg-deb", "mmdebstrap", "systemd-nspawn", "nsenter", "chroot", "buildah")
IMAGE = "meshbus-soak"
TRY = """
meshbus new /etc/meshbus/node.toml --name probe --bind 127.0.0.1:0 --yes && meshbus check /etc/meshbus/node.toml || exit 1
meshbus up /etc/meshbus/node.toml --admin /var/lib/meshbus/admin.sock & node=$!
for turn in $(seq 60); do
    sleep 1
    if meshbus status --admin /var/lib/meshbus/admin.sock --json; then found=yes && break; fi
done
kill $node
[ "$found" = yes ]
"""
"""A node in the image, asked for its status."""
Found = TypeVar("Found")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


@contextmanager
def _booted(root: Path) -> Iterator[int]:
    """Boot a root with its own systemd, and yield the process that is its first."""
    command = [
        "systemd-nspawn",
        "--directory",
        str(root),
        "--boot",
        "--register=no",
        "--keep-unit",
        "--private-network",
    ]
    container = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield _until(lambda: _first_process(container.pid))
    finally:
        container.terminate()
        with suppress(subprocess.TimeoutExpired):
            container.wait(30)
        container.kill()
        container.wait()


def _first_process(parent: int) -> int:
    found = subprocess.run(["pgrep", "-P", str(parent), "-x", "systemd"], capture_output=True, text=True, check=False)
    return int(found.stdout.split()[0]) if found.stdout else 0


def _until(look: Callable[[], Found]) -> Found:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the packages of a release, and return the Debian package."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing or os.getuid():
        pytest.skip(f"needs root and {', '.join(missing or TOOLS)}")
    folder = tmp_path_factory.mktemp("dist")
    release([str(folder)])
    return next(folder.glob("*.deb"))


def test_a_node_runs_in_the_container_image(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")  # which works on every file system
    _run("sh", str(ROOT / "tools/release/image.sh"), str(package), IMAGE)
    container = _run("buildah", "from", f"localhost/{IMAGE}")
    try:
        inside = ("buildah", "run", "--isolation", "chroot", container, "--")
        assert _run(*inside, "id", "-un") == "meshbus"
        assert '"name":"probe"' in _run(*inside, "sh", "-c", TRY)
    finally:
        _run("buildah", "rm", container)
        _run("buildah", "rmi", IMAGE)


def test_a_node_from_the_package_runs_as_a_service_and_survives_a_kill(package: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    wanted = "--include=python3,systemd,systemd-sysv,adduser"
    _run("mmdebstrap", "--variant=minbase", wanted, "bookworm", str(root))
    shutil.copy(package, root / "tmp.deb")
    _run("chroot", str(root), "dpkg", "-i", "/tmp.deb")
    new = ("meshbus", "new", "/etc/meshbus/node.toml", "--name", "probe", "--bind", "127.0.0.1:0", "--yes")
    _run("chroot", "--userspec=meshbus:meshbus", str(root), *new)
    _run("chroot", "--userspec=meshbus:meshbus", str(root), "meshbus", "check", "/etc/meshbus/node.toml")
    _run("chroot", str(root), "systemctl", "enable", "meshbus")
    with _booted(root) as first:
        inside = ("nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w")

        def answers(before: str = "0") -> str:
            """Return the process of the service if its node answers and it is another process than before."""
            show = subprocess.run(
                [*inside, "systemctl", "show", "-p", "MainPID", "--value", "meshbus"],
                capture_output=True,
                text=True,
                check=False,
            ).stdout.strip()
            status = [*inside, "meshbus", "status", "--admin", "/run/meshbus/admin.sock", "--json"]
            asked = subprocess.run(status, capture_output=True, text=True, check=False)
            return show if show not in {"", "0", before} and not asked.returncode else ""

        before = _until(answers)
        assert _run(*inside, "stat", "-c", "%U", f"/proc/{before}") == "meshbus"
        _run(*inside, "systemctl", "kill", "--signal=KILL", "meshbus")
        assert _until(lambda: answers(before)) != before
