"""A Debian package: meshbus with all it needs below /usr/lib/meshbus, a command, and a unit that is not started by itself.

It needs only Debian's own Python, of the version that the environment of this program has: the compiled parts are for it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path

from meshbus.cli.systemd import UNIT
from tools.release.bundle import files_of

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LIBRARY = "usr/lib/meshbus"
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"

_COMMAND = f"""\
#!/usr/bin/{_PYTHON} -I
import sys

sys.path.insert(0, "/{_LIBRARY}")
from meshbus.cli import main

sys.exit(main())
"""

_AFTER = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    getent passwd meshbus >/dev/null || adduser --quiet --system --group --home /var/lib/meshbus --no-create-home meshbus
    install -d -o meshbus -g meshbus -m 0750 /etc/meshbus
    install -d -o meshbus -g meshbus -m 0700 /var/lib/meshbus
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
"""

_BEFORE = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now --quiet meshbus || true; fi
"""


def build(wheel: Path, packages: Mapping[str, Distribution], out: Path, version: str) -> Path:
    """Write the package into a directory, and return its path."""
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise SystemExit(f"release: no Debian name for a {platform.machine()}; choose from {', '.join(_ARCHITECTURES)}")
    result = out / f"meshbus_{version}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        _fill(root, wheel, packages)
        _describe(root, version, architecture)
        # Files of one time and one owner, so that the same input gives the same package.
        subprocess.run(
            [_program("dpkg-deb"), "--root-owner-group", "-Zzstd", "--build", str(root), str(result)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return result


def _fill(root: Path, wheel: Path, packages: Mapping[str, Distribution]) -> None:
    library = root / _LIBRARY
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(library)
    for package in packages.values():
        for place, source in files_of(package):
            _copy(source, library / place)
    _write(root / "usr/bin/meshbus", _COMMAND, 0o755)
    # As `meshbus systemd` prints it, whatever the machine that builds the package has in its own configuration.
    unit = UNIT.format(
        config="/etc/meshbus/node.toml",
        user="meshbus",
        program="/usr/bin/meshbus",
        writable="/etc/meshbus /var/lib/meshbus",  # the first start writes the identity beside the configuration
        home="yes",
    )
    _write(root / "lib/systemd/system/meshbus.service", unit, 0o644)
    _copy(Path("LICENSE"), root / "usr/share/doc/meshbus/copyright")


def _describe(root: Path, version: str, architecture: str) -> None:
    major, minor = sys.version_info[:2]
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    control = f"""\
Package: meshbus
Version: {version}
Architecture: {architecture}
Maintainer: The meshbus authors <meshbus@localhost>
Installed-Size: {size}
Depends: {_PYTHON}, python3 (>= {major}.{minor}), adduser, libc6
Section: net
Priority: optional
Description: event mesh for fleets, whose log is a Spark table
 Nodes talk over an encrypted UDP mesh, keep channels as durable logs, and
 enforce policy at gateways. After the installation, write the
 configuration as the user of the service, and start it:
 sudo -u meshbus meshbus new /etc/meshbus/node.toml
 sudo systemctl enable --now meshbus
"""
    _write(root / "DEBIAN/control", control, 0o644)
    _write(root / "DEBIAN/postinst", _AFTER, 0o755)
    _write(root / "DEBIAN/prerm", _BEFORE, 0o755)
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in (root, *root.rglob("*")):
        os.utime(path, (moment, moment), follow_symlinks=False)


def _copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)
    place.chmod(0o644)


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(mode)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"release: {name} is not installed; install it with your system's package manager")
    return found
