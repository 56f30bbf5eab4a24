"""Build the site of this tree, check its links, and list the versions that lie beside it.

    python -m tools.site [DIRECTORY]        by default build/site/

The pages go to DIRECTORY/<version>/, so that trees of several versions can be built into the same directory. Nothing is
downloaded, a warning is an error, and the same tree gives the same bytes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tools.site import links, pages, versions

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> None:
    """Build the site into a directory."""
    site = Path(arguments[0] if arguments else ROOT / "build" / "site")
    build(site)
    editions = versions.write(site, (ROOT / "CHANGELOG.md").read_text("utf-8"))
    checked = links.check(site)
    if checked.broken:
        listed = "\n".join(checked.broken)
        raise SystemExit(f"{listed}\nsite: these links lead nowhere; correct the Markdown and run `make site` again")
    print(f"site: {', '.join(edition.title for edition in editions)}: {site / 'index.html'}")
    print(f"site: all links inside lead somewhere; {len(checked.external)} addresses of other hosts are well formed")


def build(site: Path) -> None:
    """Write the pages of this tree below a directory, instead of those that were there."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    out = site / version
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source, state = Path(folder) / "source", Path(folder) / "state"
        pages.stage(ROOT, source)
        options = ["--quiet", "--fail-on-warning", "--builder", "html", "--conf-dir", str(Path(__file__).parent)]
        options += ["--define", f"release={version}", "--doctree-dir", str(state)]
        built = subprocess.run([sys.executable, "-m", "sphinx", *options, str(source), str(out)], check=False)
    if built.returncode:
        raise SystemExit("site: the pages have errors (see above); correct the Markdown and run `make site` again")
    (out / ".buildinfo").unlink(missing_ok=True)  # for builds that go on where another one ended


if __name__ == "__main__":
    main(sys.argv[1:])
