"""The parts of the site that need no Sphinx: where pages go, which links are broken, which versions there are."""

from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tools.site import links, pages, versions


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    project = {
        "README.md": "# Front\n[guide](docs/guide/README.md#top) [why](docs/decisions) ![x](docs/x.svg) [o](https://e.org/)",
        "SECURITY.md": "# Security\n[front](README.md)",
        "docs/x.svg": "<svg/>",
        "docs/limits.md": "# Limits\n[rules](../examples/rules.yml)",
        "docs/guide/README.md": "# Guides\n[b](second.md) [a](first.md) [b again](second.md) [l](../limits.md)",
        "docs/guide/first.md": "# First\n[up](README.md) [home](../../README.md)",
        "docs/guide/second.md": "# Second",
        "docs/guide/unnamed.md": "# Unnamed",
        "docs/wire/profile.md": "# Profile",
        "docs/decisions/0000-template.md": "# NNNN Title",
        "docs/decisions/0001-one.md": "# 0001 One",
        "examples/rules.yml": "rules: []",
        "tests/notes.md": "# Not a page",
    }
    write(tmp_path / "project", project)
    pages.stage(tmp_path / "project", tmp_path / "source")
    return tmp_path / "source"


def entries(page: Path) -> list[str]:
    return [line for line in page.read_text("utf-8").splitlines() if line.startswith("/")]


def test_links_to_a_readme_or_a_folder_lead_to_its_index(staged: Path) -> None:
    front = (staged / "index.md").read_text("utf-8")
    assert "[guide](docs/guide/index.md#top) [why](docs/decisions/index.md)" in front
    assert "[o](https://e.org/)" in front
    assert (staged / "docs/guide/first.md").read_text("utf-8") == "# First\n[up](index.md) [home](../../index.md)"


def test_files_that_pages_link_to_are_there(staged: Path) -> None:
    assert (staged / "docs/x.svg").is_file()
    assert (staged / "examples/rules.yml").is_file()
    assert not (staged / "tests").exists()


def test_every_page_has_one_place_in_the_navigation(staged: Path) -> None:
    assert entries(staged / "docs/guide/index.md") == [
        "/docs/guide/second",
        "/docs/guide/first",
        "/docs/guide/unnamed",
    ]
    listed = [entry for page in staged.rglob("*.md") for entry in entries(page)]
    there = [f"/{page.relative_to(staged).with_suffix('').as_posix()}" for page in staged.rglob("*.md")]
    assert sorted([*listed, "/index"]) == sorted(there)


def test_broken_links_are_found_with_the_page_and_the_reason(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.html": '<a id="top" href="#top"></a><a href="b/c.html?q=1#part"></a><img src="data:image/png;base64,x">'
            '<a href="b/"></a><a href="gone.html"></a><a href="b/c.html#gone"></a>',
            "b/c.html": '<p id="part"></p><a href="../a.html"></a><a href="https://example.org/x#y"></a>',
            "d.html": '<script src="https://example.org/x.js"></script><link href="//example.org/x.css">'
            '<a href="ftp://example.org"></a><a href="https://nowhere"></a><a href="https://[x/"></a>',
        },
    )
    checked = links.check(tmp_path)
    assert checked.broken == [
        "a.html: b/: no such file",
        "a.html: gone.html: no such file",
        "a.html: b/c.html#gone: no such place on that page",
        "d.html: https://example.org/x.js: the page loads something from another host",
        "d.html: //example.org/x.css: the page loads something from another host",
        "d.html: ftp://example.org: not an address that starts with http:// or https://",
        "d.html: https://nowhere: not an address with the full name of a host",
        "d.html: https://[x/: not an address: Invalid IPv6 URL",
    ]
    assert "https://example.org/x#y" in checked.external


def test_the_versions_of_a_site_are_its_folders_newest_first(tmp_path: Path) -> None:
    write(tmp_path, {f"{name}/index.html": "" for name in ("0.9.0", "0.10.0", "1.0.0", "notes")})
    write(tmp_path, {"0.10.0/docs/a.html": "", "2.0.0/readme.txt": ""})
    changelog = "## [Unreleased]\n\n## [0.10.0] - 2027-02-01\n\n## [0.9.0] - 2027-01-01\n"
    found = versions.write(tmp_path, changelog)
    assert [edition.title for edition in found] == ["1.0.0 (not released)", "0.10.0 (2027-02-01)", "0.9.0 (2027-01-01)"]
    assert found[1].pages == ["docs/a.html", "index.html"]
    assert links.check(tmp_path) == links.Checked([], [])
    assert '"title": "0.10.0 (2027-02-01)"' in (tmp_path / "versions.js").read_text("utf-8")


def test_the_changelog_of_this_tree_has_headings_that_are_understood() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    headings = [line for line in changelog.splitlines() if line.startswith("## ")]
    assert len(headings) == len(versions.RELEASE.findall(changelog)) + headings.count("## [Unreleased]")
