"""The report of a whole demo, and the page of its gateway while it ran, in a real browser: `make test-web` runs this."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from meshbus.cli.demo import SERVED
from meshbus.cli.exit import Exit
from meshbus.demo.roles import GATEWAY, POSES, REPORT
from tests.children import child
from tests.cli.running import SCRIPT
from tests.web.browser import SCREENSHOTS, Visit, clean, expect, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [pytest.mark.web, pytest.mark.timeout(900)]  # it starts Spark

SECONDS = 20
"""Long enough for a browser to start meanwhile."""
PAPER = {"width": 718, "height": 1047}
"""A4 at 96 points per inch, without margins of 1 cm."""


class Finished(NamedTuple):
    """A demo that has ended."""

    report: Path
    live: list[str]
    """What the page of its gateway complained about or asked other hosts for while the demo ran."""


@pytest.fixture(scope="module")
def finished(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MESHBUS_")}
    command: list[str | Path] = [SCRIPT, "demo", folder, "--serve", "--seconds", str(SECONDS)]
    with child(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(line.split(SERVED)[1].split()[0] for line in process.stderr if SERVED in line)
        with visit(browser, address) as seen:
            seen.open()
            expect(seen.page.locator("h1")).to_have_text(GATEWAY)
            expect(seen.page.locator(f'#channels tr[data-key="{POSES}"]')).to_be_visible()
            expect(seen.page.locator("#total-forwarded")).not_to_have_text(
                "0"
            )  # the gateway passes on what others publish
            expect(seen.page.locator("#chart:not(.waiting) canvas")).to_be_visible()
            seen.screenshot("demo-live")
            live = [line for line in seen.complaints if "ERR_" not in line]  # that the node is gone, at the end
            live += seen.strangers()
        rest = process.stderr.read()
        assert process.wait() == Exit.OK, rest
    return Finished(folder / REPORT, live)


def opened(browser: Browser, finished: Finished, **options: Any) -> Any:
    """Open the report as a file, in a browser without a network."""
    return visit(browser, finished.report.parent.as_uri(), offline=True, **options)


def drawn(seen: Visit) -> list[Locator]:
    """Open the report, wait until every figure is drawn, and return them."""
    seen.open(f"/{REPORT}")
    figures: list[Locator] = seen.page.locator("div.chart").all()
    for figure in figures:
        expect(figure.locator("svg")).to_be_visible()
    return figures


def test_the_page_was_served_while_the_demo_ran(finished: Finished) -> None:
    assert finished.live == []


def test_every_figure_answers_a_question_and_is_drawn(browser: Browser, finished: Finished) -> None:
    with opened(browser, finished) as seen:
        figures = drawn(seen)
        assert len(figures) >= 8
        for figure in figures:
            question = str(figure.get_attribute("aria-label"))
            assert question.endswith("?")
            assert figure.locator("svg .role-mark path, svg .role-mark text").count() > 0, question
            box = figure.locator("svg").bounding_box() or {"width": 0, "height": 0}
            assert box["width"] > 100, question
            assert box["height"] > 40, question
        headings = seen.page.locator("h2").all_inner_texts()
        assert all(heading.endswith("?") for heading in headings)
        assert seen.page.locator("nav a").all_inner_texts() == headings
        clean(seen)


def test_tables_are_sorted_by_mouse_and_by_keyboard(browser: Browser, finished: Finished) -> None:
    with opened(browser, finished) as seen:
        seen.open(f"/{REPORT}")
        tables = seen.page.locator("table.sortable").all()
        assert len(tables) >= 8
        for table in tables:
            names = table.locator("th button").all()
            names[0].click()
            assert in_order(table, 0, "ascending")
            names[0].click()
            assert in_order(table, 0, "descending")
            names[-1].focus()
            seen.page.keyboard.press("Enter")
            assert in_order(table, len(names) - 1, "ascending")
            seen.page.keyboard.press("Space")
            assert in_order(table, len(names) - 1, "descending")
            assert table.locator("th[aria-sort]").count() == 1
        clean(seen)


def in_order(table: Locator, column: int, direction: str) -> bool:
    """Return whether a table says that it is sorted by a column, and is: what is unknown comes last."""
    if table.locator("th").nth(column).get_attribute("aria-sort") != direction:
        return False
    cells = table.locator(f"tbody td:nth-child({column + 1})").all()
    found = [cell.get_attribute("data-v") for cell in cells]
    known = [value for value in found if value is not None]
    if found[: len(known)] != known:
        return False
    rising = known if direction == "ascending" else known[::-1]
    # As the browser compares texts.
    return bool(
        table.page.evaluate(
            """all => all.every((one, place) => place === 0 || (all.every(value => !isNaN(value))
            ? all[place - 1] - one : all[place - 1].localeCompare(one)) <= 0)""",
            rising,
        )
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 800), (1280, 900), (3840, 2160)])
def test_the_report_is_for_everybody_at_every_size(
    browser: Browser, finished: Finished, scheme: Any, width: int, height: int
) -> None:
    size = {"width": width, "height": height}
    with opened(browser, finished, viewport=size, color_scheme=scheme, reduced_motion="reduce") as seen:
        drawn(seen)
        assert not seen.too_wide()
        assert seen.defects() == []
        seen.screenshot(f"report-{scheme}-{width}")
        clean(seen)


def test_the_report_prints_on_white_paper_and_within_its_edges(browser: Browser, finished: Finished) -> None:
    with opened(browser, finished, viewport=PAPER, color_scheme="dark") as seen:
        drawn(seen)
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
        outside = seen.page.evaluate(
            """[...document.querySelectorAll("body *:not(caption)")]
            .filter(one => one.getBoundingClientRect().right > window.innerWidth + 1)
            .map(one => `${one.tagName} ${one.className.baseVal ?? one.className} ${one.textContent.slice(0, 40)}`)"""
        )
        assert outside == []
        seen.screenshot("report-print")
        seen.page.pdf(path=SCREENSHOTS / "report.pdf", format="A4", print_background=True)
        assert (SCREENSHOTS / "report.pdf").stat().st_size > 10_000
        clean(seen)
