"""A real browser that looks at the live page: Chromium of the system, driven by Playwright. `make test-web` installs both.

Playwright is imported where it is used: `make test` collects these tests without it, and does not run them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.house.tree import ROOT
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = ROOT / "build" / "test-web"
AXE = Path(__file__).parent / "data" / "axe.min.js"
"""axe-core, which looks for defects of accessibility; its license is beside it."""
SERIOUS = {"serious", "critical"}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "chromium is not installed; run `make test-web`, which installs it"
    with sync_playwright() as playwright:
        # Its sandbox needs rights that root in a container does not have; the page under test is ours.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


def expect(what: Any) -> Any:
    """Return assertions about a page or a part of it, which wait until they hold."""
    from playwright import sync_api

    sync_api.expect.set_options(timeout=1000 * PATIENCE_S)
    return sync_api.expect(what)


class Visit:
    """One open page, and everything that it did: what it asked for, and what it complained about."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.origin = address if "://" in address else f"http://{address}"
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, path: str = "/") -> None:
        """Go to a path of the node, or of the folder."""
        self.page.goto(f"{self.origin}{path}", wait_until="load")

    def strangers(self) -> list[str]:
        """Return the requests that went elsewhere."""
        return [url for url in self.asked if not url.startswith(f"{self.origin}/")]

    def too_wide(self) -> bool:
        """Return whether the page can be moved sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def screenshot(self, name: str) -> None:
        """Keep a picture for people."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def defects(self) -> list[str]:
        """Return the serious defects of accessibility that axe-core finds."""
        # Evaluated by the debugger, which the policy of the page does not confine.
        self.page.evaluate(AXE.read_text("utf-8"))
        # Without preloading: it would ask for style sheets once more, which a page on a disk may not.
        found: dict[str, Any] = self.page.evaluate("axe.run({preload: false})")
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
            for one in found["violations"]
            if one["impact"] in SERIOUS
        ]


@contextmanager
def visit(browser: Browser, address: str, **options: Any) -> Iterator[Visit]:
    """Open a page in a browser without a past: of a node at an address, or of a folder as `file://...`.

    `options` are those of a browser context.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * PATIENCE_S)
    try:
        yield Visit(context.new_page(), address)
    finally:
        context.close()


def clean(seen: Visit) -> None:
    """Assert that a page had nothing to complain about, and asked nobody else."""
    assert not seen.complaints, seen.complaints
    assert not (strangers := seen.strangers()), strangers
