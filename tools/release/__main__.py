"""Make all packages of a release, without a network, and write their checksums.

    python -m tools.release [DIRECTORY]        by default dist/

Everything is made twice, and must have the same bytes: then others can check that a package is made from this source.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tools.release import archive, bundle, deb, sbom

SUMS = "SHA256SUMS"


def main(arguments: list[str]) -> None:
    """Make the packages into a directory."""
    out = Path(arguments[0] if arguments else "dist")
    os.environ.setdefault("SOURCE_DATE_EPOCH", _commit_time())
    # The backend starts a program of its own by name.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    out.mkdir(parents=True, exist_ok=True)
    made = make(out)
    with tempfile.TemporaryDirectory() as folder:
        again = {path.name: _digest(path) for path in make(Path(folder))}
    sums = {path.name: _digest(path) for path in made}
    differing = [name for name, digest in sums.items() if again[name] != digest]
    if differing:
        raise SystemExit(f"release: made twice, and not the same bytes: {', '.join(differing)}")
    (out / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()), "utf-8")
    for path in (*made, out / SUMS):
        print(f"{path.stat().st_size:>12,}  {path}")


def make(out: Path) -> list[Path]:
    """Make every package once, and return their paths."""
    import uv_build

    project, packages = version(bundle.PROJECT), bundle.needed()
    wheel = out / uv_build.build_wheel(str(out))
    bill = out / f"meshbus-{project}.cdx.json"
    bill.write_text(json.dumps(sbom.bill(project, packages), indent=2) + "\n", "utf-8")
    sdist = out / uv_build.build_sdist(str(out))
    return [wheel, sdist, deb.build(wheel, packages, out, project), archive.build(out, project), bill]


def _commit_time() -> str:
    """Return when the last commit was made, which all builds of it share."""
    try:
        found = subprocess.run(["git", "log", "-1", "--format=%ct"], capture_output=True, check=True, text=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit("release: not a git checkout; set SOURCE_DATE_EPOCH to the time of the source") from None
    return found.stdout.strip()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
