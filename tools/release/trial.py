"""Try the packages of a release as users get them: in an empty environment of each Python, from nothing but pip.

    python -m tools.release.trial PYTHON...        interpreters, by name or path

Wheel and source archive of dist/ are tried, without extras; `make release` makes them. What they depend on comes from the
index that pip is configured for. An interpreter that is not there fails the trial: what was not tried is not known to work.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tools.release.bundle import PROJECT

DIST = Path("dist")
ROUND = """
import asyncio

import meshbus

SENT = [b"scan %d" % number for number in range(100)]


async def main():
    key = "5a" * 32
    async with (
        meshbus.Node.open(psk=key, ephemeral=True) as robot,
        meshbus.Node.open(psk=key, ephemeral=True) as base,
    ):
        await base.connect(robot.address, public_key=robot.public_key)
        async with base.subscribe("sensors/lidar") as subscription:
            report = await robot.publisher("sensors/lidar").publish_batch(SENT)
            assert report.all_delivered, report
            events = aiter(subscription)
            assert [(await anext(events)).payload for _ in SENT] == SENT


asyncio.run(asyncio.wait_for(main(), 60))
"""
"""Two nodes of one program: one publishes, the other subscribes."""
_PROBE = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
_OF_ANOTHER = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables that would let a new environment see packages of another one."""


class Failed(Exception):
    """A package does not install, or does not work."""


class Trial(NamedTuple):
    """The result of one package with one interpreter."""

    python: str
    package: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.python:<12} {self.package:<32} {self.fault or 'installed; check passed; 100 events arrived'}"


def main(arguments: Sequence[str]) -> None:
    """Try all packages with all interpreters, and fail if one of them failed."""
    packages = packages_in(DIST)
    results: list[Trial] = []
    for python in arguments:
        found = version_of(python)
        for package in packages:
            began = time.monotonic()
            result = Trial(found or python, package.name, _fault(python, package) if found else "no such interpreter")
            print(f"{result} ({time.monotonic() - began:.0f} s)", flush=True)
            results.append(result)
    failed = [result for result in results if result.fault]
    if failed or not results:
        raise SystemExit(
            f"release: {len(failed)} of {len(results)} trials failed; PYTHONS names the interpreters to try"
        )


def packages_in(folder: Path) -> list[Path]:
    """Return the wheel and the source archive of this version."""
    project = version(PROJECT)
    packages = [folder / f"{PROJECT}-{project}-py3-none-any.whl", folder / f"{PROJECT}-{project}.tar.gz"]
    missing = [str(path) for path in packages if not path.is_file()]
    if missing:
        raise SystemExit(f"release: {' and '.join(missing)} not found; run `make release` first")
    return [path.resolve() for path in packages]


def version_of(python: str) -> str:
    """Return the version of an interpreter, or nothing if it does not run."""
    try:
        return _run([python, "-c", _PROBE], os.environ).strip()
    except Failed:
        return ""


def _fault(python: str, package: Path) -> str:
    """Return what goes wrong with a package in an empty environment, or nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scripts = folder / "venv" / "bin"
        outside = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
        inside = {"PATH": f"{scripts}{os.pathsep}{os.defpath}", "HOME": name, "LANG": "C.UTF-8"}
        configured = ["--name", "probe", "--bind", "127.0.0.1:0", "--yes"]
        try:
            _run([python, "-m", "venv", str(folder / "venv")], outside)
            _run([str(scripts / "python"), "-m", "pip", "--quiet", "install", "--no-input", str(package)], outside)
            _run([str(scripts / "meshbus"), "new", "node.toml", *configured], inside, folder)
            _run([str(scripts / "meshbus"), "check", "node.toml"], inside, folder)
            _run([str(scripts / "python"), "-c", ROUND], inside, folder)
        except Failed as error:
            return str(error)
    return ""


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None) -> str:
    """Run a program, and return what it printed."""
    try:
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(f"{Path(command[0]).name} {' '.join(command[1:4])}: {said[-1] if said else done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
