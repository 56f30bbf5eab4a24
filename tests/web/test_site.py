"""The site as `make site` builds it, in a real browser: from a disk, without a server and without a network."""

from __future__ import annotations

import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from meshbus import __version__
from tests.web.browser import Visit, clean, expect, visit
from tools.site import versions
from tools.site.__main__ import main as build

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.web

OLDER = "0.0.1"
GUIDE = "docs/guide/replication.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this tree, and of an older version that has fewer pages."""
    folder = tmp_path_factory.mktemp("site")
    build([str(folder)])
    shutil.copytree(folder / __version__, folder / OLDER)
    (folder / OLDER / GUIDE).unlink()
    versions.write(folder, "")
    return folder


def test_a_search_finds_a_page_and_the_page_opens(browser: Browser, site: Path) -> None:
    with visit(browser, site.as_uri()) as seen:
        seen.open("/index.html")
        page = seen.page
        page.get_by_role("link", name=f"{__version__} (not released)").click()
        expect(page.locator("h1")).to_contain_text("meshbus")
        page.get_by_role("textbox", name="Search").fill("not_ancestor")
        page.keyboard.press("Enter")
        expect(page.locator(".search-summary")).to_contain_text("matching the search query")
        hits = page.locator("ul.search a")
        expect(hits.filter(has_text="Drop reasons")).to_have_count(1)
        assert seen.defects() == []
        seen.screenshot("site-search")
        hits.filter(has_text="Drop reasons").click()
        expect(page.locator("h1")).to_contain_text("Drop reasons")
        page.get_by_role("link", name="Guides", exact=True).first.click()
        expect(page.locator("h1")).to_contain_text("Guides")
        clean(seen)


def test_a_reader_changes_the_version_and_stays_on_the_page_if_it_is_there(browser: Browser, site: Path) -> None:
    with visit(browser, site.as_uri()) as seen:
        seen.open(f"/{__version__}/docs/limits.html")
        choose(seen, OLDER)
        expect(seen.page).to_have_url(f"{seen.origin}/{OLDER}/docs/limits.html")
        seen.open(f"/{__version__}/{GUIDE}")
        choose(seen, OLDER)
        expect(seen.page).to_have_url(f"{seen.origin}/{OLDER}/index.html")
        clean(seen)


def test_with_a_server_a_search_shows_excerpts(browser: Browser, site: Path) -> None:
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            with visit(browser, f"127.0.0.1:{server.server_port}") as seen:
                seen.open(f"/{__version__}/search.html?q=not_ancestor")
                reasons = seen.page.locator("ul.search li").filter(has_text="Drop reasons")
                expect(reasons.locator("p")).to_contain_text("visible to parent subnets only")
                # A browser looks for an icon of its own choice, at a time of its own choice, if a page names none.
                for path in (f"/{__version__}/search.html", "/index.html"):
                    seen.open(path)
                    icon = seen.page.locator('link[rel~="icon"]').evaluate("one => one.href")
                    assert seen.page.request.get(icon).ok
                clean(seen)
        finally:
            server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is given
        pass


def choose(seen: Visit, version: str) -> None:
    seen.page.locator(".editions summary").click()
    seen.page.locator("#editions").get_by_role("link", name=version).click()


@pytest.mark.parametrize(("scheme", "width", "height"), [("dark", 360, 800), ("light", 1280, 900)])
@pytest.mark.parametrize("path", ["index.html", f"{__version__}/index.html", f"{__version__}/{GUIDE}"])
def test_the_pages_are_for_everybody(
    browser: Browser, site: Path, scheme: Any, width: int, height: int, path: str
) -> None:
    size = {"width": width, "height": height}
    with visit(browser, site.as_uri(), viewport=size, color_scheme=scheme, reduced_motion="reduce") as seen:
        seen.open(f"/{path}")
        assert seen.defects() == []
        assert not seen.too_wide()
        seen.screenshot(f"site-{scheme}-{width}-{Path(path).stem}")
        clean(seen)
