"""The site as an archive that is the same for the same pages."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

from tools.site.__main__ import main as build_site


def build(out: Path, version: str) -> Path:
    """Build the site, write it as an archive into a directory, and return its path."""
    result = out / f"meshbus-{version}-site.tar.gz"
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / f"meshbus-{version}-site"
        build_site([str(site)])
        result.write_bytes(pack(site))
    return result


def pack(folder: Path) -> bytes:
    """Return an archive of a folder, with files in order, of one time and of one owner."""
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo((folder.name / path.relative_to(folder)).as_posix())
            content = path.read_bytes()
            entry.size, entry.mtime, entry.mode = len(content), moment, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=moment)
