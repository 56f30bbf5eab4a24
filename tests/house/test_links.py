"""Every relative link and every file path in the Markdown documents leads to something that exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import PACKAGE, ROOT, committed_files, name_of
from tools.site.links import Link, fault_of

PAGES = sorted(path for path in committed_files() if path.suffix == ".md")

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w.\-]+(?:/[\w.\-]+)+\.(?:py|md|sh|toml|in)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)

HISTORY = ROOT / "docs" / "decisions"
"""Decision records may name files as they were called at the time."""
GENERATED = {"meshbus-demo"}
"""Folders that do not exist in a clone."""


def _prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def _anchors(page: Path) -> set[str]:
    """Return the fragments that GitHub makes from the headings of a page."""
    titles = HEADING.findall(_prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            yield link


def _missing_paths(page: Path) -> Iterator[str]:
    for code in CODE.findall(_prose(page)):
        if not FILE.fullmatch(code) or code.partition("/")[0] in GENERATED:
            continue
        if not any((base / code).is_file() for base in (ROOT, PACKAGE, page.parent)):
            yield code


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = list(_broken_links(page))
    assert not broken, f"{name_of(page)} links to {', '.join(broken)}, which does not exist"


@pytest.mark.parametrize("page", [page for page in PAGES if HISTORY not in page.parents], ids=name_of)
def test_every_path_exists(page: Path) -> None:
    missing = list(_missing_paths(page))
    assert not missing, f"{name_of(page)} names {', '.join(missing)}, which does not exist"


def test_addresses_of_other_hosts_are_well_formed() -> None:
    faults = [
        f"{name_of(page)}: {target}: {fault}"
        for page in PAGES
        for target in LINK.findall(_prose(page))
        if re.match(r"[a-z]+:", target) and (fault := fault_of(Link(target)))
    ]
    assert not faults, faults


def test_broken_links_and_missing_paths_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One thing\n[a](gone.md) [b](#one-thing) [c](#other) [d](https://example.org) `engine/gone.py` `a / b`\n"
        "```\n[e](fenced.md)\n```\n",
        "utf-8",
    )
    assert list(_broken_links(page)) == ["gone.md", "#other"]
    assert list(_missing_paths(page)) == ["engine/gone.py"]
