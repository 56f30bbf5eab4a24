"""meshbus as a user installs it: the built wheel in a fresh environment, with chosen extras and nothing else.

Nothing is downloaded. The wheel is built by the locked build backend. The packages that it asks for are linked from the
environment of the tests, which has them all; a package that nobody asked for is not there.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import HeaderParser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.tree import ROOT


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this tree."""
    program = "import sys, uv_build; print(uv_build.build_wheel(sys.argv[1]))"
    # The backend finds its own program through the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    built = subprocess.run(
        [sys.executable, "-c", program, folder],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.split()[-1]


def install(wheel: Path, folder: Path, extras: Iterable[str] = ()) -> Path:
    """Install a wheel into a fresh environment; return the folder of its scripts."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    scripts = folder / "bin"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            scripts / "python",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            wheel,
        ],
        check=True,
        timeout=120,
    )
    (site,) = folder.glob("lib/python*/site-packages")
    for one in needed(wheel, extras):
        for top in {file.parts[0] for file in one.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            place = site / top
            if not place.exists():
                place.symlink_to(Path(str(one.locate_file(top))))
    return scripts


def needed(wheel: Path, extras: Iterable[str] = ()) -> list[Distribution]:
    """Return the installed distributions that a wheel needs, directly and indirectly."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    found: dict[str, Distribution] = {}
    waiting = [(text, set(extras)) for text in asked]
    while waiting:
        text, chosen = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in chosen or {""}
        ):
            continue
        key = canonicalize_name(requirement.name)
        if key not in found and key != "meshbus":
            found[key] = distribution(requirement.name)
            waiting += [(other, requirement.extras) for other in found[key].requires or ()]
    return list(found.values())
