"""The versions that a site has: a folder for each, a list of them for people, and the same list for the pages."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

RELEASE = re.compile(r"^## \[(?P<name>\d[^\]]*)\] - (?P<date>\d{4}-\d\d-\d\d)$", re.MULTILINE)
"""The heading of a release in the changelog."""

_INDEX = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>meshbus: versions of the documentation</title>
{icon}<style>body {{ background: Canvas; color: CanvasText; font: 1.1rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}</style>
</head>
<body>
<main>
<h1>meshbus</h1>
<p>The documentation of each version, the newest first:</p>
<ul>
{items}
</ul>
</main>
</body>
</html>
"""


class Edition(NamedTuple):
    """The documentation of one version."""

    name: str
    released: str | None
    """The day of the release, or None if the changelog has none of this version."""
    pages: list[str]

    @property
    def title(self) -> str:
        """What people read."""
        return f"{self.name} ({self.released or 'not released'})"


def present(site: Path, changelog: str) -> list[Edition]:
    """Return the versions that lie in a folder, the newest first."""
    released = {match["name"]: match["date"] for match in RELEASE.finditer(changelog)}
    folders = [(version, path) for path in site.iterdir() if (version := _version(path)) is not None]
    return [
        Edition(
            path.name,
            released.get(path.name),
            sorted(page.relative_to(path).as_posix() for page in path.rglob("*.html")),
        )
        for _, path in sorted(folders, reverse=True)
    ]


def write(site: Path, changelog: str) -> list[Edition]:
    """Write the list of the versions that lie in a folder, and return it."""
    editions = present(site, changelog)
    # A script and no data file: a page that is opened from a disk can load the one and not the other.
    listed = [{"name": one.name, "title": one.title, "pages": one.pages} for one in editions]
    (site / "versions.js").write_text(f"const EDITIONS = {json.dumps(listed, indent=1)};\n", "utf-8")
    items = "\n".join(f'<li><a href="{escape(one.name)}/index.html">{escape(one.title)}</a></li>' for one in editions)
    icons = (f"{one.name}/_static/icon.svg" for one in editions)
    icon = next((f'<link rel="icon" href="{escape(path)}">\n' for path in icons if (site / path).is_file()), "")
    (site / "index.html").write_text(_INDEX.format(items=items, icon=icon), "utf-8")
    return editions


def _version(path: Path) -> Version | None:
    """Return the version that a folder has pages of, or None if it is something else."""
    if not (path / "index.html").is_file():
        return None
    try:
        return Version(path.name)
    except InvalidVersion:
        return None
