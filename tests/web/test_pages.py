"""The files of the live page: complete, from this server only, and those of others as they were published."""

import re
import tomllib
from hashlib import sha256

import pytest

from meshbus.web.pages import CONFINED, Pages
from tests.house.tree import PACKAGE

STATIC = PACKAGE / "web" / "static"
VENDORED = tomllib.loads((STATIC / "vendored.toml").read_text("utf-8"))


def test_files_are_answered_with_their_type_and_confined() -> None:
    pages = Pages()
    for name, kind in (("page.html", "text/html"), ("page.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        answer = pages.answer(name)
        assert answer.headers["content-type"].startswith(kind)
        assert set(CONFINED) <= set(answer.headers)
        assert answer.body == (STATIC / name).read_bytes()


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    pages = Pages()
    tag = pages.answer("page.js").headers["etag"]
    again = pages.answer("page.js", tag)
    assert (again.status_code, again.body) == (304, b"")
    assert pages.answer("page.css", tag).status_code == 200


def test_only_files_for_browsers_are_served() -> None:
    assert "vendored.toml" not in Pages().names
    assert {"login.html", "page.html", "uplot.js"} <= set(Pages().names)


def test_nothing_is_asked_of_another_host() -> None:
    own = [path for path in STATIC.iterdir() if path.name not in VENDORED]
    for path in own:
        addresses = re.findall(
            r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"^\s*//.*$", "", path.read_text("utf-8"), flags=re.MULTILINE)
        )
        assert [one for one in addresses if "www.w3.org" not in one] == [], (
            path.name
        )  # the name of a format, not an address
    for name in VENDORED:
        if name.endswith(".css"):
            assert "url(" not in (STATIC / name).read_text("utf-8")


@pytest.mark.parametrize("name", [path.name for path in sorted(STATIC.glob("*.html"))])
def test_pages_name_only_files_that_exist(name: str) -> None:
    text = (STATIC / name).read_text("utf-8")
    for target in re.findall(r'(?:href|src)="([^"#]+)"', text):
        assert (STATIC / target).is_file(), target
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|style=", text), "the policy allows nothing inline"


@pytest.mark.parametrize("name", sorted(VENDORED))
def test_files_of_others_are_as_published_with_their_license(name: str) -> None:
    entry = VENDORED[name]
    assert sha256((STATIC / name).read_bytes()).hexdigest() == entry["sha256"]
    assert entry["license"] == "MIT"
    assert re.fullmatch(r"\d+\.\d+\.\d+", entry["version"])
    assert "Permission is hereby granted" in (STATIC / entry["license_file"]).read_text("utf-8")
