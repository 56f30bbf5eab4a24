"""The newest net-mesh that the tests run against; tools/bootstrap.sh installs it beside the one of the environment."""

import re
import sys
from pathlib import Path

PACKAGES = Path(sys.prefix) / "net-mesh"
LOCK = Path(__file__).parents[2] / "requirements" / "newest.txt"


def locked_version() -> str:
    """Return the version that the lock names."""
    found = re.search(r"^net-mesh==(\S+)", LOCK.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def installed_version(packages: Path = PACKAGES) -> str | None:
    """Return the version in a directory, or None."""
    found = next(packages.glob("net_mesh-*.dist-info"), None)
    return None if found is None else found.name.removeprefix("net_mesh-").removesuffix(".dist-info")
