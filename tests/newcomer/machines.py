"""Two machines on one computer: network namespaces with a cable between them (Linux, root and `ip` only)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.children import child

_numbers = count(1)


class Machine(NamedTuple):
    """One machine: a network of its own, a home of its own, and a folder that commands run in."""

    name: str
    namespace: str
    home: Path
    scripts: Path
    """The folder of the `meshbus` script."""

    def run(self, text: str, cwd: Path) -> tuple[str, Path]:
        """Run a script; return what it printed, and the folder in which it ended."""
        place = self.home / "cwd"
        done = subprocess.run(
            self.command(f"set -e\n{text}\npwd > {place}\n"),
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"on the {self.name}:\n{text}\n{done.stdout}{done.stderr}"
        return done.stdout, Path(place.read_text("utf-8").strip())

    @contextmanager
    def start(self, text: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
        """Run a command that does not end by itself."""
        with child(
            self.command(f"exec {text}"),
            cwd=cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            yield process

    def command(self, text: str) -> list[str]:
        """Return the command that runs a script on this machine."""
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", text]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a user with nothing but the scripts."""
        path = f"{self.scripts}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8"}


@contextmanager
def two_machines(folder: Path, addresses: dict[str, str], scripts: Path) -> Iterator[dict[str, Machine]]:
    """Make two machines with these addresses, and a cable between them; skip the test where that is not possible."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("two machines need network namespaces: run as root, with `ip` of iproute2")
    number = f"{os.getpid()}-{next(_numbers)}"
    names = {name: f"meshbus-{number}-{name}" for name in addresses}
    with ExitStack() as stack:
        for namespace in names.values():
            made = _ip("netns", "add", namespace)
            if made.returncode:
                pytest.skip(f"this machine cannot make network namespaces: {made.stderr.strip()}")
            stack.callback(_ip, "netns", "delete", namespace)
        ends = [f"mb{name[0]}{os.getpid() % 100_000}" for name in names]
        cable = _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        if cable.returncode:
            pytest.skip(f"this machine cannot make a veth pair: {cable.stderr.strip()}")
        for end, (name, namespace) in zip(ends, names.items(), strict=True):
            for arguments in (
                ("link", "set", end, "netns", namespace),
                ("-n", namespace, "address", "add", f"{addresses[name]}/24", "dev", end),
                ("-n", namespace, "link", "set", end, "up"),
                ("-n", namespace, "link", "set", "lo", "up"),
            ):
                done = _ip(*arguments)
                assert not done.returncode, done.stderr
        machines = {}
        for name, namespace in names.items():
            home = folder / name
            home.mkdir()
            machines[name] = Machine(name, namespace, home, scripts)
        yield machines


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=30)
