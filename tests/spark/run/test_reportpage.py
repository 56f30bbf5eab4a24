"""The page is one file that asks no other host, and believes no text."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import Drawn
from meshbus.spark.lake.named import NamedId
from meshbus.spark.run.reportpage import Part, Summary, page, table_of

MADE = datetime(2026, 11, 18, 7, 0, tzinfo=UTC)
EVIL = "</script><script>alert(1)</script>\"'&"
EMPTY = {"meta", "br", "link", "img", "input"}


class Reader(HTMLParser):
    """Collects elements and checks that they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action"}]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    """Parse a page: every element is closed, and every link stays in the page."""
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    assert all(link.startswith("#") for link in reader.links)
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
    return reader


def make(*parts: Part, **facts: int) -> str:
    return page(parts, Summary(MADE, facts, (MADE, MADE)))


def test_a_page_has_its_questions_figures_sentences_and_tables() -> None:
    chart = charts.stacked_bars({("a", "b"): 3}, title="How many?", unit="events", what="channel")
    other = charts.stacked_bars({("a", "b"): 3}, title="And how many here?", unit="events", what="channel")
    text = make(Part("How many?", "gold.x", Drawn((chart, other), ("A note.",), [{"n": 1}])), events=1_234, bytes=5_000)
    seen = read(text).seen
    assert (seen.count("figure"), seen.count("table"), seen.count("h2"), seen.count("noscript")) == (2, 1, 1, 2)
    assert "<dt>events</dt><dd>1,234</dd>" in text
    assert "<dt>bytes</dt><dd>5 kB</dd>" in text
    assert "Events from 2026-11-18 07:00:00 to 2026-11-18 07:00:00. Made 2026-11-18 07:00:00." in text
    assert '"title": "And how many here?"' in text, "the heading of the part is another question"
    assert '"title": "How many?"' not in text, "the heading has this one"
    assert '"width": "container"' in text
    assert "vegaEmbed=" in text.replace(" ", "")


def test_a_page_without_figures_has_no_library() -> None:
    text = make(Part("Which?", "gold.x", Drawn(notes=("None.",))))
    assert "figure" not in read(text).seen
    assert len(text) < 20_000


def test_text_from_elsewhere_is_only_text() -> None:
    chart = charts.stacked_bars({(EVIL, EVIL): 3}, title=EVIL, unit=EVIL, what=EVIL)
    rows = [{EVIL: EVIL, "origin": NamedId.of(5, EVIL)}]
    text = make(Part(EVIL, EVIL, Drawn((chart,), (EVIL,), rows, {EVIL: EVIL})), **{EVIL: 1})
    read(text)
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_cells_say_names_numbers_and_what_is_unknown() -> None:
    row: dict[str, Any] = {
        "publisher": NamedId.of(-1, "west-rover"), "receiver": -1, "log": b"\x01\xff", "events": 1_234, "share": 0.25,
        "delay_us": 1500.0, "peer": None, "failure": None, "seen": MADE, "good": True,
    }  # fmt: skip
    text = table_of([row], "What?")
    assert f'<td title="{"f" * 16}" data-v="west-rover">west-rover</td>' in text
    for cell in ("f" * 16, "01ff", "1,234", "0.25", "1.5 ms", "unknown", "2026-11-18 07:00:00", "yes"):
        assert f">{cell}</td>" in text
    assert "<td></td>" in text, "a move that did not fail has no failure"
    assert 'data-v="1234"' in text, "sorted by the number, not by its text"
    assert '<th scope="col" class="n"><button type="button">delay</button>' in text
    assert '<th scope="col"><button type="button">receiver</button>' in text, "an id is no number"


def test_a_table_shows_its_first_rows_and_says_how_many_follow() -> None:
    text = table_of([{"log_id": number} for number in range(201)], "What?")
    assert text.count("<tr>") == 201
    assert "1 more rows are in the table" in text
    assert '<button type="button">log id</button>' in text
