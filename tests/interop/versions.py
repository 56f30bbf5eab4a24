"""The published net-mesh versions that the tests run against, each in a directory of its own."""

import subprocess
import sys
from pathlib import Path

from tests.interop.newest import installed_version

DIRECTORY = Path(sys.prefix) / "net-mesh-versions"
VERSIONS = [
    "0.23.0",
    "0.24.0",
    "0.25.0",
    "0.26.0",
    "0.27.0",
    "0.27.7",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.33.0",
    "0.34.0",
    "0.35.0",
    "0.36.0",
    "0.37.0",
    "0.38.2",
    "0.39.0",
    "0.40.0",
    "0.41.1",
    "0.42.0",
    "0.43.0",
    "0.44.1",
    "0.45.0",
    "0.45.1",
]


def install(version: str) -> Path:
    """Install a version into a directory of its own, once, and return the directory."""
    packages = DIRECTORY / version
    if installed_version(packages) != version:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--target", str(packages), f"net-mesh=={version}"], check=True)
    return packages
