"""Write tests/upgrade/older.tar.xz: the sources of an older build of meshbus, against which upgrades are tested.

    python -m tools.olderbuild            write it from the history of this repository
    python -m tools.olderbuild --check    compare it with the history, file by file

The archive is committed, because a clone need not have the history. It has the files of one commit as they were, without the
rooms that a node does not need. `COMMIT` moves on with each release: to the last commit of the version before.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
ARCHIVE = ROOT / "tests" / "upgrade" / "older.tar.xz"
COMMIT = "53a78fd4da2b6cf93c3864edbc058377a59b30f5"
"""There is no earlier version yet. This build is older than secure sessions, signed policies and large events."""
_SOURCE = "src/meshbus/"
_LEFT_OUT = ("__main__.py", "cli/", "demo/", "edge/", "spark/", "sync.py", "testing/")


def from_history() -> dict[str, bytes]:
    """Return the files of the older build by their path below the package, as git has them."""
    command = ["git", "archive", "--format=tar", COMMIT, _SOURCE]
    packed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    files = _files_in(io.BytesIO(packed))
    inside = {name.removeprefix(_SOURCE): content for name, content in files.items()}
    return {name: content for name, content in sorted(inside.items()) if not name.startswith(_LEFT_OUT)}


def archived() -> dict[str, bytes]:
    """Return the files in the archive."""
    return _files_in(io.BytesIO(lzma.decompress(ARCHIVE.read_bytes())))


def pack(files: dict[str, bytes]) -> bytes:
    """Return an archive of files; the same bytes each time."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def _files_in(packed: io.BytesIO) -> dict[str, bytes]:
    with tarfile.open(fileobj=packed) as tar:
        found = {entry.name: tar.extractfile(entry) for entry in tar if entry.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


def main(arguments: list[str]) -> None:
    """Write the archive, or compare it."""
    files = from_history()
    if arguments == ["--check"]:
        if archived() != files:
            sys.exit(f"{ARCHIVE} is not what commit {COMMIT} has; run `python -m tools.olderbuild`")
        print(f"{ARCHIVE.name} has the {len(files)} files of commit {COMMIT}")
    elif arguments:
        sys.exit(f"unknown argument {arguments[0]!r}; only --check is known")
    else:
        ARCHIVE.write_bytes(pack(files))
        print(f"{ARCHIVE.name}: {len(files)} files, {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
